"""The table of all methods, and paired differences over the same seeds, from the values that
results/ keeps.

    python benchmarks/studies/differences.py results/digits/values.json
    today=results/teacher/values.json

A file is the paper's recipe, or NAME=FILE another one. Its `rows` have a task, a method (`teacher`
where none is named) and `whole`, one value per seed from 0 on; `ensemble`, if it is there, is the
score of the seeds' networks averaged, and `setting` what is not the recipe's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from askew.reports.formats import markdown
from askew.reports.paper import method_order, paper_numbers
from askew.reports.paper_table import Cell, Layout, Line

Values = dict[tuple[str, str, str], Cell]
"""By recipe, method and task."""


def read(argument: str) -> Values:
    recipe, _, file = argument.rpartition("=")
    found: Values = {}
    for row in json.loads(Path(file).read_text())["rows"]:
        if row.get("run", "reported") != "reported" or row.get("variant", "full") != "full":
            continue  # a development run, or one of its variants
        method, seeds = (
            row.get("method", "teacher"),
            tuple(row.get("seeds", range(len(row["whole"])))),
        )
        variant = f"{recipe} {row.get('setting', '')}".strip()
        paper = None if variant else paper_numbers().get(row["task"], {}).get(method)
        found[variant, method, row["task"]] = Cell(
            seeds, tuple(row["whole"]), paper, row.get("ensemble")
        )
    return found


def layout(values: Values, tasks: Iterable[str]) -> Layout:
    """The table in the paper's layout, recipes one below the other."""
    columns, order = tuple(tasks), method_order()
    names = sorted(
        {(recipe, method) for recipe, method, _ in values},
        key=lambda name: (
            name[0] != "",
            name[0],
            name[1] == "coal",
            order.get(name[1], len(order)),
            name[1],
        ),
    )
    lines = [
        Line(
            method,
            recipe,
            tuple(values.get((recipe, method, f"digits/{task}"), Cell()) for task in columns),
            None,
        )
        for recipe, method in names
    ]
    return Layout(
        title="digits, rs-ut",
        benchmark="digits",
        columns=columns,
        lines=tuple(lines),
        averaged=True,
        notes=(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="[NAME=]FILE")
    parser.add_argument(
        "--tasks", default="usps-mnist,mnist-usps,svhn-mnist,syn-mnist", help="columns of the table"
    )
    options = parser.parse_args()
    values: Values = {}
    for file in options.files:
        values |= read(file)
    sys.stdout.write(markdown([layout(values, options.tasks.split(","))], compared=True))


if __name__ == "__main__":
    main()
