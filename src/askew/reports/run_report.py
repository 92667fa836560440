"""The report of a folder of runs, as one page: tables, findings, classes, label distributions,
curves, settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from askew.core.errors import UserError
from askew.data.label_distribution import LabelDistributions
from askew.evaluation.metrics import mean
from askew.reports import formats, svg
from askew.reports.features import task_of
from askew.reports.findings import run_findings, unfinished_runs
from askew.reports.html import (
    MISSING,
    Cell,
    Cells,
    Chart,
    Table,
    interval,
    mean_cell,
    number,
    render,
    settings_table,
    training_curves,
)
from askew.reports.paired import NOTE, Comparison, comparisons, with_ensembles
from askew.reports.paper import paper_numbers
from askew.reports.paper_table import REFERENCE, Layout, Line, layouts, reading_order
from askew.reports.results import Row, cell, collect, format_printed, std
from askew.runs.root import finished_runs
from askew.runs.store import RunFolder


def make_report(root: Path, data: Path | None = None) -> str:
    """The whole page, as text."""
    folders = finished_runs(root)
    if not folders:
        raise UserError(
            f"The folder {root} holds no finished run yet.", "`askew bench` makes some."
        )
    rows = [_with_ensemble(row, data) for row in reading_order(collect(folders))]
    unfinished = unfinished_runs(root)
    benchmarks: dict[str, list[Row]] = {}
    for row in rows:
        benchmarks.setdefault(row.task.partition("/")[0], []).append(row)
    facts = {
        "finished run": len(folders),
        "unfinished run": len(unfinished),
        "task": len({row.task for row in rows}),
        "method": len({row.method for row in rows}),
        "seed": max(len(row.seeds) for row in rows),
    }
    return render(
        "run_report.html.j2",
        title=", ".join(benchmarks),
        facts={name if n == 1 else f"{name}s": f"{n:,}" for name, n in facts.items()},
        findings=run_findings(rows, unfinished),
        benchmarks={name: _benchmark(its_rows, data) for name, its_rows in benchmarks.items()},
    )


def _benchmark(rows: Sequence[Row], data: Path | None) -> dict[str, Any]:
    """What the page shows of one benchmark."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.task}, {row.run['shift']}", []).append(row)
    return {
        "results": [_result(layout) for layout in layouts(rows)],
        "compared_note": NOTE,
        "rows": _all_rows(rows),
        "by_class": [_by_class(title, group) for title, group in groups.items()],
        "distributions": [
            found
            for title, group in groups.items()
            if (found := _distributions(title, group, data))
        ],
        "training": {
            title: cards for title, group in groups.items() if (cards := _training(group))
        },
        "settings": [(row, cell(row.values), _runs(row), settings_table(row.run)) for row in rows],
    }


# --- results ---


def _result(layout: Layout) -> dict[str, Any]:
    """A table in the paper's layout with its chart and notes; a score below source-only of its
    variant is marked."""
    reference = {line.variant: line for line in layout.lines if line.method == REFERENCE}
    rows: list[Cells] = [
        [line.label, *_cells(layout, line, reference.get(line.variant))] for line in layout.lines
    ]
    notes = layout.summary(bracketed=False)
    if any(isinstance(c, Cell) and "below" in c.kind for row in rows for c in row):
        notes.append("▾: below source-only of the same variant.")
    table = Table(layout.title, formats.heading(layout), rows)
    return {
        "table": table,
        "chart": _chart(layout),
        "notes": [*notes, *(f"Note: {note}." for note in layout.notes)],
        "compared": [_comparison_table(found) for found in comparisons(layout)]
        if layout.usual_n > 1
        else [],
    }


def _comparison_table(found: Comparison) -> Table:
    rows: list[Cells] = [
        [
            label,
            *(
                MISSING if d is None else Cell(text=str(d), key=f"{d.mean:.4f}")
                for d in differences
            ),
        ]
        for label, differences in found.rows
    ]
    return Table(found.title, ["method", *found.columns], rows)


def _with_ensemble(row: Row, data: Path | None) -> Row:
    """A row with the score of its networks' mean, where its labels are at hand: the mini
    benchmark's always are."""
    at_hand = data is not None or row.task.startswith("mini/")
    return with_ensembles([row], data)[0] if at_hand else row


def _cells(layout: Layout, line: Line, reference: Line | None) -> Iterator[Cell]:
    for i, c in enumerate(line.cells):
        fewer = f"n={len(c.values)}" if len(c.values) < layout.usual_n else ""
        paper = None if c.paper is None else c.paper[0]
        yield mean_cell(c.values, after=fewer, paper=paper, kind=_marks(layout, line, reference, i))
    if layout.has_average:
        yield mean_cell(line.averages, kind=_marks(layout, line, reference, None))
    if layout.has_ensemble:
        yield number(line.ensemble)
    if layout.has_average:
        if layout.has_paper:
            yield number(line.paper_average)
        if layout.has_printed:
            yield number(line.printed)


def _marks(layout: Layout, line: Line, reference: Line | None, column: int | None) -> str:
    score = line.score(column)
    base = None if reference is None else reference.score(column)
    best = score is not None and score == layout.best(column)
    below = score is not None and base is not None and score < base
    return " ".join(mark for mark, holds in (("best", best), ("below", below)) if holds)


def _chart(layout: Layout) -> Chart:
    """The averages over tasks, or the only column; where columns are degrees of label shift, one
    curve per method."""
    if not layout.averaged:
        ours, paper_too = layout.degree_points()
        note = "Accuracy against the degree of label shift (1: RS-UT)." + (
            " Rings: the paper." if paper_too else ""
        )
        return Chart(svg.curves(ours, paper_too, f"{layout.title}: accuracy by method"), note)
    column = None if layout.has_average else 0
    shown = []
    for line in layout.lines:
        values = line.averages if column is None else line.cells[column].values
        printed_there = line.cells[0].paper
        only = None if printed_there is None else printed_there[0]
        paper = line.paper_average if column is None else only
        if values or paper is not None:
            shown.append((line.label, mean(values) if values else None, std(values), paper))
    source = next((line.score(column) for line in layout.lines if line.label == REFERENCE), None)
    what = "average over tasks" if column is None else layout.columns[0]
    legend = {"c0": f"{what}, ± standard deviation over seeds"}
    if any(paper is not None for *_, paper in shown):
        legend["c1"] = "paper"
    return Chart(
        svg.dots(shown, source, f"{layout.title}: {what} by method"), "Dashed: source-only.", legend
    )


def _all_rows(rows: Sequence[Row]) -> Table:
    head = [
        "task",
        "method",
        "shift",
        "n",
        "whole test split",
        "95 % interval",
        "the paper's test split",
        "paper",
        "overall",
        "worst class",
        "seeds",
    ]
    lines: list[Cells] = []
    for row in rows:
        low, high = (mean([ends[side] for ends in row.intervals]) for side in (0, 1))
        paper = None if row.across else paper_numbers().get(row.task, {}).get(row.method)
        seeds = " ".join(f"{value:.1f}" for value in row.values)
        lines.append(
            [
                row.task,
                row.line,
                str(row.run["shift"]),
                number(len(row.seeds), 0),
                mean_cell(row.values),
                interval(low, high),
                mean_cell(row.paper_values),
                Cell(text=format_printed(paper), key="" if paper is None else f"{paper[0]:.4f}"),
                number(mean(row.overall)),
                number(mean(row.worst), 1),
                Cell(text=seeds, key=seeds),
            ]
        )
    return Table(
        "Every method and task; interval: bootstrap over the test images, mean over seeds",
        head,
        lines,
    )


# --- classes and label distributions ---


def class_accuracy(row: Row) -> tuple[list[str], list[float | None]]:
    """The classes, and the accuracy in each as a mean over seeds; none for a class without test
    images."""
    scores = [RunFolder(folder).scores()["whole"].get("per_class", []) for folder in row.folders]
    values = [
        None if any(v is None for v in seeds) else mean(seeds)
        for seeds in zip(*scores, strict=True)
    ]
    return _classes(row, len(values)), values


def _classes(row: Row, n: int) -> list[str]:
    """The names of a run's classes; numbers where its record has none."""
    return list(RunFolder(row.folders[0]).record().get("classes", map(str, range(n))))


def _by_class(title: str, rows: Sequence[Row]) -> Table:
    found = [(row, *class_accuracy(row)) for row in rows]
    lines: list[Cells] = [
        [row.line, *(number(v, 1, heat=True) for v in values)] for row, _, values in found
    ]
    caption = f"{title}: accuracy in % by class, whole test split, mean over seeds"
    return Table(caption, ["method", *found[0][1]], lines, kind="heat")


def _distributions(title: str, rows: Sequence[Row], data: Path | None) -> dict[str, Any] | None:
    """The label distributions of both domains, and the target's as each method leads to estimate
    it."""
    scores = RunFolder(rows[0].folders[0]).scores()
    confusion = scores.get("paper", scores["whole"]).get("confusion")
    if confusion is None:
        return None
    target = _percent(np.array(confusion).sum(axis=1))
    classes = _classes(rows[0], len(target))
    note = "Share of each class in %. Target: by its test labels, which no training uses."
    series = {"target": target}
    try:
        series = {"source": _percent(_of_task(rows[0], data).source), **series}
    except UserError as error:
        note += f" The source is not shown: {error.sentence}"
    drawing = svg.bars(series, classes, f"{title}: share of each class in %")
    chart = Chart(drawing, note, {f"c{i}": name for i, name in enumerate(series)})
    return {"title": title, "chart": chart, "estimates": _estimates(title, rows, classes, series)}


def _of_task(row: Row, data: Path | None) -> LabelDistributions:
    """The mini benchmark is always at hand; reading the data of others can take minutes, and is
    done on request."""
    if data is None and not row.task.startswith("mini/"):
        raise UserError("no data folder was named with --data.", "name it.")
    return LabelDistributions.of(task_of(row.run, data))


def _percent(counts: Any) -> list[float]:
    total = float(np.sum(counts)) or 1.0
    return [100 * float(n) / total for n in counts]


def _estimates(
    title: str, rows: Sequence[Row], classes: Sequence[str], labels: dict[str, list[float]]
) -> Table | None:
    """Estimated label distributions of the target, below those of the labels; none where no run has
    an estimate."""
    estimated = {}
    for row in rows:
        estimates = [
            found["target_shares"]
            for folder in row.folders
            if (found := RunFolder(folder).reweighting())
        ]
        if estimates:
            estimated[row.line] = _percent(np.mean(estimates, axis=0))
    if not estimated:
        return None
    lines: list[Cells] = []
    for name, shares in [
        *((f"{domain} (labels)", labels[domain]) for domain in labels),
        *estimated.items(),
    ]:
        distance = float(np.abs(np.subtract(shares, labels["target"])).sum()) / 2
        lines.append(
            [name, number(distance, 1), *(number(share, 1, heat=True) for share in shares)]
        )
    caption = (
        f"{title}: label distribution of the target, estimated without target labels, in %, "
        "mean over seeds"
    )
    return Table(caption, ["estimated by", "total variation", *classes], lines, kind="heat")


# --- training and settings ---


def _training(rows: Sequence[Row]) -> dict[str, Any]:
    """The curves of each method, where its runs have a trace."""
    traces = {
        row.line: [trace for folder in row.folders if (trace := RunFolder(folder).trace())]
        for row in rows
    }
    return {
        name: charts
        for name, its_traces in traces.items()
        if (charts := training_curves(its_traces))
    }


def _runs(row: Row) -> Table:
    lines: list[Cells] = []
    for seed, folder, value in zip(row.seeds, row.folders, row.values, strict=True):
        record = RunFolder(folder).record()
        seconds = next(
            (entry.get("seconds") for entry in reversed(RunFolder(folder).trace())), None
        )
        versions = " ".join(
            f"{name} {version}" for name, version in record.get("versions", {}).items()
        )
        lines.append(
            [
                str(seed),
                folder.name,
                number(value),
                number(seconds, 0),
                str(record.get("device", "–")),
                versions,
            ]
        )
    return Table("Runs", ["seed", "key", "per-class mean", "seconds", "device", "versions"], lines)
