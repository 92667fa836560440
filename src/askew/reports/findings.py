"""Coded checks of a folder of runs: what was found, why it matters, what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.evaluation.metrics import mean
from askew.reports.results import Row, spread
from askew.runs.store import RunFolder

ENOUGH_SEEDS = 3


@dataclass(frozen=True)
class Check:
    """One finding; `where` names every row or run that it holds for."""

    code: str
    what: str
    why: str
    remedy: str
    where: tuple[str, ...]


def checks(rows: Sequence[Row], unfinished: Sequence[Path]) -> list[Check]:
    """All findings, by code; none of them stops anything."""
    findings = (
        ("A001", f"Fewer than {ENOUGH_SEEDS} seeds", "one or two runs say nothing about chance.",
         f"run again with --seeds {ENOUGH_SEEDS} or more: only what is missing is run.", _few_seeds(rows)),
        ("A002", "Target labels were looked at while training",
         "scores after every round (--curve) are an oracle's: whoever picks the best of them picks with target labels.",
         "report what stands in the tables, which is the last round; leave --curve out of reported runs.",
         _oracle(rows)),
        ("A003", "A class without images in the exam",
         "the per-class mean leaves it out, so it is a mean over fewer classes than the task has.",
         "add test images of it, or say which classes the mean is over.", _empty_classes(rows)),
        ("A004", "A run that did not finish", "it is missing from every number on this page.",
         "start the command that made it again: it goes on from its last checkpoint.",
         [_name(folder) for folder in unfinished]),
        ("A005", "A lead smaller than the spread", "another seed could have turned the two around.",
         "do not call the first one best; run more seeds.", _thin_leads(rows)),
        ("A006", "The class mix of the target could not be estimated",
         "the confusion matrix on source validation images is close to singular, so reweighted scores rest on little.",
         "do not use reweighted scores of these runs; look at which classes are confused.", _unsure(rows)),
        ("A007", "Runs of one row were made by different versions or devices",
         "their spread is not that of seeds alone.", "run them again on one machine with one version.",
         _mixed(rows)),
        ("A008", "Not the same seeds in every row of a task",
         "a seed's pre-training is shared by all methods and may be good or bad for all of them alike.",
         "start the command that made them again: only what is missing is run.", _uneven_seeds(rows)),
    )  # fmt: skip
    made = [Check(code, what, why, remedy, tuple(found)) for code, what, why, remedy, found in findings]
    return [check for check in made if check.where]


def place(row: Row) -> str:
    """A row as a reader finds it."""
    shift = row.run.get("shift", "")
    return f"{row.task} ({shift}), {f'{row.method} {row.across}'.strip()}"


def _few_seeds(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if len(row.seeds) < ENOUGH_SEEDS:
            yield f"{place(row)}: n = {len(row.seeds)}"


def _oracle(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if any("oracle" in entry for folder in row.folders for entry in RunFolder(folder).trace()):
            yield place(row)


def _empty_classes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        record = _record(row.folders[0])
        for test, scores in RunFolder(row.folders[0]).scores().items():
            classes = record.get("classes", [str(k) for k in range(len(scores.get("per_class", [])))])
            empty = [n for n, a in zip(classes, scores.get("per_class", []), strict=False) if a is None]
            if empty:
                which = {"whole": "whole test part", "paper": "the paper's exam"}.get(test, test)
                yield f"{place(row)}: {', '.join(empty[:8])}{', …' if len(empty) > 8 else ''} ({which})"


def _thin_leads(rows: Sequence[Row]) -> Iterator[str]:
    """The first of a table's column against its second, where both have a spread."""
    for (task, shift, variant), group in _columns(rows).items():
        ranked = sorted(group, key=lambda row: mean(row.values), reverse=True)
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        lead, widest = mean(first.values) - mean(second.values), max(spread(r.values) or 0.0 for r in (first, second))
        if widest > lead:
            at = f"{task} ({shift}{', ' + variant if variant else ''})"
            yield f"{at}: {first.method} leads {second.method} by {lead:.2f}, spread {widest:.2f}"


def _uneven_seeds(rows: Sequence[Row]) -> Iterator[str]:
    for group in _columns(rows).values():
        every = {seed for row in group for seed in row.seeds}
        for row in group:
            missing = sorted(every.difference(row.seeds))
            if missing:
                yield f"{place(row)}: without seed {', '.join(map(str, missing))}"


def _columns(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """What stands below one another in a table, by task, label shift and variant."""
    columns: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        columns.setdefault((row.task, str(row.run.get("shift", "")), row.across), []).append(row)
    return columns


def _unsure(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        seeds = [str(s) for s, folder in zip(row.seeds, row.folders, strict=True) if mixes(folder).get("unsure")]
        if seeds:
            yield f"{place(row)}: seed {', '.join(seeds)}"


def _mixed(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        records = [_record(folder) for folder in row.folders]
        versions = (" ".join(f"{k} {v}" for k, v in r.get("versions", {}).items()) for r in records)
        made = dict.fromkeys(f"{r.get('device', '?')}, {v}" for r, v in zip(records, versions, strict=True))
        if len(made) > 1:
            yield f"{place(row)}: {'; '.join(made)}"


def _record(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return record


def mixes(folder: Path) -> dict[str, Any]:
    """What reweighted.json says of a run; empty where there is none."""
    file = folder / "reweighted.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def unfinished_runs(root: Path) -> list[Path]:
    """Folders of runs that were begun and not finished."""
    return sorted(p.parent for p in root.glob("*/run.json") if not (p.parent / "done").exists())


def _name(folder: Path) -> str:
    try:
        run = _record(folder)["run"]
        return f"{run['task']}, {run['plan'][-1]['method']['id']}, seed {run['seed']} ({folder.name})"
    except (ValueError, KeyError, TypeError, IndexError):
        return f"{folder.name}: its run.json cannot be read"
