"""Predictions as CSV or Parquet with one row per input, written batch by batch."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import check_file, whole_file
from askew.core.text import csv_cell, visible

_GROUP = 2**14  # rows in one row group of a Parquet file


@dataclass(frozen=True)
class PredictionBatch:
    """Predictions for some of the inputs, in their order."""

    names: Sequence[str]
    """Paths, or for arrays file and row."""
    problems: Sequence[str]
    """Why an input could not be read; empty where it could."""
    probabilities: NDArray[np.float64]
    """(n, c), NaN where there was a problem."""
    unknown: NDArray[np.bool_] | None = None
    """Which inputs may be of none of the classes, where that was found out. (n,)"""


class Writer(Protocol):
    def write(self, batch: PredictionBatch) -> None: ...


OpenWriter = Callable[[Path, Sequence[str]], AbstractContextManager[Writer]]
"""From a file's path and the classes to a writer."""


def columns(classes: Sequence[str]) -> list[str]:
    """The header of every table of predictions."""
    return ["path", "class", "probability", "problem", *(f"p_{name}" for name in classes)]


def writer_for(file: Path) -> OpenWriter:
    """The writer that a file's suffix asks for; UserError if the file cannot be written."""
    check_file(file)
    suffix = file.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UserError(
            f"Predictions are written as .csv or .parquet, found {file.name}.",
            "for example -o predictions.csv",
        )
    if suffix == ".csv":
        return _open_csv
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError(
            "A .parquet file needs pyarrow, which is not installed.",
            "pip install 'askew[parquet]', or write a .csv.",
        ) from None
    return _open_parquet


def write_predictions_csv(
    file: Path | TextIO,
    names: Sequence[str],
    problems: Sequence[str],
    probabilities: NDArray[np.float64],
    classes: Sequence[str],
    unknown: NDArray[np.bool_] | None = None,
) -> None:
    """All predictions at once: to an open text file, or to a path, where the file appears whole or
    not at all.

    Names that are not text on the disk are written as the bytes that they have there.
    """
    batch = PredictionBatch(names, problems, probabilities, unknown)
    if not isinstance(file, Path):
        CsvWriter(file, classes).write(batch)
        return
    with (
        whole_file(file, "see that the folder is writable and has room.") as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as text,
    ):
        CsvWriter(text, classes).write(batch)


# --- CSV ---


@contextmanager
def _open_csv(path: Path, classes: Sequence[str]) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield CsvWriter(file, classes)


class _LineFeeds:
    """Passes on lines that end in a carriage return and a line feed, with the latter alone."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, line: str) -> int:
        return self.file.write(line.removesuffix("\r\n") + "\n")


class CsvWriter:
    """Writes to an open text file; the header comes with the first batch, so that early errors
    print nothing.

    No cell can be taken for a formula by a spreadsheet, and none controls a terminal.
    """

    def __init__(self, file: TextIO, classes: Sequence[str]) -> None:
        self.classes = classes
        # Cells are quoted that hold any part of a line's end: a carriage return in a name would
        # begin a new line in a spreadsheet. Lines end in a line feed all the same.
        self.rows = csv.writer(_LineFeeds(file), lineterminator="\r\n")
        self.on_terminal = file.isatty()
        self.has_header = False

    def write(self, batch: PredictionBatch) -> None:
        if not self.has_header:
            head = columns(self.classes) + (["unknown"] if batch.unknown is not None else [])
            self.rows.writerow(map(self._cell, head))
            self.has_header = True
        marks = (
            [[]] * len(batch.names)
            if batch.unknown is None
            else [["yes" if u else ""] for u in batch.unknown]
        )
        for name, problem, p, mark in zip(
            batch.names, batch.problems, batch.probabilities, marks, strict=True
        ):
            if problem:
                self.rows.writerow(
                    [self._cell(name), "", "", self._cell(problem), *[""] * len(p), *mark]
                )
            else:
                best = int(p.argmax())
                texts = self._cell(name), self._cell(self.classes[best])
                self.rows.writerow([*texts, f"{p[best]:.6g}", "", *(f"{q:.6g}" for q in p), *mark])

    def _cell(self, text: str) -> str:
        return csv_cell(visible(text, keep="") if self.on_terminal else text)


class RowCollector:
    """Keeps the rows as JSON values."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: PredictionBatch) -> None:
        for name, problem, p in zip(batch.names, batch.problems, batch.probabilities, strict=True):
            row: dict[str, Any] = {
                "path": name,
                "class": None,
                "probability": None,
                "problem": problem or None,
            }
            if not problem:
                best = int(p.argmax())
                row |= {"class": self.classes[best], "probability": float(p[best])}
                row["probabilities"] = {
                    of: float(share) for of, share in zip(self.classes, p, strict=True)
                }
            self.rows.append(row)


# --- Parquet ---


@contextmanager
def _open_parquet(path: Path, classes: Sequence[str]) -> Iterator[Writer]:
    import pyarrow as arrow
    from pyarrow import parquet

    texts, numbers = ("path", "class", "problem"), arrow.float64()
    schema = arrow.schema(
        [(n, arrow.string() if n in texts else numbers) for n in columns(classes)]
    )
    with parquet.ParquetWriter(path, schema) as file:
        writer = _ParquetWriter(file, classes)
        yield writer
        writer.flush()


class _ParquetWriter:
    """Collects batches to row groups."""

    def __init__(self, file: Any, classes: Sequence[str]) -> None:
        self.file, self.classes = file, classes
        self.pending: list[PredictionBatch] = []

    def write(self, batch: PredictionBatch) -> None:
        self.pending.append(batch)
        if sum(len(some.names) for some in self.pending) >= _GROUP:
            self.flush()

    def flush(self) -> None:
        import pyarrow as arrow

        if not self.pending:
            return
        names = [name for batch in self.pending for name in batch.names]
        problems = [problem for batch in self.pending for problem in batch.problems]
        p = np.concatenate([batch.probabilities for batch in self.pending])
        broken = np.array([bool(problem) for problem in problems])
        predicted = np.array(self.classes, dtype=object)[np.where(broken, 0, p.argmax(axis=1))]
        cells = [
            arrow.array(names),
            arrow.array(predicted, mask=broken),
            arrow.array(p.max(axis=1), mask=broken),
            arrow.array(problems, mask=~broken),
            *(arrow.array(column, mask=broken) for column in p.T),
        ]
        self.file.write_table(arrow.Table.from_arrays(cells, schema=self.file.schema))
        self.pending = []
