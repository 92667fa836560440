"""Commands that draw: figure, report."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.common import app, names
from askew.cli.options import BENCHMARKS, AsJson, Data
from askew.cli.terminal import print_json, print_note
from askew.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from askew.data.task import Task
    from askew.reports.results import Row


class Kind(StrEnum):
    """What a figure shows."""

    mix = "mix"
    samples = "samples"
    degree = "degree"
    classes = "classes"
    features = "features"


RUNS = Path("runs")


@app.command(rich_help_panel=BENCHMARKS)
def figure(
    kind: Annotated[
        Kind,
        typer.Argument(
            help="mix: label distributions; samples: images; degree: accuracy over the degree "
            "of label shift; classes: "
            "accuracy per class; features: t-SNE."
        ),
    ],
    folder: Annotated[Path | None, typer.Argument(help="Folder of runs; default: runs.")] = None,
    file: Annotated[Path, typer.Option("-o", "--out", help="A .png, .svg or .pdf file.")] = Path(
        "figure.svg"
    ),
    tasks: Annotated[
        str, typer.Option("--tasks", help="Tasks, separated by commas; default: all in the folder.")
    ] = "",
    methods: Annotated[
        str,
        typer.Option("--methods", help="Methods, separated by commas; default: all in the folder."),
    ] = "",
    seed: Annotated[
        int, typer.Option("--seed", help="features: the run with this seed.", min=0)
    ] = 0,
    most: Annotated[
        int, typer.Option("--images", help="features: most images per domain.", min=10)
    ] = 1000,
    shift: Annotated[
        str,
        typer.Option("--shift", help="Label shift of tasks without runs; default: as published."),
    ] = "",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Draw a figure; mix and samples need no runs if --tasks names tasks."""
    from askew.reports import figures, task_figures

    figures.check_figure(file)
    wanted = names(tasks)
    if kind in (Kind.mix, Kind.samples):
        found = _tasks(folder, wanted, shift, data)
        drawn = (
            task_figures.label_distributions(found)
            if kind is Kind.mix
            else task_figures.sample_images(found)
        )
    else:
        rows = _rows(folder or RUNS, wanted, names(methods))
        if kind is Kind.degree:
            drawn = figures.by_degree(rows)
        elif kind is Kind.classes:
            drawn = _classes(rows)
        else:
            drawn = _features(rows, seed, most, data)
    figures.save(drawn, file)
    _print_path("figure", file, as_json)


def _rows(folder: Path, tasks: list[str], methods: list[str]) -> list[Row]:
    from askew.reports.results import collect
    from askew.runs.root import finished_runs

    rows = [
        row
        for row in collect(finished_runs(folder))
        if (not tasks or row.task in tasks) and (not methods or row.method in methods)
    ]
    if not rows:
        raise UserError(
            f"The folder {folder} holds no such finished run.", "`askew table` shows what it holds."
        )
    return rows


def _tasks(
    folder: Path | None, wanted: list[str], shift: str, data: Path | None
) -> dict[str, Task]:
    from askew.data.benchmarks import load_task
    from askew.reports.features import task_of

    if wanted and folder is None:
        return {name: load_task(name, shift, data=data) for name in wanted}
    found = {}
    for row in _rows(folder or RUNS, wanted, []):
        name = (
            row.task
            if row.run["shift"] in ("rs-ut", "natural")
            else f"{row.task} {row.run['shift']}"
        )
        if name not in found:
            found[name] = task_of(row.run, data)
    return found


def _one_task(rows: list[Row]) -> None:
    found = list(dict.fromkeys(f"{row.task} under {row.run['shift']}" for row in rows))
    if len(found) > 1:
        raise UserError(
            f"A figure of this kind shows one task, found {len(found)}: {', '.join(found[:4])}.",
            "choose one with --tasks.",
        )


def _classes(rows: list[Row]) -> Figure:
    from askew.reports.figures import by_class
    from askew.reports.run_report import class_accuracy

    _one_task(rows)
    accuracy = {row.label: class_accuracy(row) for row in rows}
    return by_class(
        rows, {label: values for label, (_, values) in accuracy.items()}, accuracy[rows[0].label][0]
    )


def _features(rows: list[Row], seed: int, most: int, data: Path | None) -> Figure:
    from askew.reports.features import features_of, task_of
    from askew.reports.figures import feature_map

    _one_task(rows)
    chosen = [(row, row.folders[row.seeds.index(seed)]) for row in rows if seed in row.seeds]
    if not chosen:
        raise UserError(f"No run there has seed {seed}.", "choose another with --seed.")
    if len(chosen) > 6:
        raise UserError(
            f"{len(chosen)} runs do not fit side by side.", "choose at most six with --methods."
        )
    task = task_of(rows[0].run, data)
    found = {row.label: features_of(folder, row.run, task, most) for row, folder in chosen}
    return feature_map(found, task.training_data.classes, f"{task.name}, seed {seed}")


@app.command(rich_help_panel=BENCHMARKS)
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = RUNS,
    file: Annotated[Path, typer.Option("-o", "--out", help="The HTML file to write.")] = Path(
        "report.html"
    ),
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about a folder of runs: tables, findings, curves and settings."""
    from askew.core.files import check_file, write_bytes
    from askew.reports.run_report import make_report

    check_file(file)
    write_bytes(file, make_report(folder, data).encode())
    _print_path("report", file, as_json)


def _print_path(what: str, file: Path, as_json: bool) -> None:
    if as_json:
        print_json({what: str(file)})
    else:
        print_note(f"{what} in {file}")
