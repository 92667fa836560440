"""Tables of finished runs: mean and spread over seeds, beside the paper's numbers."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from askew.store import RunFolder


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

    @property
    def label(self) -> str:
        words = (self.method, self.variant, "reweighted" if self.reweighted else "")
        return " ".join(word for word in words if word)


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def spread(values: Sequence[float]) -> float | None:
    """Sample standard deviation; none for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def cell(values: Sequence[float]) -> str:
    """mean ± spread, as tables print it."""
    if not values:
        return "–"
    s = spread(values)
    return f"{mean(values):.2f}" + ("" if s is None else f" ± {s:.2f}")


@cache
def paper_numbers() -> dict[str, dict[str, tuple[float, float | None]]]:
    """What the paper prints: numbers[task][method] = (per-class mean accuracy, spread)."""
    text = (resources.files("askew") / "paper.json").read_text()
    return {
        task: {method: (value[0], value[1]) for method, value in methods.items()}
        for task, methods in json.loads(text)["tasks"].items()
    }


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in _flat(item, f"{prefix}{name}.").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in _flat(item, f"{prefix}{i}.").items()}
    return {prefix.rstrip("."): value}


def collect(folders: Iterable[Path], *, reweight: bool = False) -> list[Row]:
    """Finished runs, grouped so that those of a row differ in nothing but their seed.

    With `reweight`, each row is followed by that of the same networks with reweighted logits.
    """
    folders = list(folders)
    rows = _collect(folders, reweighted=False)
    if reweight:
        rows = [row for pair in zip(rows, _collect(folders, reweighted=True), strict=True) for row in pair]
    return rows


def _collect(folders: Sequence[Path], *, reweighted: bool) -> list[Row]:
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any], list[str]]]] = {}
    for path in folders:
        record = json.loads((path / "run.json").read_text())
        same = {k: v for k, v in record["run"].items() if k != "seed"}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(
            (record["run"], RunFolder(path).scores(reweighted=reweighted), record["notes"])
        )
    by_method: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for runs in groups.values():
        run = runs[0][0]
        by_method.setdefault((run["task"], run["plan"][-1]["method"]["id"]), []).append(_flat(run))
    rows = []
    for runs in groups.values():
        runs.sort(key=lambda r: r[0]["seed"])
        run = runs[0][0]
        method = run["plan"][-1]["method"]["id"]
        scores = [s for _, s, _ in runs]
        rows.append(
            Row(
                task=run["task"],
                method=method,
                variant=_variant(_flat(run), by_method[run["task"], method]),
                seeds=tuple(r["seed"] for r, _, _ in runs),
                values=tuple(s["whole"]["per_class_mean"] for s in scores),
                paper_values=tuple(s["paper"]["per_class_mean"] for s in scores if "paper" in s),
                paper_overall=tuple(s["paper"]["overall"] for s in scores if "paper" in s),
                overall=tuple(s["whole"]["overall"] for s in scores),
                worst=tuple(s["whole"]["worst"] for s in scores),
                intervals=tuple((s["whole"]["interval"][0], s["whole"]["interval"][1]) for s in scores),
                notes=tuple(runs[0][2]),
                reweighted=reweighted,
            )
        )
    order = {name: i for i, name in enumerate(next(iter(paper_numbers().values())))}
    return sorted(rows, key=lambda r: (r.task, r.method == "coal", order.get(r.method, 99), r.method, r.variant))


def _variant(own: dict[str, Any], others: list[dict[str, Any]]) -> str:
    """The settings in which this row differs from the method's other rows on the same task."""
    missing = object()
    differing = [
        name for name in own if name != "seed" and any(other.get(name, missing) != own[name] for other in others)
    ]
    # `plan.1.method.options.alpha` is `alpha` to a reader, `plan.0.optim.lr` is `optim.lr` of the first stage
    short = {name: re.sub(r"^plan\.(\d+)\.(method\.options\.)?", "", name) for name in differing}
    return " ".join(f"{short[name]}={own[name]}" for name in differing)


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
