"""What a person sees in the terminal: progress on stderr, tables and JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from askew.reports.paper_table import Layout
    from askew.reports.results import Row
    from askew.runs.execute import Execution
    from askew.runs.execute import Progress as Step
    from askew.runs.launch.jobs import Failed, Job, Launcher
    from askew.runs.tune import Result


# A path may hold `:name:` or `[x]`; nothing of it is for rich to interpret.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


class Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Bar) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


def _bars() -> Progress:
    """Progress bars; none where stderr is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[losses]}"),
    )
    return Progress(*columns, console=err, disable=not err.is_terminal, transient=True)


Done = TypeVar("Done")


def watch(work: Generator[Step, None, Done]) -> Done:
    """Show where a piece of work stands, a bar a stage, and return what it returns."""
    with _bars() as bars:
        lines: dict[str, Any] = {}
        while True:
            try:
                step = next(work)
            except StopIteration as end:
                done: Done = end.value
                return done
            if step.key not in lines:
                lines[step.key] = bars.add_task(step.label, total=step.steps, losses="")
            losses = "  ".join(f"{name} {value:.3f}" for name, value in step.losses.items())
            bars.update(lines[step.key], completed=step.step, description=step.label, losses=losses)


def follow(jobs: Sequence[Job], how: Execution, launcher: Launcher, what: str) -> Iterator[Failed]:
    """Carry jobs out under progress bars (none where stderr is no terminal), yielding runs that fail."""
    from askew.runs.execute import Progress as Step
    from askew.runs.launch.jobs import Failed, Finished, launch_jobs

    with _bars() as bars:
        overall = bars.add_task(what, total=sum(len(job.runs) for job in jobs), losses="")
        lines: dict[str, Any] = {}
        for event in launch_jobs(jobs, how, launcher):
            match event:
                case Step():
                    if event.key not in lines:
                        lines[event.key] = bars.add_task(f"  {event.label}", total=event.steps, losses="")
                    losses = "  ".join(f"{name} {value:.3f}" for name, value in event.losses.items())
                    bars.update(lines[event.key], completed=event.step, losses=losses)
                case Finished() | Failed():
                    ended = [k for k in lines if bars.tasks[bars.task_ids.index(lines[k])].finished or k == event.key]
                    for key in ended:
                        bars.remove_task(lines.pop(key))
                    bars.advance(overall)
                    if isinstance(event, Failed):
                        yield event


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; columns of numbers are set to the right."""
    right = [all(_numeric(row[i]) for row in rows) for i in range(len(head))]
    if not out.is_terminal:
        _print_plain(head, rows, right)
        return
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for title, numeric in zip(head, right, strict=True):
        grid.add_column(title, justify="right" if numeric else "left")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    out.print(grid)


def _numeric(cell: str) -> bool:
    """Whether a cell is a number, with or without a sign, or stands for one that is missing."""
    return cell.lstrip("+-−")[:1].isdigit() or cell in ("–", "")


def _print_plain(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """The same into a pipe, which has no width: lines stay whole, and thousands of them take no time."""
    widths = [max(cell_len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, ["─" * width for width in widths], *rows):
        padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [space + cell if r else cell + space for cell, space, r in zip(row, padding, right, strict=True)]
        sys.stdout.write(" " + "   ".join(cells).rstrip() + "\n")


class TableFormat(StrEnum):
    """How a table of results is written."""

    long = "long"
    wide = "wide"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


def print_rows(
    rows: Sequence[Row], as_json: bool, format: TableFormat | None = None, variants: Sequence[str] = ()
) -> None:
    """Results: a row a method and task, the paper's number beside ours; or in the paper's layout."""
    if format in (None, TableFormat.long) or as_json:
        _print_long(rows, as_json)
        return
    from askew.reports import formats
    from askew.reports.paper_table import layouts

    tables = layouts(rows, variants)
    match format:
        case TableFormat.wide:
            for table in tables:
                _print_wide(table)
        case TableFormat.json:
            print_json(formats.as_plain(tables))
        case TableFormat.csv:
            sys.stdout.write(formats.as_csv(tables))
        case TableFormat.latex:
            sys.stdout.write(formats.latex(tables))
        case _:
            sys.stdout.write(formats.markdown(tables))


def _print_wide(table: Layout) -> None:
    """Methods as rows and tasks as columns; the best of our numbers in each column is bold."""
    from askew.reports import formats

    out.print(Text(table.title, "bold"))  # a table's own title would be wrapped to its width
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for i, column in enumerate(formats.heading(table)):
        grid.add_column(Text(column), justify="right" if i else "left", no_wrap=not out.is_terminal)
    best = "\0"  # no name or number begins with it
    for cells in formats.body(table, lambda text: best + text):
        grid.add_row(*(Text(text.removeprefix(best), "bold" if text.startswith(best) else "") for text in cells))
    (out if out.is_terminal else Console(width=1000, highlight=False)).print(grid)
    for line in formats.remarks_of(table):
        out.print(line, soft_wrap=True, markup=False)


def _print_long(rows: Sequence[Row], as_json: bool) -> None:
    from askew.evaluation.metrics import mean
    from askew.reports.paper import paper_numbers
    from askew.reports.results import as_json as rows_as_json
    from askew.reports.results import cell, printed

    if as_json:
        print_json(rows_as_json(rows))
        return
    lines = []
    for row in rows:
        paper = paper_numbers().get(row.task, {}).get(row.method)
        low, high = (mean([interval[side] for interval in row.intervals]) for side in (0, 1))
        lines.append(
            [
                row.task, row.label, str(len(row.seeds)), cell(row.values), f"{low:.1f} – {high:.1f}",
                cell(row.paper_values), printed(paper),
                f"{mean(row.overall):.2f}", f"{mean(row.worst):.1f}",
            ]
        )  # fmt: skip
    head = [
        "task",
        "method",
        "n",
        "whole test part",
        "95 % interval",
        "paper's exam",
        "paper",
        "overall",
        "worst class",
    ]
    print_table(head, lines)
    footer = (
        "Per-class mean accuracy in %, mean ± sample standard deviation over n seeds, after the last round;",
        "interval: bootstrap over the test images, mean over seeds. Overall and worst class: whole test part.",
    )
    for line in footer:
        out.print(line, soft_wrap=True)
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        out.print(f"Note: {note}.", soft_wrap=True)


def print_trials(results: Sequence[Result], winners: Sequence[Result | None], as_json: bool) -> None:
    """What tuning tried: a row a trial, the chosen ones marked."""
    from askew.reports.results import cell

    if as_json:
        print_json(
            [
                {
                    "method": r.trial.method, "origin": r.trial.origin, "hyper": dict(r.trial.hyper),
                    "scores": {task: list(values) for task, values in r.scores.items()},
                    "mean": r.mean, "chosen": r in winners,
                }
                for r in results
            ]
        )  # fmt: skip
        return
    tasks = list(results[0].scores)
    lines = []
    for r in results:
        by_task = [
            cell([v for v in r.scores[t] if v is not None]) + (" (failed)" if None in r.scores[t] else "")
            for t in tasks
        ]
        average = "–" if r.mean is None else f"{r.mean:.2f}"
        mark = "chosen" if r in winners else ""
        lines.append([r.trial.method, r.trial.origin, r.trial.label, *by_task, average, mark])
    print_table(["method", "from", "hyper-parameters", *tasks, "mean", ""], lines)
