"""Results of finished runs: mean and standard deviation over seeds, beside the paper's numbers."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from askew.core.files import Damaged
from askew.evaluation.metrics import mean
from askew.reports.paper import Printed, method_order, paper_numbers
from askew.runs.recipes import nearest_recipe
from askew.runs.store import RunFolder

K = TypeVar("K", bound=Hashable)

USUAL = {
    "sampler": "balanced",
    "target_sampler": "natural",
    "self_training": True,
    "minimax": True,
    "draw": 0,
}
"""How the paper's main tables were made; a table in its layout names only what differs from
that."""
USUAL_RECIPE = "paper"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method on one task: the scores of its seeds."""

    task: str
    method: str
    variant: str
    """What sets it apart from other rows of that method, such as `alpha=0.2`."""
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """Per-class mean accuracy on the whole test split, one value per seed."""
    paper_values: tuple[float, ...]
    """The same on the paper's test split, where it is another."""
    paper_overall: tuple[float, ...]
    """Overall accuracy there, under the target's own label distribution."""
    overall: tuple[float, ...]
    worst: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    notes: tuple[str, ...]
    reweighted: bool = False
    """Whether logits were adjusted to the estimated label distribution of the target."""
    across: str = ""
    """The variant in the same words on all tasks: what differs on any of them and is not usual, or
    a grid's name."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """What `Run.describe` gives for its runs, but for the seed."""
    folders: tuple[Path, ...] = ()
    """Of its runs, in the order of the seeds."""
    ensemble: float | None = None
    """Per-class mean accuracy of the mean of the seeds' networks, where it was asked for."""

    @property
    def label(self) -> str:
        words = (self.method, self.variant, "reweighted" if self.reweighted else "")
        return " ".join(word for word in words if word)

    @property
    def line(self) -> str:
        """Its name in a table of several tasks."""
        return f"{self.method} {self.across}".strip()

    @property
    def place(self) -> str:
        """Its name among all rows."""
        return f"{self.task} ({self.run.get('shift', '')}), {self.line}"


def std(values: Sequence[float]) -> float | None:
    """Sample standard deviation; none for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def cell(values: Sequence[float]) -> str:
    """mean ± standard deviation, as tables print it."""
    if not values:
        return "–"
    s = std(values)
    return f"{mean(values):.2f}" + ("" if s is None else f" ± {s:.2f}")


def format_printed(number: Printed | None) -> str:
    """The paper's number, as tables print it."""
    if number is None:
        return "–"
    return f"{number[0]:.2f}" + ("" if number[1] is None else f" ± {number[1]:.2f}")


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    if isinstance(value, dict):
        return {
            k: v
            for name, item in value.items()
            for k, v in flatten(item, f"{prefix}{name}.").items()
        }
    if isinstance(value, list):
        return {
            k: v for i, item in enumerate(value) for k, v in flatten(item, f"{prefix}{i}.").items()
        }
    return {prefix.rstrip("."): value}


def collect(
    folders: Iterable[Path], *, reweight: bool = False, names: Mapping[str, str] | None = None
) -> list[Row]:
    """One row for all finished runs that differ in nothing but their seed.

    With `reweight`, each row is followed by that of the same networks with adjusted logits. `names`
    are a grid's names of its variants, by the name of a run's folder.
    """
    folders = list(folders)
    rows = _collect(folders, reweighted=False, names=names or {})
    if reweight:
        again = _collect(folders, reweighted=True, names=names or {})
        rows = [row for pair in zip(rows, again, strict=True) for row in pair]
    return rows


def _collect(folders: Sequence[Path], *, reweighted: bool, names: Mapping[str, str]) -> list[Row]:
    groups = _grouped(folders, reweighted)
    on_task = _varying_among(groups, lambda group: (group.task, group.method, group.recipe))
    # Numbers of images and steps follow from the shift, which has a column of its own.
    on_shift = _varying_among(
        groups, lambda group: (group.task, group.method, group.recipe, group.settings["shift"])
    )
    on_any_task: dict[tuple[str, str], set[str]] = {}
    for (_, method, recipe, _), varying in on_shift.items():
        on_any_task.setdefault((method, recipe), set()).update(varying)
    rows = []
    for group in groups:
        unusual = {
            name
            for name, value in group.settings.items()
            if value != USUAL.get(name.rpartition(".")[2])
        }
        across = _words(group.settings, on_any_task[group.method, group.recipe] & unusual)
        variant = _words(group.settings, on_task[group.task, group.method, group.recipe])
        rows.append(
            _row(
                group,
                variant=f"{group.recipe} {variant}".strip(),
                across=names.get(group.runs[0].path.name, f"{group.recipe} {across}".strip()),
                reweighted=reweighted,
            )
        )
    order = method_order()
    return sorted(
        rows,
        key=lambda r: (r.task, r.method == "coal", order.get(r.method, 99), r.method, r.variant),
    )


def _row(group: _Group, *, variant: str, across: str, reweighted: bool) -> Row:
    whole = [found.scores["whole"] for found in group.runs]
    paper = [found.scores["paper"] for found in group.runs if "paper" in found.scores]
    return Row(
        task=group.task,
        method=group.method,
        variant=variant,
        seeds=tuple(found.seed for found in group.runs),
        values=tuple(scores["per_class_mean"] for scores in whole),
        paper_values=tuple(scores["per_class_mean"] for scores in paper),
        paper_overall=tuple(scores["overall"] for scores in paper),
        overall=tuple(scores["overall"] for scores in whole),
        worst=tuple(scores["worst"] for scores in whole),
        intervals=tuple((scores["interval"][0], scores["interval"][1]) for scores in whole),
        notes=tuple(group.runs[0].notes),
        reweighted=reweighted,
        across=across,
        run=group.run,
        folders=tuple(found.path for found in group.runs),
    )


@dataclass(frozen=True)
class _Found:
    """A finished run as its folder has it."""

    path: Path
    seed: int
    scores: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True)
class _Group:
    """Runs that differ in nothing but their seed, by which they are sorted."""

    run: dict[str, Any]
    """What they have in common."""
    settings: dict[str, Any]
    """The same by dotted names."""
    runs: list[_Found]

    @property
    def task(self) -> str:
        task: str = self.run["task"]
        return task

    @property
    def method(self) -> str:
        method: str = self.run["plan"][-1]["method"]["id"]
        return method

    @cached_property
    def recipe(self) -> str:
        """The recipe that it was trained by; empty for the paper's, as for all that is usual."""
        found = nearest_recipe(self.run)
        return "" if found == USUAL_RECIPE else found


def _grouped(folders: Sequence[Path], reweighted: bool) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for path in folders:
        record, scores = RunFolder(path).summary(reweighted=reweighted)
        if not _is_sound(record, scores):
            raise Damaged(path / "run.json")
        common = {k: v for k, v in record["run"].items() if k != "seed"}
        group = groups.setdefault(
            json.dumps(common, sort_keys=True), _Group(common, flatten(common), [])
        )
        group.runs.append(_Found(path, record["run"]["seed"], scores, record["notes"]))
    for group in groups.values():
        group.runs.sort(key=lambda found: found.seed)
    return list(groups.values())


def _is_sound(record: Mapping[str, Any], scores: Mapping[str, Any]) -> bool:
    """Whether a run that is whole, but may be a stranger's, has all that a table needs."""
    try:
        run, whole = record["run"], scores["whole"]
        low, high = whole["interval"]
        splits = (whole, scores.get("paper", whole))
        numbers = [
            low,
            high,
            *(split[n] for split in splits for n in ("per_class_mean", "overall", "worst")),
        ]
        texts = [run["task"], run["shift"], run["plan"][-1]["method"]["id"], *record["notes"]]
        return (
            type(run["seed"]) is int
            and all(isinstance(number, int | float) for number in numbers)
            and all(isinstance(text, str) for text in texts)
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return False


def _varying_among(groups: Sequence[_Group], key: Callable[[_Group], K]) -> dict[K, set[str]]:
    """The settings that differ among the groups that have a key in common, by that key."""
    together: dict[K, list[dict[str, Any]]] = {}
    for group in groups:
        together.setdefault(key(group), []).append(group.settings)
    return {at: _varying(settings) for at, settings in together.items()}


def _varying(runs: Sequence[dict[str, Any]]) -> set[str]:
    """The settings that are not the same in all runs, or that some of them lack."""
    first: dict[str, Any] = {}
    having, varying = Counter[str](), set[str]()
    for own in runs:
        having.update(own.keys())
        varying |= {name for name, value in own.items() if first.setdefault(name, value) != value}
    return varying | {name for name, count in having.items() if count < len(runs)}


def _words(settings: Mapping[str, Any], names: Set[str]) -> str:
    """Those of the settings that are named, such as `alpha=0.2 rounds=5`."""
    # `plan.1.method.options.alpha` is `alpha` to a reader, `plan.0.optim.lr` is `optim.lr` of the
    # first stage
    short = {
        name: re.sub(r"^plan\.(\d+)\.(method\.options\.)?", "", name)
        for name in settings
        if name in names
    }
    return " ".join(f"{word}={settings[name]}" for name, word in short.items())


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
            "whole": {"mean": mean(r.values), "spread": std(r.values), "values": list(r.values)},
            "ensemble": r.ensemble,
            "paper_test": {
                "mean": mean(r.paper_values),
                "spread": std(r.paper_values),
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
