"""Predictions as CSV or Parquet, written batch by batch."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import check_file

_GROUP = 2**14  # rows that Parquet keeps together


@dataclass(frozen=True)
class Portion:
    """Answers to some of the inputs, in their order."""

    names: list[str]
    """Paths, or for arrays file and row."""
    problems: list[str]
    """Why an input could not be read; empty where it could."""
    probabilities: NDArray[np.float64]
    """(n, c), NaN where there was a problem."""


# --- writing ---


class _Sink(Protocol):
    def write(self, portion: Portion) -> None: ...


def columns(classes: Sequence[str]) -> list[str]:
    return ["path", "class", "probability", "problem", *(f"p_{name}" for name in classes)]


def writer_of(file: Path) -> Callable[..., Any]:
    """How a file of that name is written; UserError if it cannot be."""
    check_file(file)
    kind = file.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise UserError(
            f"Predictions are written as .csv or .parquet, found {file.name}.", "for example -o answers.csv"
        )
    if kind == ".csv":
        return _csv_file
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(
            "A .parquet file needs pyarrow, which is not installed.", "pip install 'askew[parquet]', or write a .csv."
        ) from None
    return _parquet_file


@contextmanager
def _csv_file(path: Path, classes: Sequence[str]) -> Iterator[_Sink]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield _Csv(file, classes)


class _Csv:
    def __init__(self, file: TextIO, classes: Sequence[str]) -> None:
        self.classes = classes
        self.table = csv.writer(file, lineterminator="\n")
        self.begun = False

    def write(self, portion: Portion) -> None:
        if not self.begun:  # what fails before the first answer has printed nothing
            self.table.writerow(columns(self.classes))
            self.begun = True
        for name, problem, p in zip(portion.names, portion.problems, portion.probabilities, strict=True):
            if problem:
                self.table.writerow([name, "", "", problem, *[""] * len(p)])
            else:
                first = int(p.argmax())
                self.table.writerow([name, self.classes[first], f"{p[first]:.6g}", "", *(f"{q:.6g}" for q in p)])


@contextmanager
def _parquet_file(path: Path, classes: Sequence[str]) -> Iterator[_Sink]:
    import pyarrow as arrow
    from pyarrow import parquet

    texts, numbers = ("path", "class", "problem"), arrow.float64()
    schema = arrow.schema([(n, arrow.string() if n in texts else numbers) for n in columns(classes)])
    with parquet.ParquetWriter(path, schema) as file:
        sink = _Parquet(file, classes)
        yield sink
        sink.flush()


class _Parquet:
    def __init__(self, file: Any, classes: Sequence[str]) -> None:
        self.file, self.classes = file, classes
        self.waiting: list[Portion] = []

    def write(self, portion: Portion) -> None:
        self.waiting.append(portion)
        if sum(len(some.names) for some in self.waiting) >= _GROUP:
            self.flush()

    def flush(self) -> None:
        import pyarrow as arrow

        if not self.waiting:
            return
        names = [name for some in self.waiting for name in some.names]
        problems = [problem for some in self.waiting for problem in some.problems]
        p = np.concatenate([some.probabilities for some in self.waiting])
        broken = np.array([bool(problem) for problem in problems])
        said = np.array(self.classes, dtype=object)[np.where(broken, 0, p.argmax(axis=1))]
        cells = [
            arrow.array(names),
            arrow.array(said, mask=broken),
            arrow.array(p.max(axis=1), mask=broken),
            arrow.array(problems, mask=~broken),
            *(arrow.array(column, mask=broken) for column in p.T),
        ]
        self.file.write_table(arrow.Table.from_arrays(cells, schema=self.file.schema))
        self.waiting = []
