"""Tables for those who work in Python: as DataFrames, and as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from askew.core.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(*args: Any, **more: Any) -> DataFrame:
    """A DataFrame; UserError without pandas."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise UserError(
            "A table needs pandas, which is not installed.", "pip install 'askew[pandas]'."
        ) from None
    return DataFrame(*args, **more)


def html_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain table, every cell escaped."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
