"""Tables of finished runs: mean and spread over seeds, beside the paper's numbers."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from askew.evaluation.metrics import mean
from askew.reports.paper import Printed, method_order, paper_numbers
from askew.runs.store import RunFolder

USUAL = {"sampler": "balanced", "target_sampler": "natural", "self_training": True, "minimax": True, "draw": 0}
"""How the paper's main tables were made; a table in its layout names only what differs from that."""


@dataclass(frozen=True)
class Row:
    """One method on one task: what its seeds scored."""

    task: str
    method: str
    variant: str
    """What sets it apart from other rows of that method, such as `alpha=0.2`."""
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """Per-class mean accuracy on the whole test part, a seed each."""
    paper_values: tuple[float, ...]
    """The same on the paper's exam, where there is one."""
    paper_overall: tuple[float, ...]
    """Overall accuracy there: that of the target's own class mix."""
    overall: tuple[float, ...]
    worst: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    notes: tuple[str, ...]
    reweighted: bool = False
    """Whether logits were reweighted by the estimated target mix."""
    across: str = ""
    """The variant in the same words on all tasks: what differs on any of them and is not usual, or a grid's name."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """What `Run.describe` says of its runs, but for the seed."""
    folders: tuple[Path, ...] = ()
    """Of its runs, in the order of the seeds."""

    @property
    def label(self) -> str:
        words = (self.method, self.variant, "reweighted" if self.reweighted else "")
        return " ".join(word for word in words if word)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; none for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def cell(values: Sequence[float]) -> str:
    """mean ± spread, as tables print it."""
    if not values:
        return "–"
    s = spread(values)
    return f"{mean(values):.2f}" + ("" if s is None else f" ± {s:.2f}")


def printed(number: Printed | None) -> str:
    """The paper's number, as tables print it."""
    if number is None:
        return "–"
    return f"{number[0]:.2f}" + ("" if number[1] is None else f" ± {number[1]:.2f}")


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in flat(item, f"{prefix}{name}.").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{prefix}{i}.").items()}
    return {prefix.rstrip("."): value}


def collect(folders: Iterable[Path], *, reweight: bool = False, names: Mapping[str, str] | None = None) -> list[Row]:
    """Finished runs, grouped so that those of a row differ in nothing but their seed.

    With `reweight`, each row is followed by that of the same networks with reweighted logits. `names` are a grid's
    own words for variants, by the name of a run's folder.
    """
    folders = list(folders)
    rows = _collect(folders, reweighted=False, names=names or {})
    if reweight:
        again = _collect(folders, reweighted=True, names=names or {})
        rows = [row for pair in zip(rows, again, strict=True) for row in pair]
    return rows


def _collect(folders: Sequence[Path], *, reweighted: bool, names: Mapping[str, str]) -> list[Row]:
    groups: dict[str, list[_Found]] = {}
    for path in folders:
        record, scores = RunFolder(path).summary(reweighted=reweighted)
        same = {k: v for k, v in record["run"].items() if k != "seed"}
        found = _Found(path, same, record["run"]["seed"], scores, record["notes"])
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(found)
    by_task: dict[tuple[str, str], list[dict[str, Any]]] = {}
    settings = {group: flat(runs[0].run) for group, runs in groups.items()}
    for group, runs in groups.items():
        by_task.setdefault((runs[0].run["task"], runs[0].method), []).append(settings[group])
    # Images and steps follow from the shift, which is a column of its own: only runs of one shift are told apart.
    by_shift: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for (task, method), runs_there in by_task.items():
        for own in runs_there:
            by_shift.setdefault((task, method, own["shift"]), []).append(own)
    on_any_task: dict[str, set[str]] = {}
    for (_, method, _), others in by_shift.items():
        on_any_task.setdefault(method, set()).update(_varying(others))
    on_own_task = {place: _varying(runs_there) for place, runs_there in by_task.items()}
    rows = []
    for group, runs in groups.items():
        runs.sort(key=lambda found: found.seed)
        run, method, own = runs[0].run, runs[0].method, settings[group]
        all_scores = [found.scores for found in runs]
        differing = [n for n in own if n in on_any_task[method] and own[n] != USUAL.get(n.rpartition(".")[2])]
        rows.append(
            Row(
                task=run["task"],
                method=method,
                variant=_words(own, [name for name in own if name in on_own_task[run["task"], method]]),
                seeds=tuple(found.seed for found in runs),
                values=tuple(s["whole"]["per_class_mean"] for s in all_scores),
                paper_values=tuple(s["paper"]["per_class_mean"] for s in all_scores if "paper" in s),
                paper_overall=tuple(s["paper"]["overall"] for s in all_scores if "paper" in s),
                overall=tuple(s["whole"]["overall"] for s in all_scores),
                worst=tuple(s["whole"]["worst"] for s in all_scores),
                intervals=tuple((s["whole"]["interval"][0], s["whole"]["interval"][1]) for s in all_scores),
                notes=tuple(runs[0].notes),
                reweighted=reweighted,
                across=names.get(runs[0].path.name, _words(own, differing)),
                run=run,
                folders=tuple(found.path for found in runs),
            )
        )
    order = method_order()
    return sorted(rows, key=lambda r: (r.task, r.method == "coal", order.get(r.method, 99), r.method, r.variant))


@dataclass(frozen=True)
class _Found:
    """A finished run as its folder tells it; `run` is without the seed."""

    path: Path
    run: dict[str, Any]
    seed: int
    scores: dict[str, Any]
    notes: list[str]

    @property
    def method(self) -> str:
        method: str = self.run["plan"][-1]["method"]["id"]
        return method


def _varying(runs: Sequence[dict[str, Any]]) -> set[str]:
    """The settings that are not the same in all runs, or that some of them lack."""
    first: dict[str, Any] = {}
    having, varying = Counter[str](), set[str]()
    for own in runs:
        having.update(own.keys())
        varying |= {name for name, value in own.items() if first.setdefault(name, value) != value}
    return varying | {name for name, count in having.items() if count < len(runs)}


def _words(own: dict[str, Any], names: list[str]) -> str:
    # `plan.1.method.options.alpha` is `alpha` to a reader, `plan.0.optim.lr` is `optim.lr` of the first stage
    short = {name: re.sub(r"^plan\.(\d+)\.(method\.options\.)?", "", name) for name in names}
    return " ".join(f"{short[name]}={own[name]}" for name in names)


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as plain values, for `--json`."""
    return [
        {
            "task": r.task,
            "method": r.method,
            "variant": r.variant,
            "reweighted": r.reweighted,
            "seeds": list(r.seeds),
            "n": len(r.seeds),
            "whole": {"mean": mean(r.values), "spread": spread(r.values), "values": list(r.values)},
            "paper_exam": {
                "mean": mean(r.paper_values),
                "spread": spread(r.paper_values),
                "overall": mean(r.paper_overall),
            }
            if r.paper_values
            else None,
            "overall": mean(r.overall),
            "worst_class": mean(r.worst),
            "intervals": [list(i) for i in r.intervals],
            "paper": paper_numbers().get(r.task, {}).get(r.method),
            "notes": list(r.notes),
        }
        for r in rows
    ]
