"""Any number of images through a model, in little memory: threads decode ahead, answers are written as they come."""

from __future__ import annotations

import csv
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from askew.card import Card
from askew.data.arrays import ARRAYS, read_array
from askew.data.folders import whole_file
from askew.data.listing import LISTS, find_pictures, read_listing
from askew.errors import UserError
from askew.inputs import as_input, as_picture, decoding
from askew.predictor import Predictor, Prior
from askew.store import check_file

Row = NDArray[Any]
_THREADS = min(8, os.cpu_count() or 1)
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


@dataclass
class Tally:
    """What was answered so far."""

    classes: tuple[str, ...]
    images: int = 0
    broken: int = 0
    counts: NDArray[np.int64] = field(init=False)
    """Of the most probable class."""

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.classes), dtype=np.int64)

    def add(self, portion: Portion) -> None:
        said = portion.probabilities[[not problem for problem in portion.problems]]
        self.images += len(portion.names)
        self.broken += len(portion.names) - len(said)
        self.counts += np.bincount(said.argmax(axis=1), minlength=len(self.classes))

    @property
    def mix(self) -> dict[str, float]:
        """Share of each class in the answers."""
        return {name: float(n / max(1, self.counts.sum())) for name, n in zip(self.classes, self.counts, strict=True)}


def predictions(
    predictor: Predictor, sources: Sequence[Path], prior: Prior = "uniform", batch: int = 0
) -> Iterator[Portion]:
    """Answers to all that the sources hold: folders, lists, pictures, arrays (.npy, .npz, .parquet)."""
    predictor.prior_shift(prior)  # what is wrong with it is wrong before the first picture
    inputs = [inputs_of(part, predictor.card) for source in sources for part in parts_of(source, predictor.card)]
    yield from answers(predictor, (one for some in inputs for one in some), prior, batch)


def answers(predictor: Predictor, inputs: Iterable[Input], prior: Prior, batch: int = 0) -> Iterator[Portion]:
    """To inputs, in their order."""
    size = batch or predictor.batch
    with decoding():
        ready = _ahead(inputs, 2 * size)
        while block := [one for _, one in zip(range(size), ready, strict=False)]:
            problems = [x if isinstance(x, str) else "" for _, x in block]
            sound = [x for _, x in block if not isinstance(x, str)]
            p = np.full((len(block), len(predictor.classes)), np.nan)
            if sound:
                said = predictor.look(np.stack(sound))
                p[[not problem for problem in problems]] = predictor.probabilities(said, prior)
            yield Portion([name for name, _ in block], problems, p)


def write_predictions(
    predictor: Predictor, sources: Sequence[Path], file: Path | None, prior: Prior = "uniform", batch: int = 0
) -> Iterator[Portion]:
    """The same, each portion written to a .csv or .parquet file, or to stdout, before it is handed on.

    The file is there once all is written, and not at all if nothing could be read.
    """
    answers = predictions(predictor, sources, prior, batch)
    if file is None:
        yield from _written(answers, _Csv(sys.stdout, predictor.classes))
        return
    kind = writer_of(file)
    with whole_file(file, "choose another file with -o.") as temporary, kind(temporary, predictor.classes) as sink:
        yield from _written(answers, sink)


def _written(answers: Iterable[Portion], sink: _Sink) -> Iterator[Portion]:
    sound, why = False, ""
    for portion in answers:
        sound = sound or "" in portion.problems
        why = why or next((f"{n}: {p}" for n, p in zip(portion.names, portion.problems, strict=True) if p), "")
        sink.write(portion)
        yield portion
    if not sound:
        raise UserError(f"None of the pictures can be read ({why}).", "name pictures, or a folder that holds some.")


# --- reading ---

Input = tuple[str, Callable[[], Row]]
Loaded = tuple[str, Row | str]


Part = Mapping[str, Any]
"""Some of a source's inputs, as JSON can say it: {"pictures": paths}, or {"file": path, "start": row, "stop": row}."""


def parts_of(source: Path, card: Card, size: int = sys.maxsize) -> Iterator[Part]:
    """A source in parts of some inputs each; what it is wrong about is said before the first of them."""
    kind = source.suffix.lower()
    if not os.path.lexists(source):
        raise UserError(f"There is no {source}.", "name a folder, a list, pictures, or a .npy, .npz or .parquet file.")
    if source.is_dir():
        paths = [source / path for path in find_pictures(source)]
        if not paths:
            raise UserError(f"The folder {source} holds no picture.", "name a folder that does; it is searched.")
    elif kind in LISTS:
        listing = read_listing(source)
        paths = [listing.root / path for path in listing.paths]
    elif kind in ARRAYS:
        x = _array(source)
        if not x.ndim or not len(x):
            raise UserError(f"The array in {source} is empty.", "it needs one row or image at least.")
        as_input(np.zeros_like(x[:1]), card)  # its form is wrong for all or for none
        for start in range(0, len(x), size):
            yield {"file": str(source), "start": start, "stop": min(start + size, len(x))}
        return
    else:
        paths = [source]
    if not card.images:
        raise UserError(
            f"The model takes {card.input}, and not pictures.", "name a .npy, .npz or .parquet file of embeddings."
        )
    for start in range(0, len(paths), size):
        yield {"pictures": [str(path) for path in paths[start : start + size]]}


def inputs_of(part: Part, card: Card) -> Iterator[Input]:
    """Names, and how to get what they stand for."""
    if "pictures" in part:
        for path in map(Path, part["pictures"]):
            yield _name(path), lambda path=path: as_picture(path, card)  # type: ignore[misc]
        return
    file = Path(part["file"])
    x = _array(file)
    for i in range(part["start"], part["stop"]):
        yield f"{_name(file)}:{i}", lambda i=i: as_input(x[i : i + 1], card)[0]  # type: ignore[misc]


def _array(file: Path) -> Row:
    """A .npy stays on the disk and is read by the portion."""
    if file.suffix.lower() != ".npy":
        return read_array(file).x
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError, EOFError):
        return read_array(file).x  # which says what is wrong


def _name(path: Path) -> str:
    """As text that can be written anywhere, also where a name on the disk is none."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _ahead(inputs: Iterable[Input], most: int) -> Iterator[Loaded]:
    """What the inputs stand for, in their order; at most so many are decoded ahead."""
    pool = ThreadPoolExecutor(_THREADS, "decode")
    waiting: deque[tuple[str, Future[Row | str]]] = deque()
    try:
        for name, get in inputs:
            waiting.append((name, pool.submit(_loaded, get)))
            if len(waiting) >= most:
                first, found = waiting.popleft()
                yield first, found.result()
        while waiting:
            first, found = waiting.popleft()
            yield first, found.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _loaded(get: Callable[[], Row]) -> Row | str:
    """The input, or why it cannot be read."""
    try:
        return get()
    except UserError as error:
        return error.sentence
    except Exception as error:  # a broken file can fail anywhere in its decoder
        return " ".join(str(error).split()) or type(error).__name__


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
