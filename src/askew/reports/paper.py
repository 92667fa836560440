"""What the paper prints: every number of its tables, as printed, and which of them belongs beside a
run of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

Printed = tuple[float, float | None]
"""A number and its standard deviation, where the paper prints one."""

DEGREES = {"bs-bt": "0", "rs-ut": "1"}
"""Shifts that are ends of the paper's curve over degrees."""


PUBLISHED: Mapping[str, Mapping[str, tuple[float, str]]] = {
    "office-home": {"sentry": (65.3, "Prabhu et al., ICCV 2021")},
    "domainnet": {"sentry": (81.4, "Prabhu et al., ICCV 2021")},
}
"""What later papers print as their average over the same tasks of a benchmark, by recipes of their
own."""


@cache
def _paper() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(
        (resources.files("askew.reports") / "paper.json").read_text()
    )
    return content


@cache
def paper_numbers() -> dict[str, dict[str, Printed]]:
    """The main tables: numbers[task][method] = (per-class mean accuracy, standard deviation)."""
    return {
        task: {method: (value[0], value[1]) for method, value in methods.items()}
        for task, methods in _paper()["tasks"].items()
    }


def method_order() -> dict[str, int]:
    """Where a method stands in our tables: the paper's order."""
    return {name: i for i, name in enumerate(next(iter(paper_numbers().values())))}


def printed_average(benchmark: str, method: str) -> float | None:
    """The average over a benchmark's tasks that the paper prints; some do not follow from its own
    cells."""
    value: float | None = _paper()["printed_averages"].get(benchmark, {}).get(method)
    return value


def recomputed_average(values: Sequence[float]) -> float:
    """The average of printed cells, rounded half up to two decimals, as the paper rounds."""
    hundredths = 100 * math.fsum(values) / len(values)
    return math.floor(hundredths + 0.5 + 1e-9) / 100


def notes(table: str) -> tuple[str, ...]:
    """What is wrong with, or missing from, one of the paper's tables."""
    return tuple(_paper()["notes"].get(table, ()))


def degree_of(shift: str) -> float | None:
    """0 for balanced domains, 1 for RS-UT; none for a shift that is not on that way."""
    text = DEGREES.get(shift, shift.removeprefix("degree:"))
    try:
        return float(text)
    except ValueError:
        return None


def degree_curve(task: str) -> dict[str, dict[float, float]]:
    """The paper's accuracy by degree of label shift, per method; the text has the ends alone."""
    curves: Mapping[str, Mapping[str, float]] = _paper()["degree"].get(task, {})
    return {
        m: {float(degree): value for degree, value in points.items()}
        for m, points in curves.items()
    }


def printed_accuracy(run: Mapping[str, Any]) -> Printed | None:
    """The paper's number for such a run, given as `Run.describe` does; none where it prints none.

    A run with another sampler, shift or ablation than the main tables' has the number of that
    experiment.
    """
    task: str = run["task"]
    method, options = run["plan"][-1]["method"]["id"], run["plan"][-1]["method"]["options"]
    if run.get("target_sampler", "natural") != "natural" or "views" in run:
        return None
    degree = degree_of(run["shift"])
    usual = run["shift"] == "natural" if task.startswith("domainnet/") else degree == 1
    balanced = run.get("sampler", "balanced") == "balanced"
    off = [name for name in ("self_training", "minimax") if options.get(name) is False]
    value: float | None
    if off:
        alone = len(off) == 1 and usual and balanced
        value = _paper()["ablation"].get(task, {}).get(f"without {off[0]}") if alone else None
    elif usual and balanced:
        return paper_numbers().get(task, {}).get(method)
    elif usual:
        value = _paper()["sampler_natural"].get(task, {}).get(method)
    else:
        value = (
            degree_curve(task).get(method, {}).get(degree)
            if balanced and degree is not None
            else None
        )
    return None if value is None else (value, None)
