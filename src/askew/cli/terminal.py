"""What a command prints: tables, JSON and text on stdout, notes and errors on stderr."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from askew.cli.options import TableFormat, TableOptions
from askew.core.errors import UserError
from askew.core.text import visible, visible_json

if TYPE_CHECKING:
    from askew.reports.paper_table import Layout
    from askew.reports.results import Row
    from askew.runs.store import RunFolder
    from askew.runs.tune import Result


# A path may hold `:name:` or `[x]`; rich must not interpret any of it.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


# --- the streams ---

_OF_STREAMS = (
    errno.EPIPE,
    errno.EINVAL,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EBADF,
    errno.EAGAIN,
)
"""What writing to a pipe, a terminal or a redirected file can end in; EINVAL is the closed pipe of
Windows."""


def open_output() -> None:
    """Make stdout and stderr take any text, whatever their encoding; UserError if stdout is
    closed."""
    if sys.stderr is None:
        # It stays open, or a file would get its number.
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        raise UserError(
            "Standard output is closed, so nothing can be printed.",
            "send it to a file, or to /dev/null.",
        )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def output_error(error: OSError) -> UserError | None:
    """What is wrong with stdout, if the error can be about it; a reader that has seen enough is no
    error."""
    if error.filename is not None or error.errno not in _OF_STREAMS:
        return None
    discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        sys.exit(0)
    return UserError(
        f"Standard output cannot be written: {error.strerror or error}.",
        "finished runs are kept: the same command, or `askew table`, prints their results again.",
    )


def discard(stream: TextIO) -> None:
    """Send the rest of a stream nowhere: Python would fail once more with it, at its end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# --- what is printed ---


def print_text(text: str) -> None:
    """A line on stdout, as it is, but for what could control a terminal."""
    out.print(visible(text), markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    """A line on stderr, likewise; one that takes nothing, such as a log on a full disk, is no
    error."""
    try:
        err.print(visible(text), markup=False, soft_wrap=True)
    except OSError:
        discard(sys.stderr)


def print_json(value: Any, profile: Mapping[str, float] | None = None) -> None:
    """A value as JSON; with a profile, an object of both."""
    if profile:
        value = {
            "results": value,
            "profile": {part: round(seconds, 3) for part, seconds in profile.items()},
        }
    text = visible_json(json.dumps(value, indent=1, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:  # latin-1 or ASCII: escapes of JSON's own
        text = json.dumps(value, indent=1)
    sys.stdout.write(text + "\n")


def print_profile(profile: Mapping[str, float]) -> None:
    """Where the time went, a line for each part that took any, on stderr; nothing without a
    profile."""
    from askew.training.clocks import PARTS

    total = sum(profile.values())
    for part, seconds in profile.items():
        if seconds >= 0.05:
            print_note(f"{seconds:9.1f} s {100 * seconds / total:4.0f} %  {PARTS[part]}")
    if profile:
        print_note(f"{total:9.1f} s in all")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; columns of numbers are right-aligned."""
    head, *rows = [[visible(cell, keep="") for cell in row] for row in (head, *rows)]
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
    """The same into a pipe, which has no width: lines are never wrapped, and thousands of them take
    no time."""
    widths = [max(cell_len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, ["─" * width for width in widths], *rows):
        padding = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [
            space + cell if r else cell + space
            for cell, space, r in zip(row, padding, right, strict=True)
        ]
        sys.stdout.write(" " + "   ".join(cells).rstrip() + "\n")


def print_run(
    folder: RunFolder, reweight: bool, as_json: bool, profile: Mapping[str, float]
) -> None:
    """The scores of one run, and where it is."""
    scores = folder.scores()
    if reweight:
        scores |= {f"{n}, reweighted": s for n, s in folder.scores(reweighted=True).items()}
    if as_json:
        print_json({"key": folder.path.name, "folder": str(folder.path), "scores": scores}, profile)
        return
    print_table(
        ["scored on", "images", "per-class mean", "95 % interval", "overall", "worst class"],
        [
            [
                split.replace("paper", "the paper's test split").replace(
                    "whole", "whole test split"
                ),
                str(s["images"]),
                f"{s['per_class_mean']:.2f}",
                f"{s['interval'][0]:.1f} – {s['interval'][1]:.1f}",
                f"{s['overall']:.2f}",
                f"{s['worst']:.1f} (class {s['worst_class']})",
            ]
            for split, s in scores.items()
        ],
    )
    print_note(f"run {folder.path.name} in {folder.path}")
    print_profile(profile)


def print_results(
    rows: Sequence[Row],
    shown: TableOptions,
    variants: Sequence[str] = (),
    data: Path | None = None,
    profile: Mapping[str, float] | None = None,
) -> None:
    """Results: one row per method and task, the paper's number beside ours; or in the paper's
    layout.

    A profile is only printed within JSON.
    """
    if shown.compare:
        from askew.reports.paired import with_ensembles

        rows = with_ensembles(rows, data)
    format = shown.format or (TableFormat.wide if shown.compare else TableFormat.long)
    if format == TableFormat.long or shown.as_json:
        _print_long(rows, shown.as_json, profile)
        return
    from askew.reports import formats
    from askew.reports.paper_table import layouts

    tables = layouts(rows, variants)
    match format:
        case TableFormat.wide:
            for table in tables:
                _print_wide(table)
                if shown.compare:
                    _print_comparisons(table)
        case TableFormat.json:
            print_json(formats.as_plain(tables), profile)
        case TableFormat.csv:
            sys.stdout.write(formats.as_csv(tables))
        case TableFormat.latex:
            sys.stdout.write(formats.latex(tables))
        case _:
            sys.stdout.write(formats.markdown(tables, compared=shown.compare))


def _print_wide(table: Layout) -> None:
    """Methods as rows and tasks as columns; the best of our numbers in each column is bold."""
    from askew.reports import formats

    out.print(
        Text(visible(table.title), "bold")
    )  # a table's own title would be wrapped to its width
    grid = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for i, column in enumerate(formats.heading(table)):
        grid.add_column(
            Text(visible(column)), justify="right" if i else "left", no_wrap=not out.is_terminal
        )
    best = "\0"  # no name or number begins with it
    for cells in formats.body(table, lambda text: best + text):
        plain = (visible(text.removeprefix(best)) for text in cells)
        grid.add_row(
            *(
                Text(p, "bold" if text.startswith(best) else "")
                for p, text in zip(plain, cells, strict=True)
            )
        )
    (out if out.is_terminal else Console(width=1000, highlight=False)).print(grid)
    for line in formats.notes_of(table):
        print_text(line)


def _print_comparisons(table: Layout) -> None:
    from askew.reports.formats import comparison_body
    from askew.reports.paired import NOTE, comparisons

    found = comparisons(table)
    for comparison in found:
        print_text(f"\n{table.title}. {comparison.title}")
        print_table(["method", *comparison.columns], comparison_body(comparison))
    if found:
        print_text(NOTE)


def _print_long(rows: Sequence[Row], as_json: bool, profile: Mapping[str, float] | None) -> None:
    from askew.reports.results import as_json as rows_as_json

    if as_json:
        print_json(rows_as_json(rows), profile)
        return
    head = [
        "task",
        "method",
        "n",
        "whole test split",
        "95 % interval",
        "paper's test split",
        "paper",
        "overall",
        "worst class",
    ]
    print_table(head, [_long_row(row) for row in rows])
    print_text(
        "Per-class mean accuracy in %, mean ± sample standard deviation over n seeds, after the "
        "last round;\n"
        "interval: bootstrap over the test images, mean over seeds. Overall and worst class: "
        "whole test split."
    )
    for note in dict.fromkeys(note for row in rows for note in row.notes):
        print_text(f"Note: {note}.")


def _long_row(row: Row) -> list[str]:
    from askew.evaluation.metrics import mean
    from askew.reports.paper import paper_numbers
    from askew.reports.results import cell, format_printed

    paper = paper_numbers().get(row.task, {}).get(row.method)
    low, high = (mean([interval[side] for interval in row.intervals]) for side in (0, 1))
    return [
        row.task,
        row.label,
        str(len(row.seeds)),
        cell(row.values),
        f"{low:.1f} – {high:.1f}",
        cell(row.paper_values),
        format_printed(paper),
        f"{mean(row.overall):.2f}",
        f"{mean(row.worst):.1f}",
    ]


def print_trials(
    results: Sequence[Result],
    winners: Sequence[Result | None],
    as_json: bool,
    profile: Mapping[str, float],
) -> None:
    """What tuning tried: one row per trial, the chosen ones marked."""
    from askew.reports.results import cell

    if as_json:
        print_json([_trial_as_json(result, result in winners) for result in results], profile)
        return
    tasks = list(results[0].scores)
    lines = []
    for r in results:
        by_task = [
            cell([v for v in r.scores[t] if v is not None])
            + (" (failed)" if None in r.scores[t] else "")
            for t in tasks
        ]
        average = "–" if r.mean is None else f"{r.mean:.2f}"
        mark = "chosen" if r in winners else ""
        lines.append([r.trial.method, r.trial.origin, r.trial.label, *by_task, average, mark])
    print_table(["method", "from", "hyper-parameters", *tasks, "mean", ""], lines)


def _trial_as_json(result: Result, chosen: bool) -> dict[str, Any]:
    trial = result.trial
    return {
        "method": trial.method,
        "origin": trial.origin,
        "params": dict(trial.params),
        "scores": {task: list(values) for task, values in result.scores.items()},
        "mean": result.mean,
        "chosen": chosen,
    }
