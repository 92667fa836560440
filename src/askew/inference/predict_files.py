"""Any number of images through a model, in little memory: threads decode ahead, answers are written as they come."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import whole_file
from askew.data.array_files import ARRAYS, read_array
from askew.data.image_lists import LISTS, find_pictures, read_listing
from askew.inference.inputs import as_input, as_picture, decoding
from askew.inference.model_card import Card
from askew.inference.predictor import Predictor, Prior
from askew.inference.writers import Portion, _Csv, _Sink, writer_of

Row = NDArray[Any]
_THREADS = min(8, os.cpu_count() or 1)


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
