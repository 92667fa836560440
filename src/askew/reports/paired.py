"""Comparisons over the same seeds: differences with their intervals, and the mean of the seeds'
networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from askew.core.files import Damaged
from askew.evaluation.metrics import class_accuracy, confusion, mean
from askew.evaluation.outputs import Floats, as_floats, read_stored_outputs, softmax
from askew.reports.features import task_of
from askew.reports.paper_table import OWN, REFERENCE, Layout, Line
from askew.reports.results import Row, std

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean difference over seeds, and the ends of its interval, which a single seed does not
    have."""

    mean: float
    half: float | None
    n: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.half is not None and abs(self.mean) > self.half

    def __str__(self) -> str:
        """`+3.21 [+1.04, +5.38]`, with a star where zero is left out."""
        if self.half is None:
            return f"{self.mean:+.2f}"
        ends = f"[{self.mean - self.half:+.2f}, {self.mean + self.half:+.2f}]"
        return f"{self.mean:+.2f} {ends}{'*' if self.clear else ''}"


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """d̄ ± t·s/√n of the differences over the seeds that both have, Student's t with n − 1 degrees
    of freedom."""
    from scipy.stats import t as student

    found = [value - base[seed] for seed, value in values.items() if seed in base]
    if not found:
        return None
    n, s = len(found), std(found)
    half = None if s is None else float(student.ppf((1 + LEVEL) / 2, n - 1)) * s / math.sqrt(n)
    return Difference(mean(found), half, n)


def differences(table: Layout, line: Line, base: Line) -> list[Difference | None]:
    """Of two lines of a table: in each column, and of the averages over tasks where the table has
    them."""
    ours, theirs = (
        [dict(zip(c.seeds, c.values, strict=True)) for c in of.cells] for of in (line, base)
    )
    found = [paired(values, others) for values, others in zip(ours, theirs, strict=True)]
    if table.has_average:
        found.append(paired(_averages(ours), _averages(theirs)))
    return found


def _averages(columns: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over tasks, by seed, for the seeds that all tasks have."""
    common = set.intersection(*(set(values) for values in columns))
    return {seed: mean([values[seed] for values in columns]) for seed in sorted(common)}


@dataclass(frozen=True)
class Comparison:
    """A table of differences: its name, its columns, and by a line's name its differences to
    another line."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Difference | None, ...]], ...]


def comparisons(table: Layout) -> list[Comparison]:
    """Every line against source-only and against COAL of its own variant, and against its method's
    first line."""
    lines = {(line.method, line.variant): line for line in table.lines}
    first: dict[str, Line] = {}
    for line in table.lines:
        first.setdefault(line.method, line)
    bases: dict[str, list[Line | None]] = {
        f"to {method} of the same variant": [
            lines.get((method, line.variant)) for line in table.lines
        ]
        for method in (REFERENCE, OWN)
    }
    bases["to the same method's first row"] = [first[line.method] for line in table.lines]
    columns = (*table.columns, "average") if table.has_average else table.columns
    found = []
    for title, base_of in bases.items():
        rows = [
            (line.label, tuple(differences(table, line, base)))
            for line, base in zip(table.lines, base_of, strict=True)
            if base is not None and base is not line
        ]
        kept = tuple(row for row in rows if any(row[1]))
        if kept:
            found.append(Comparison(f"Paired differences {title}", columns, kept))
    return found


NOTE = (
    "Differences of per-class mean accuracy over the same seeds: mean [95 % t-interval over "
    "seeds]; "
    "*: the interval leaves zero out, without a correction for how many are looked at."
)


# --- the mean of the seeds' networks ---


def with_ensembles(rows: Sequence[Row], data: Path | None) -> list[Row]:
    """The rows with the score of their networks' mean: the class that is most probable on average
    over seeds."""
    return [replace(row, ensemble=_ensemble(row, data)) for row in rows]


def _ensemble(row: Row, data: Path | None) -> float | None:
    """Per-class mean accuracy on the whole test split; none with a single seed, or without stored
    logits."""
    files = [folder / "outputs.safetensors" for folder in row.folders]
    if len(files) < 2 or row.reweighted or not all(file.exists() for file in files):
        return None
    test = task_of(row.run, data).test
    if test is None:
        return None
    p = np.mean([_probabilities(file, (len(test.y), len(test.classes))) for file in files], axis=0)
    accuracy = class_accuracy(confusion(test.y, p.argmax(axis=1), len(test.classes)))
    return 100 * float(np.nanmean(accuracy))


def _probabilities(file: Path, shape: tuple[int, int]) -> Floats:
    """Of the test images, by a run's stored logits; Damaged if they are none of these images'."""
    logits = read_stored_outputs(file.parent).get("test")
    if logits is None or tuple(logits.shape) != shape:
        raise Damaged(file)
    return softmax(as_floats(logits))
