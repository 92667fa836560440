"""Images or rows of features in a .npy, .npz or .parquet file, or in an array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.data.domains import require_finite
from askew.data.feature_columns import LABEL_COLUMNS, in_order_of, require_distinct

ARRAYS = frozenset((".npy", ".npz", ".parquet"))

_LARGEST = 2**64  # of labels that are numbers: more is a mistake, and may have thousands of digits

_FORM = (
    "uint8 images (n, h, w), (n, h, w, 1 or 3) or (n, 1 or 3, h, w), or rows of numbers (n, d); "
    "in a .npz as x, "
    "with their labels as y."
)


@dataclass(frozen=True, eq=False)
class Arrays:
    """Images uint8 (n, c, h, w) or rows float32 (n, d), and their labels as the file has them."""

    x: NDArray[Any]
    y: NDArray[Any] | None
    columns: tuple[str, ...] = ()
    """Names of the columns of rows; empty where the file names none. (d,)"""

    def in_order_of(self, wanted: Sequence[str], place: Path, origin: str) -> NDArray[Any]:
        """Give the array with its columns in the wanted order; UserError if the names differ."""
        order = in_order_of(wanted, self.columns, str(place), origin)
        return self.x if order is None else np.ascontiguousarray(self.x[:, order])


def read_array(file: Path) -> Arrays:
    """Read and check an array file; nothing in it is ever unpickled."""
    if file.suffix.lower() == ".parquet":
        x, y, columns = _parquet(file)
    else:
        x, y = _numpy(file)
        columns = ()
    return Arrays(known_array(x, file), y, columns)


def known_array(x: NDArray[Any], place: Path) -> NDArray[Any]:
    """Images uint8 (n, c, h, w) or rows float32 (n, d) from an array; UserError if it is empty, or
    neither."""
    images = as_images(x)
    known = as_rows(x, f" in {place}") if images is None else images
    if known is None:
        raise UserError(f"The array in {place} is {x.dtype} of shape {x.shape}.", _FORM)
    if not known.size:
        raise UserError(f"The array in {place} is empty.", _FORM)
    return known


def _numpy(file: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    try:
        with file.open("rb") as content:
            loaded = np.load(content, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded, None
            if "x" not in loaded:
                raise UserError(
                    f"{file} holds {', '.join(loaded) or 'nothing'}, and no array x.", _FORM
                )
            arrays = {name: loaded[name] for name in ("x", "y") if name in loaded}
            for name, member in arrays.items():
                if not isinstance(member, np.ndarray):  # np.load gives the bytes of other members
                    raise UserError(f"The member {name} of {file} is no array of NumPy's.", _FORM)
            return arrays["x"], arrays.get("y")
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        objects = "allow_pickle" in str(error)
        why = (
            "is no array of NumPy's, or holds Python objects, which are never loaded"
            if objects
            else f"cannot be read: {_reason(error)}"
        )
        raise UserError(f"The array file {file} {why}.", _FORM) from None


def _reason(error: Exception) -> str:
    """What a decoder says, in one line and without a full stop."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


Table = tuple[NDArray[Any], NDArray[Any] | None, tuple[str, ...]]
"""An array, labels where there are some, and the names of the array's columns."""


def _parquet(file: Path) -> Table:
    """A column x of lists, or every column of numbers; labels are in a column label, class or y."""
    try:
        from pyarrow import parquet
    except ImportError:
        raise UserError(
            "A .parquet file needs pyarrow, which is not installed.",
            "pip install 'askew[parquet]'.",
        ) from None
    try:
        table = parquet.read_table(file)
        require_distinct(table.column_names, str(file))
        name = next((n for n in LABEL_COLUMNS if n in table.column_names), None)
        y = None if name is None else np.array(table.column(name).to_pylist(), dtype=object)
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail anywhere in its decoder
        raise UserError(
            f"The parquet file {file} cannot be read: {_reason(error)}.", "write it again."
        ) from None
    try:
        x, columns = _features(table, [n for n in table.column_names if n != name])
    except (
        Exception
    ):  # ragged, empty or of other things than numbers: pyarrow and NumPy have many words for it
        raise UserError(
            f"The columns of {file} are not rows of equally many numbers.",
            "every row needs as many numbers.",
        ) from None
    if x is None:
        raise UserError(
            f"The parquet file {file} has no column of numbers.",
            "give a column x of lists, or one column per feature.",
        )
    return x, y, columns


def _features(table: Any, names: Sequence[str]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """The column x of lists, which has no names, or every column of numbers; None without any."""
    if "x" in names and not _is_number(table.schema.field("x").type):
        return np.array(table.column("x").to_pylist(), dtype=np.float32), ()
    index = _index_columns(table)
    numeric = [n for n in names if n not in index and _is_number(table.schema.field(n).type)]
    if not numeric:
        return None, ()
    return np.stack([_floats(table.column(n)) for n in numeric], axis=1), tuple(numeric)


def _floats(column: Any) -> NDArray[np.float32]:
    """A column of numbers or truth values; NaN where it has no value. (n,)"""
    from pyarrow import float64, types, uint8

    plain = column.cast(uint8()) if types.is_boolean(column.type) else column
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        floats: NDArray[np.float32] = plain.cast(float64(), safe=False).to_numpy().astype("f4")
    return floats


def _index_columns(table: Any) -> set[str]:
    """Columns that hold the index of a DataFrame, which numbers rows and is no feature."""
    about = (table.schema.metadata or {}).get(b"pandas")
    stored = json.loads(about).get("index_columns", []) if about else []
    return {name for name in stored if isinstance(name, str)}


def _is_number(kind: Any) -> bool:
    from pyarrow import types

    tests = (types.is_floating, types.is_integer, types.is_boolean, types.is_decimal)
    return any(test(kind) for test in tests)


def as_images(x: NDArray[Any]) -> NDArray[np.uint8] | None:
    """uint8 (n, h, w), (n, h, w, c) or (n, c, h, w), c being 1 or 3, as (n, c, h, w); None if it is
    no such array."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return None
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x) if x.shape[1] in (1, 3) else None


def as_rows(x: NDArray[Any], place: str = "") -> NDArray[np.float32] | None:
    """Finite numbers (n, d) as float32; None if it is another kind of array, UserError if they are
    not finite."""
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        return None
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        rows: NDArray[np.float32] = np.ascontiguousarray(x, dtype=np.float32)
    require_finite(rows, place)
    return rows


def label_names(y: NDArray[Any], n: int, file: Path) -> tuple[str, ...]:
    """One name per row, from names or whole numbers."""
    if y.shape != (n,):
        raise UserError(
            f"{file} holds {n} rows and labels of shape {y.shape}.", "give one label per row."
        )
    values = y.tolist()
    names = [_name(value) for value in values]
    if "" in names:
        row = names.index("")
        raise UserError(
            f"The label of row {row} in {file} is {_shown(values[row])}, which is out of range.",
            "labels are names, or whole numbers from 0 to 2⁶⁴.",
        )
    return tuple(names)


def _name(value: Any) -> str:
    """Empty if the value is no label."""
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")  # so that no two become the same
    if isinstance(value, str):
        return (
            value.strip().encode("utf-8", "backslashreplace").decode()
        )  # half a character cannot be written
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return str(int(value)) if whole and 0 <= value <= _LARGEST else ""


def _shown(value: Any) -> str:
    """A label for a message; Python does not write numbers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return repr(value)[:80]
