"""Columns of features in a table: found by their type, and matched between tables by their name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError

LABEL_COLUMNS = ("label", "labels", "class", "y")
"""Usual names of the column of labels; the first that a table has is taken."""

_SHOWN = 5  # names of columns in a message
_NUMBERS = ["number", "bool"]
_NO_NUMBERS = ["complexfloating", "timedelta"]


def is_frame(given: Any) -> bool:
    """Tell whether something is a table with named columns: of pandas, polars or pyarrow."""
    pandas = hasattr(given, "columns") and hasattr(given, "iloc")
    other = hasattr(given, "to_pandas") and not hasattr(given, "features")
    return pandas or other


def as_frame(given: Any) -> Any:
    """Convert a table to a DataFrame of pandas whose column names are texts that differ."""
    frame = given if hasattr(given, "iloc") else given.to_pandas()
    names = [str(name) for name in frame.columns]
    require_distinct(names, "The table")
    return frame.set_axis(names, axis=1)


def require_distinct(names: Sequence[str], what: str) -> None:
    """Raise a UserError if two columns have the same name."""
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise UserError(f"{what} has two columns '{twice[0]}'.", "rename or remove one of them.")


def numbers_of(frame: Any) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Give the columns of numbers of a DataFrame, and their names. (n, d), (d,)

    Truth values are numbers too, such as those that `pandas.get_dummies` makes.
    """
    numeric = frame.infer_objects().select_dtypes(include=_NUMBERS, exclude=_NO_NUMBERS)
    x: NDArray[np.float64] = numeric.to_numpy(np.float64, na_value=np.nan)
    return x, tuple(numeric.columns)


def in_order_of(
    wanted: Sequence[str], found: Sequence[str], place: str, origin: str
) -> list[int] | None:
    """Say where each wanted column is among those found; None if either has no names.

    Args:
        wanted: names of the columns in the order of the model or the source.
        found: names of the columns in the table at `place`.
        place: the table, as a message names it.
        origin: what wants the columns, as a message names it.
    """
    if not wanted or not found or tuple(wanted) == tuple(found):
        return None
    missing = [name for name in wanted if name not in set(found)]
    extra = [name for name in found if name not in set(wanted)]
    if missing or extra:
        lacks = f"lacks {_named(missing)} of {origin}" if missing else ""
        more = f"has {_named(extra)}, which {origin} does not have" if extra else ""
        raise UserError(
            f"{place} {' and '.join(part for part in (lacks, more) if part)}.",
            "columns of numbers are matched by name, in any order: add, rename or drop columns so "
            "that the names agree.",
        )
    place_of = {name: k for k, name in enumerate(found)}
    return [place_of[name] for name in wanted]


def rows_of(given: Any, wanted: Sequence[str], origin: str) -> NDArray[np.float64]:
    """Give the numbers of a table, its columns in the wanted order, without a column of labels."""
    frame = as_frame(given)
    label = next((name for name in LABEL_COLUMNS if name in frame.columns), None)
    if label is not None and label not in wanted:
        frame = frame.drop(columns=[label])
    x, found = numbers_of(frame)
    order = in_order_of(wanted, found, "The table", origin)
    return x if order is None else x[:, order]


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the column{'s' if len(names) > 1 else ''} {shown}{more}"
