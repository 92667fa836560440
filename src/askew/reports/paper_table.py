"""Tables in the paper's layout: methods as rows, tasks as columns, the paper's numbers beside
ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from askew.evaluation.metrics import mean
from askew.reports.paper import (
    PUBLISHED,
    Printed,
    degree_of,
    method_order,
    paper_numbers,
    printed_accuracy,
    printed_average,
    recomputed_average,
)
from askew.reports.results import Row, cell

REFERENCE, OWN = "source", "coal"
"""The two rows that the paper does not count among the ten methods it compares."""


@dataclass(frozen=True)
class Cell:
    """One method on one task: one value per seed, and what the paper prints for it."""

    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    paper: Printed | None = None
    ensemble: float | None = None
    """Of the mean of the seeds' networks."""


@dataclass(frozen=True)
class Line:
    """One method, or one variant of it, over all tasks of a table."""

    method: str
    variant: str
    cells: tuple[Cell, ...]
    printed: float | None
    """The average over the benchmark's tasks that the paper prints, where it belongs to this
    line."""

    @property
    def label(self) -> str:
        return f"{self.method} {self.variant}".strip()

    @cached_property
    def averages(self) -> tuple[float, ...]:
        """Over tasks: one value per seed if all tasks have the same ones, else the mean; empty if a
        task is missing."""
        if any(not c.values for c in self.cells):
            return ()
        if len({c.seeds for c in self.cells}) == 1:
            return tuple(
                mean(values) for values in zip(*(c.values for c in self.cells), strict=True)
            )
        return (mean([mean(c.values) for c in self.cells]),)

    @cached_property
    def paper_average(self) -> float | None:
        """Of the paper's own cells of these tasks."""
        values = [c.paper[0] for c in self.cells if c.paper is not None]
        return recomputed_average(values) if len(values) == len(self.cells) else None

    @cached_property
    def ensemble(self) -> float | None:
        """The average over tasks of the mean networks' scores."""
        values = [c.ensemble for c in self.cells if c.ensemble is not None]
        return mean(values) if len(values) == len(self.cells) else None

    def score(self, column: int | None) -> float | None:
        """Our mean in a column, or over all of them."""
        values = self.averages if column is None else self.cells[column].values
        return mean(values) if values else None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One table: a benchmark under one shift, or a task under shifts of growing degree."""

    title: str
    benchmark: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    averaged: bool
    """Whether columns are tasks, over which an average means something, or degrees of label
    shift."""
    notes: tuple[str, ...]

    @property
    def has_average(self) -> bool:
        return self.averaged and len(self.columns) > 1

    def degree_points(
        self,
    ) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[tuple[float, float]]]]:
        """Ours and the paper's accuracy over degrees, by line, where the columns are degrees."""
        degrees = [float(column) for column in self.columns]
        ours, paper = {}, {}
        for line in self.lines:
            ours[line.label] = [
                (d, mean(c.values)) for d, c in zip(degrees, line.cells, strict=True) if c.values
            ]
            paper[line.label] = [
                (d, c.paper[0]) for d, c in zip(degrees, line.cells, strict=True) if c.paper
            ]
        return {k: v for k, v in ours.items() if v}, {k: v for k, v in paper.items() if v}

    @property
    def has_paper(self) -> bool:
        return any(c.paper for line in self.lines for c in line.cells)

    @property
    def has_printed(self) -> bool:
        """Whether the paper's printed average is over these very tasks."""
        return self.has_average and any(line.printed is not None for line in self.lines)

    @property
    def has_ensemble(self) -> bool:
        return any(line.ensemble is not None for line in self.lines)

    @property
    def usual_n(self) -> int:
        """The most seeds that a cell has; those with fewer are marked."""
        return max(len(c.seeds) for line in self.lines for c in line.cells)

    def best(self, column: int | None) -> float | None:
        """The highest of our means in a column."""
        scores = [s for line in self.lines if (s := line.score(column)) is not None]
        return max(scores) if scores else None

    def cell_text(self, c: Cell) -> str:
        """`79.72 ± 1.54 (75.31)`, with `n=2` where seeds are missing."""
        ours = cell(c.values)
        if c.values and len(c.values) < self.usual_n:
            ours += f" n={len(c.values)}"
        return ours + (f" ({c.paper[0]:.2f})" if c.paper else "")

    def summary(self, *, bracketed: bool = True) -> list[str]:
        """Notes under the table: seeds, what is missing, and how many methods fall below
        source-only."""
        cells = [c for line in self.lines for c in line.cells]
        missing = sum(not c.values for c in cells)
        fewer = sum(0 < len(c.values) < self.usual_n for c in cells)
        text = (
            "Per-class mean accuracy in %, whole test split; mean ± sample standard deviation "
            f"over n = {self.usual_n}"
        )
        text += " seed." if self.usual_n == 1 else " seeds."
        if self.has_paper and bracketed:
            text += " In brackets: the paper."
        if fewer:
            text += f" {fewer} of {len(cells)} cells have fewer seeds (n=…)."
        if missing:
            text += f" {missing} of {len(cells)} cells have no finished run (–)."
        if self.has_ensemble:
            text += " Ensemble: the seeds' networks, their probabilities averaged."
        below = (_below(self, variant) for variant in self._variants_with_reference())
        return [text, *below, *self._misprints(), *self._published()]

    def _variants_with_reference(self) -> list[str]:
        return [line.variant for line in self.lines if line.method == REFERENCE]

    def _misprints(self) -> list[str]:
        wrong = [
            f"{line.label} {line.printed:.2f} (its cells give {line.paper_average:.2f})"
            for line in self.lines
            if self.has_printed and line.printed is not None and line.paper_average is not None
            if abs(line.printed - line.paper_average) > 0.006  # the last digit may be rounding
        ]
        text = (
            "Averages that the paper prints and that do not follow from its cells: "
            f"{', '.join(wrong)}."
        )
        return [text] if wrong else []

    def _published(self) -> list[str]:
        """What later papers print for all tasks of this benchmark."""
        tasks = {
            task.partition("/")[2]
            for task in paper_numbers()
            if task.startswith(f"{self.benchmark}/")
        }
        if not self.averaged or set(self.columns) != tasks:
            return []
        found = (
            f"{m} {value:.1f} ({cite})"
            for m, (value, cite) in PUBLISHED.get(self.benchmark, {}).items()
        )
        return [
            f"Published since, by a recipe of its own, average over these tasks: {line}."
            for line in found
        ]


def _below(table: Layout, variant: str) -> str:
    """Negative transfer: how many of the compared methods score less than the network that never
    saw the target."""
    lines = {line.method: line for line in table.lines if line.variant == variant}
    source = lines.pop(REFERENCE)
    lines.pop(OWN, None)
    where: list[int | None] = list(range(len(table.columns)))
    if table.has_average:
        where = [None, *where]
    counts: list[str] = []
    for column in where:
        base = source.score(column)
        scores = {name: line.score(column) for name, line in lines.items()}
        known = {name: score for name, score in scores.items() if score is not None}
        if base is None or not known:
            continue
        below = [name for name, score in known.items() if score < base]
        at = "on" if table.averaged else "at degree"
        what = "on average:" if column is None else f"{at} {table.columns[column]}:"
        names = f" ({', '.join(below)})" if below and not counts else ""
        counts.append(f"{what} {len(below)} of {len(known)}{names}")
    head = f"Below source-only{f' [{variant}]' if variant else ''}: "
    text = head + ("; ".join(counts) if counts else "no other method has been run") + "."
    return text + (_paper_below(table) if not variant and table.averaged else "")


def _paper_below(table: Layout) -> str:
    """The same count of the paper's own numbers on these tasks."""
    tasks = [f"{table.benchmark}/{column}" for column in table.columns]
    if any(task not in paper_numbers() for task in tasks):
        return ""
    methods = [m for m in method_order() if m not in (REFERENCE, OWN)]
    average = {
        m: mean([paper_numbers()[task][m][0] for task in tasks]) for m in (REFERENCE, *methods)
    }
    text = f" The paper: {sum(average[m] < average[REFERENCE] for m in methods)} of {len(methods)}"
    if table.has_printed:
        printed = {m: printed_average(table.benchmark, m) or 0.0 for m in (REFERENCE, *methods)}
        text += (
            f" by its cells, {sum(printed[m] < printed[REFERENCE] for m in methods)} by its "
            "printed averages"
        )
    return text + "."


def layouts(rows: Sequence[Row], variants: Sequence[str] = ()) -> list[Layout]:
    """One table per benchmark and shift; shifts by degree are the columns of one table per task.

    `variants` is the order of a grid's own.
    """
    tables: dict[tuple[str, str], list[Row]] = {}
    curves: dict[str, list[Row]] = {}
    for row in rows:
        shift = str(row.run.get("shift", ""))
        if shift.startswith("degree:"):
            curves.setdefault(row.task, []).append(row)
        else:
            tables.setdefault((row.task.partition("/")[0], shift), []).append(row)
    found = []
    for (benchmark, shift), group in tables.items():
        known = [task for task in paper_numbers() if task.startswith(f"{benchmark}/")]
        tasks = _ordered({row.task for row in group}, known)
        columns = {task: task.removeprefix(f"{benchmark}/") for task in tasks}
        whole = bool(known) and set(tasks) == set(known)
        found.append(
            _layout(f"{benchmark}, {shift}", benchmark, columns, group, True, whole, variants)
        )
    for task, group in curves.items():
        degrees = {str(row.run["shift"]): degree_of(str(row.run["shift"])) or 0.0 for row in group}
        columns = {
            shift: shift.removeprefix("degree:")
            for shift in sorted(degrees, key=lambda s: degrees[s])
        }
        title = f"{task}, by degree of label shift"
        found.append(_layout(title, task.partition("/")[0], columns, group, False, False, variants))
    return found


def reading_order(rows: Sequence[Row]) -> list[Row]:
    """Tasks, variants and methods as the tables have them: the paper's order, what is usual first,
    COAL last."""
    tasks, methods = list(paper_numbers()), method_order()

    def rank(row: Row) -> tuple[int, str, str, str, bool, int]:
        task = tasks.index(row.task) if row.task in tasks else len(tasks)
        return (
            task,
            row.task,
            str(row.run.get("shift", "")),
            row.across,
            row.method == OWN,
            methods.get(row.method, 99),
        )

    return sorted(rows, key=rank)


def _ordered(names: Iterable[str], first: Sequence[str]) -> list[str]:
    rank = {name: i for i, name in enumerate(first)}
    return sorted(names, key=lambda name: (rank.get(name, len(rank)), name))


def _layout(
    title: str,
    benchmark: str,
    columns: Mapping[str, str],
    rows: Sequence[Row],
    averaged: bool,
    whole: bool,
    variants: Sequence[str],
) -> Layout:
    """`columns` gives each task, or each shift, its heading."""
    by_line: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        variant = f"{row.across} reweighted".strip() if row.reweighted else row.across
        key = row.task if averaged else str(row.run["shift"])
        by_line.setdefault((row.method, variant), {})[key] = row
    order = method_order()
    lines = []
    for (method, variant), found in by_line.items():
        cells = tuple(
            _cell(found.get(key), key if averaged else rows[0].task, method, variant)
            for key in columns
        )
        main = whole and all(c.paper for c in cells)
        lines.append(
            Line(method, variant, cells, printed_average(benchmark, method) if main else None)
        )
    place = {name: i for i, name in enumerate(["", *variants])}
    lines.sort(
        key=lambda line: (
            (place.get(line.variant.removesuffix("reweighted").strip(), len(place)), line.variant),
            (line.method == OWN, order.get(line.method, len(order)), line.method),
        )
    )
    notes = tuple(dict.fromkeys(note for row in rows for note in row.notes))
    return Layout(
        title=title,
        benchmark=benchmark,
        columns=tuple(columns.values()),
        lines=tuple(lines),
        averaged=averaged,
        notes=notes,
    )


def _cell(row: Row | None, task: str, method: str, variant: str) -> Cell:
    if row is None:  # the paper's number stands there all the same, where it is sure to be the one
        return Cell(paper=None if variant else paper_numbers().get(task, {}).get(method))
    return Cell(
        row.seeds, row.values, None if row.reweighted else printed_accuracy(row.run), row.ensemble
    )
