"""Print the largest files and functions of the package as two Markdown tables: python docs/sizes.py [--top 5]."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "askew"


def table(head: str, rows: Iterable[tuple[int, str]], top: int) -> str:
    largest = sorted(rows, reverse=True)[:top]
    return "\n".join([f"| {head} | lines |", "|---|---|", *(f"| `{name}` | {lines} |" for lines, name in largest)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=5)
    top = parser.parse_args().top
    files = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    functions = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}: {node.name}")
        for path, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    lengths = [(len(text.splitlines()), str(path)) for path, text in files.items()]
    print(table("largest files", lengths, top), end="\n\n")
    print(table("longest functions", functions, top))


if __name__ == "__main__":
    main()
