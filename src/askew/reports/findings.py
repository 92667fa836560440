"""Findings: each with a code, a reason and a remedy; and those about a folder of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from askew.core.errors import UserError
from askew.evaluation.metrics import mean
from askew.evaluation.outputs import Floats, as_floats, as_labels, read_stored_outputs
from askew.methods import METHODS
from askew.reports.results import Row, std
from askew.runs.claims import run_label
from askew.runs.store import RunFolder
from askew.training.run import key_before

ENOUGH_SEEDS = 3
NAMED = 8
"""Most classes that a finding names."""
LOST, KNOWN, ENOUGH_IMAGES = 0.1, 0.8, 3
"""A lost class has less than this of an even share of the target's predictions, while this share of
at least so many held-out source images of it is right. The rarest class of the digits under RS-UT
has 0.15 of an even share."""
FEW_CLASSES = 0.3
"""A target whose label distribution amounts to fewer of the classes than this share seems to lack
most of them. Two classes of ten are estimated as 0.20 to 0.29 on development tasks, the tail of
RS-UT as 0.33 and more."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found, why it matters, what to do, and every row, run or class that it holds for."""

    code: str
    what: str
    why: str
    remedy: str
    where: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"where": list(self.where)}


def keep_findings(*findings: tuple[Iterable[str], str, str, str, str]) -> list[Finding]:
    """Those of (where, code, what, why, remedy) that hold somewhere, by code."""
    found = [
        Finding(code=code, what=what, why=why, remedy=remedy, where=tuple(where))
        for where, code, what, why, remedy in findings
    ]
    return sorted((finding for finding in found if finding.where), key=lambda finding: finding.code)


def run_findings(rows: Sequence[Row], unfinished: Sequence[Path]) -> list[Finding]:
    """All findings about a folder of runs; none of them stops anything."""
    return keep_findings(
        (
            _few_seeds(rows),
            "A001",
            f"Fewer than {ENOUGH_SEEDS} seeds",
            "one or two runs do not show how much a result depends on the seed.",
            f"run again with --seeds {ENOUGH_SEEDS} or more: only what is missing is run.",
        ),
        (
            _scored_while_training(rows),
            "A002",
            "Target labels were used while training",
            "the scores after every round (--curve) use test labels: picking the best round "
            "means picking by them.",
            "report the tables, which have the last round; leave --curve out of runs that you "
            "report.",
        ),
        (
            _empty_classes(rows),
            "A003",
            "A class without test images",
            "the per-class mean leaves it out, so it is a mean over fewer classes than the task "
            "has.",
            "add test images of it, or state which classes the mean is over.",
        ),
        (
            map(_unfinished, unfinished),
            "A004",
            "A run that did not finish",
            "it is missing from every number on this page.",
            "start the command that made it again: it continues from its last checkpoint.",
        ),
        (
            _thin_leads(rows),
            "A005",
            "A lead smaller than the standard deviation over seeds",
            "with other seeds the order could be reversed.",
            "do not call the first one best; run more seeds.",
        ),
        (
            _unsure(rows),
            "A006",
            "The label distribution of the target could not be estimated",
            "the confusion matrix on source validation images is close to singular, so "
            "reweighted scores rest on little.",
            "do not use reweighted scores of these runs; look at which classes are confused.",
        ),
        (
            _mixed(rows),
            "A007",
            "Runs of one row were made by different versions or devices",
            "their standard deviation is not that of seeds alone.",
            "run them again on one machine with one version.",
        ),
        (
            _uneven_seeds(rows),
            "A008",
            "Not the same seeds in every row of a task",
            "all methods share a seed's pre-training, which may be good or bad for all of them "
            "alike.",
            "start the command that made them again: only what is missing is run.",
        ),
        (
            _without_views(rows),
            "A009",
            "A method that compares views was trained without them",
            "every view is then the image itself: what the method is about is switched off.",
            "turn them on with -t views=affine (or affine+intensity, picture, rows) or --recipe "
            "today.",
        ),
        (
            _lost_classes(rows),
            "A010",
            "A class that is hardly predicted on the target, and known on the source",
            "self-training can give a class up for good; the per-class mean then misses all of "
            "it. No target label tells "
            "this from a target that lacks the class.",
            "compare with source-only; look at images of that class; another seed, or "
            "target_sampler=natural.",
        ),
        (
            _few_classes(rows),
            "A011",
            "The target seems to have few of the classes, and they are drawn evenly",
            "images that are wrongly called one of many absent classes then fill most of a "
            "batch. The estimate is that of "
            "the network before adaptation, which may also just miss those classes.",
            "compare with source-only; if classes are known to be absent, -t "
            "target_sampler=natural, and -p aligned=false "
            "for the teacher.",
        ),
    )


def _few_seeds(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if len(row.seeds) < ENOUGH_SEEDS:
            yield f"{row.place}: n = {len(row.seeds)}"


def _scored_while_training(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if any("oracle" in entry for folder in row.folders for entry in RunFolder(folder).trace()):
            yield row.place


def _empty_classes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        record = RunFolder(row.folders[0]).record()
        for test, scores in RunFolder(row.folders[0]).scores().items():
            classes = record.get(
                "classes", [str(k) for k in range(len(scores.get("per_class", [])))]
            )
            empty = [
                n for n, a in zip(classes, scores.get("per_class", []), strict=False) if a is None
            ]
            if empty:
                split = {"whole": "whole test split", "paper": "the paper's test split"}.get(
                    test, test
                )
                yield f"{row.place}: {_first_few(empty)} ({split})"


def _thin_leads(rows: Sequence[Row]) -> Iterator[str]:
    """The first of a table's column against its second."""
    for (task, shift, variant), group in _columns(rows).items():
        ranked = sorted(group, key=lambda row: mean(row.values), reverse=True)
        if len(ranked) < 2:
            continue
        first, second = ranked[:2]
        lead = mean(first.values) - mean(second.values)
        widest = max(std(first.values) or 0.0, std(second.values) or 0.0)
        if widest > lead:
            at = f"{task} ({shift}{', ' + variant if variant else ''})"
            yield f"{at}: {first.method} leads {second.method} by {lead:.2f}, std {widest:.2f}"


def _uneven_seeds(rows: Sequence[Row]) -> Iterator[str]:
    for group in _columns(rows).values():
        every = {seed for row in group for seed in row.seeds}
        for row in group:
            missing = sorted(every.difference(row.seeds))
            if missing:
                yield f"{row.place}: without seed {', '.join(map(str, missing))}"


def _columns(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """What stands below one another in a table, by task, label shift and variant."""
    columns: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        columns.setdefault((row.task, str(row.run.get("shift", "")), row.across), []).append(row)
    return columns


def _unsure(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        seeds = [
            str(s)
            for s, folder in zip(row.seeds, row.folders, strict=True)
            if RunFolder(folder).reweighting().get("unsure")
        ]
        if seeds:
            yield f"{row.place}: seed {', '.join(seeds)}"


def _mixed(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        records = [RunFolder(folder).record() for folder in row.folders]
        versions = (" ".join(f"{k} {v}" for k, v in r.get("versions", {}).items()) for r in records)
        made = dict.fromkeys(
            f"{r.get('device', '?')}, {v}" for r, v in zip(records, versions, strict=True)
        )
        if len(made) > 1:
            yield f"{row.place}: {'; '.join(made)}"


def _without_views(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if (
            "views" not in row.run
            and row.method in METHODS
            and METHODS[row.method]().compares_views
        ):
            yield row.place


def _few_classes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        blind = row.method in METHODS and not METHODS[row.method].sees_target
        if blind or row.run.get("target_sampler") not in ("even", "balanced"):
            continue
        seeds = []
        for seed, folder in zip(row.seeds, row.folders, strict=True):
            key = key_before(RunFolder(folder).record()["run"])
            prior = (
                RunFolder(folder.parent / key).reweighting().get("target_shares") if key else None
            )
            if prior is not None and has_few_classes(np.array(prior)):
                seeds.append(str(seed))
        if seeds:
            yield f"{row.place}: seed {', '.join(seeds)}"


def has_few_classes(prior: Floats) -> bool:
    """Whether a label distribution amounts to few of its classes: e^H < FEW_CLASSES·c, H its
    entropy. (c,)"""
    entropy = -(prior * np.log(np.maximum(prior, 1e-12))).sum()
    return bool(np.exp(entropy) < FEW_CLASSES * len(prior))


def _lost_classes(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        seeds: dict[str, list[int]] = {}
        for seed, folder in zip(row.seeds, row.folders, strict=True):
            if (folder / "outputs.safetensors").exists():
                classes = RunFolder(folder).record().get("classes")
                for k in lost_classes(read_stored_outputs(folder)):
                    seeds.setdefault(classes[k] if classes else str(k), []).append(seed)
        named = [f"{name} (seed {', '.join(map(str, found))})" for name, found in seeds.items()]
        if named:
            yield f"{row.place}: class {_first_few(named)}"


def lost_classes(outputs: Mapping[str, Any]) -> list[int]:
    """Classes with less than LOST of an even share of the target's predictions, that are found on
    held-out source.

    `outputs` are a run's stored logits: `target` (n_t, c), `source_val` (n_v, c), and
    `source_val_y` (n_v,).
    """
    target, source = (as_floats(outputs[name]).argmax(axis=1) for name in ("target", "source_val"))
    y, c = as_labels(outputs["source_val_y"]), outputs["target"].shape[1]
    share = np.bincount(target, minlength=c) / max(len(target), 1)
    right, held_out = np.bincount(y[source == y], minlength=c), np.bincount(y, minlength=c)
    known = (held_out >= ENOUGH_IMAGES) & (right >= KNOWN * held_out)
    return [int(k) for k in np.flatnonzero((share < LOST / c) & known)]


def unfinished_runs(root: Path) -> list[Path]:
    """Folders of runs that were started and not finished."""
    return sorted(p.parent for p in root.glob("*/run.json") if not (p.parent / "done").exists())


def _unfinished(folder: Path) -> str:
    try:
        run = RunFolder(folder).record()["run"]
        return (
            f"{run_label(run['task'], run['plan'][-1]['method']['id'], run['seed'])} "
            f"({folder.name})"
        )
    except (UserError, KeyError, TypeError, IndexError):
        return f"{folder.name}: its run.json cannot be read"


def _first_few(names: Sequence[str]) -> str:
    """The first of many names, as text."""
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
