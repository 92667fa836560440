"""Tables in the paper's layout as text: Markdown, CSV, LaTeX, and plain values for JSON."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from askew.core.text import csv_cell
from askew.evaluation.metrics import mean
from askew.reports.paired import NOTE, Comparison, Difference, comparisons
from askew.reports.paper_table import Layout, Line
from askew.reports.results import cell, std

Mark = Callable[[str], str]


def heading(table: Layout) -> list[str]:
    head = ["method", *table.columns]
    if table.has_average:
        head.append("average")
    if table.has_ensemble:
        head.append("ensemble")
    if table.has_average:
        if table.has_paper:
            head.append("paper, same tasks")
        if table.has_printed:
            head.append("paper, printed")
    return head


def body(table: Layout, best: Mark = str, plain: Mark = str) -> list[list[str]]:
    """The cells as text; `best` marks the highest of our numbers in each column, `plain` all other
    text."""
    lines = []
    for line in table.lines:
        cells = [plain(line.label)]
        for i, c in enumerate(line.cells):
            mark = best if c.values and line.score(i) == table.best(i) else plain
            cells.append(mark(table.cell_text(c)))
        if table.has_average:
            mark = best if line.averages and line.score(None) == table.best(None) else plain
            cells.append(mark(cell(line.averages)))
        if table.has_ensemble:
            cells.append(_number(line.ensemble))
        if table.has_average:
            if table.has_paper:
                cells.append(_number(line.paper_average))
            if table.has_printed:
                cells.append(_number(line.printed))
        lines.append(cells)
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def markdown(tables: Sequence[Layout], *, compared: bool = False) -> str:
    parts = []
    for table in tables:
        rows = body(table, lambda text: f"**{_markdown(text)}**", _markdown)
        lines = _pipes([_markdown(title) for title in heading(table)], rows)
        notes = "\n".join(f"- {_markdown(text)}" for text in notes_of(table))
        parts.append(f"## {_markdown(table.title)}\n\n{lines}\n\n{notes}\n")
        for found in comparisons(table) if compared else ():
            rows = [[_markdown(text) for text in row] for row in comparison_body(found)]
            head = [_markdown(title) for title in ("method", *found.columns)]
            parts.append(
                f"### {_markdown(found.title)}\n\n{_pipes(head, rows)}\n\n- {_markdown(NOTE)}\n"
            )
    return "\n".join(parts)


def _pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def comparison_body(found: Comparison) -> list[list[str]]:
    """A comparison's cells as text."""
    return [[label, *("–" if d is None else str(d) for d in cells)] for label, cells in found.rows]


def _markdown(text: str) -> str:
    """A name may hold anything: no character of it may end a cell, begin emphasis or a tag."""
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", " ".join(text.split()))


def latex(tables: Sequence[Layout]) -> str:
    parts = ["% needs \\usepackage{booktabs}"]
    for table in tables:
        head = [_latex(title) for title in heading(table)]
        rows = body(table, lambda text: f"\\textbf{{{_latex(text)}}}", _latex)
        caption = _latex(" ".join([f"{table.title}.", *notes_of(table)]))
        lines = [
            "\\begin{table}",
            "\\centering",
            f"\\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            "\\toprule",
            " & ".join(head) + r" \\",
            "\\midrule",
            *(" & ".join(cells) + r" \\" for cells in rows),
            "\\bottomrule",
            "\\end{tabular}",
            f"\\caption{{{caption}}}",
            "\\end{table}",
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "↔": r"$\leftrightarrow$",
    "→": r"$\to$",
    "…": r"\dots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
} | {c: f"\\{c}" for c in "&%$#_"}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(c, c) for c in text)


def notes_of(table: Layout) -> list[str]:
    return [*table.summary(), *(f"Note: {note}." for note in table.notes)]


def as_csv(tables: Sequence[Layout]) -> str:
    """One line per cell, so that any number of tables is one file with one header; averages are
    cells too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "table",
            "method",
            "variant",
            "column",
            "n",
            "mean",
            "spread",
            "paper",
            "paper_spread",
            "paper_printed",
        ]
    )
    for table in tables:
        for line in table.lines:
            for column, value in _values(table, line).items():
                paper = value["paper"] or [None, None]
                known = (value["mean"], value["spread"], *paper, value.get("paper_printed"))
                numbers = ["" if number is None else f"{number:.4f}" for number in known]
                texts = map(csv_cell, (table.title, line.method, line.variant, column))
                writer.writerow([*texts, value["n"], *numbers])
    return text.getvalue()


def as_plain(tables: Sequence[Layout]) -> list[dict[str, Any]]:
    """Tables as plain values, for JSON."""
    return [
        {
            "table": table.title,
            "benchmark": table.benchmark,
            "columns": list(table.columns),
            "lines": [
                {"method": line.method, "variant": line.variant, "cells": _values(table, line)}
                for line in table.lines
            ],
            "paired": {
                found.title: {
                    label: dict(zip(found.columns, _plain(cells), strict=True))
                    for label, cells in found.rows
                }
                for found in comparisons(table)
            },
            "notes": notes_of(table),
        }
        for table in tables
    ]


def _values(table: Layout, line: Line) -> dict[str, dict[str, Any]]:
    values = {
        column: _value(c.values, list(c.paper) if c.paper else None, len(c.seeds))
        | {"ensemble": c.ensemble}
        for column, c in zip(table.columns, line.cells, strict=True)
    }
    if table.has_average:
        paper = None if line.paper_average is None else [line.paper_average, None]
        fewest = min(len(c.seeds) for c in line.cells)
        average = {"paper_printed": line.printed, "ensemble": line.ensemble}
        values["average"] = _value(line.averages, paper, fewest) | average
    return values


def _value(values: Sequence[float], paper: list[float | None] | None, n: int) -> dict[str, Any]:
    return {
        "n": n,
        "mean": mean(values) if values else None,
        "spread": std(values),
        "values": list(values),
        "paper": paper,
    }


def _plain(cells: Sequence[Difference | None]) -> list[dict[str, Any] | None]:
    return [
        None if d is None else {"mean": d.mean, "half": d.half, "n": d.n, "clear": d.clear}
        for d in cells
    ]
