"""Write the package's tree, its largest files and its longest functions into docs/architecture.md.

python docs/update_architecture.py
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "askew"
PAGE = ROOT / "docs" / "architecture.md"
TOP = 5


def tree(folder: Path, depth: int = 2) -> list[str]:
    """What `LC_ALL=C tree -L 2 --noreport -I __pycache__` prints below the folder's own line."""
    lines = []
    entries = sorted(path for path in folder.iterdir() if path.name != "__pycache__")
    for path in entries:
        tip, stem = ("└── ", "    ") if path == entries[-1] else ("├── ", "│   ")
        lines.append(tip + path.name)
        if path.is_dir() and depth > 1:
            lines += [stem + line for line in tree(path, depth - 1)]
    return lines


def sizes() -> str:
    """Two Markdown tables: the largest files and the longest functions."""
    files = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    lengths = [(len(text.splitlines()), str(path)) for path, text in files.items()]
    functions = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path}: {node.name}")
        for path, text in files.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    return f"{_table('largest files', lengths)}\n\n{_table('longest functions', functions)}\n"


def _table(head: str, rows: Iterable[tuple[int, str]]) -> str:
    largest = sorted(rows, reverse=True)[:TOP]
    return "\n".join(
        [
            f"| {head} | lines |",
            "|---|---|",
            *(f"| `{name}` | {lines} |" for lines, name in largest),
        ]
    )


def main() -> None:
    text = PAGE.read_text()
    shown = "\n".join(["src/askew", *tree(PACKAGE)])
    text = re.sub(r"^```text\n.*?^```", lambda _: f"```text\n{shown}\n```", text, flags=re.M | re.S)
    PAGE.write_text(text[: text.index("| largest files |")] + sizes())


if __name__ == "__main__":
    main()
