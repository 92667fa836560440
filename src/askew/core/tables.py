"""Tables for those who work in Python: as DataFrames, and as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(*args: Any, **more: Any) -> DataFrame:
    """Make a DataFrame."""
    from pandas import DataFrame  # its import takes half a second, and few commands need it

    return DataFrame(*args, **more)


def html_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table, every cell escaped."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
