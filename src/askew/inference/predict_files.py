"""Predictions for any number of images in little memory: they are decoded ahead, and rows are
written as they come."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import require_other_file, whole_file
from askew.data.array_files import ARRAYS, read_array
from askew.data.decode import Row, decode, decoding
from askew.data.image_lists import LISTS, USUAL, Columns, find_pictures, read_listing
from askew.data.paths import readable
from askew.inference.cached_embeddings import MOST, CachedEmbeddings
from askew.inference.decode_ahead import load_ahead, processes_for
from askew.inference.inputs import as_input, checked_batch
from askew.inference.model_card import ModelCard
from askew.inference.predictor import ClassShares, Predictor
from askew.inference.writers import CsvWriter, PredictionBatch, Writer, writer_for

_MANY = 512  # images after which it pays to prepare the network for more of them


@dataclass
class PredictionCounts:
    """How many images were predicted so far, and how many of each class."""

    classes: tuple[str, ...]
    images: int = 0
    broken: int = 0
    """Images that could not be read."""
    counts: NDArray[np.int64] = field(init=False)
    """Images by their most probable class. (c,)"""

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.classes), dtype=np.int64)

    def add(self, batch: PredictionBatch) -> None:
        sound = batch.probabilities[[not problem for problem in batch.problems]]
        self.images += len(batch.names)
        self.broken += len(batch.names) - len(sound)
        self.counts += np.bincount(sound.argmax(axis=1), minlength=len(self.classes))

    @property
    def distribution(self) -> dict[str, float]:
        """Share of each class in the predictions."""
        return {
            name: float(n / max(1, self.counts.sum()))
            for name, n in zip(self.classes, self.counts, strict=True)
        }


def predict_sources(
    predictor: Predictor,
    sources: Sequence[Path],
    shares: ClassShares = "equal",
    batch: int = 0,
    columns: Columns = USUAL,
) -> Iterator[PredictionBatch]:
    """Predictions for all that the sources hold: folders, lists, pictures, arrays (.npy, .npz,
    .parquet)."""
    predictor.logit_shift(shares)  # wrong shares are an error before the first picture is read
    shards = [
        shard
        for source in sources
        for shard in split_source(source, predictor.card, columns=columns)
    ]
    inputs = (one for shard in shards for one in shard_inputs(shard, predictor.card))
    pictures = sum(len(shard.get("pictures", ())) for shard in shards)
    few = pictures <= MOST and all("pictures" in shard for shard in shards)
    if few and (cached := CachedEmbeddings.of(predictor)):
        paths = [Path(path) for shard in shards for path in shard["pictures"]]
        yield from _predict_cached(predictor, cached, paths, shares)
        return
    arrays = any("file" in shard for shard in shards)  # whose rows processes would have to be sent
    processes = 0 if arrays else processes_for(pictures, predictor.device.type)
    yield from predict_inputs(predictor, inputs, shares, batch, processes)


def _predict_cached(
    predictor: Predictor, cached: CachedEmbeddings, paths: Sequence[Path], shares: ClassShares
) -> Iterator[PredictionBatch]:
    """Predictions for pictures whose embeddings are kept in the cache."""
    done = 0
    for problems, logits in cached.logits(paths):
        p = np.full((len(problems), len(predictor.classes)), np.nan)
        p[[not problem for problem in problems]] = predictor.probabilities(logits, shares)
        names = [readable(path) for path in paths[done : done + len(problems)]]
        done += len(problems)
        yield PredictionBatch(names, problems, p)


def predict_inputs(
    predictor: Predictor,
    inputs: Iterable[Input],
    shares: ClassShares,
    batch: int = 0,
    processes: int = 0,
) -> Iterator[PredictionBatch]:
    """Predictions for inputs, in their order; threads read them, or so many processes if all are
    pictures."""
    size, done = checked_batch(batch) or predictor.batch, 0
    rows: Row | None = None
    with decoding(), ExitStack() as stack:
        loaded = stack.enter_context(
            closing(load_ahead(inputs, 2 * size, processes, predictor.card.shape))
        )
        while block := list(islice(loaded, size)):
            if done < _MANY <= (done := done + len(block)):
                stack.enter_context(predictor.prepared(size))
            problems = [x if isinstance(x, str) else "" for _, x in block]
            sound = [x for _, x in block if not isinstance(x, str)]
            p = np.full((len(block), len(predictor.classes)), np.nan)
            if sound:
                if (
                    rows is None
                ):  # in memory that is kept: to get as much anew takes longer than to fill it
                    rows = np.empty((len(block), *sound[0].shape), sound[0].dtype)
                logits = predictor.forward(np.stack(sound, out=rows[: len(sound)]), size)
                p[[not problem for problem in problems]] = predictor.probabilities(logits, shares)
            yield PredictionBatch([name for name, _ in block], problems, p)


def write_predictions(
    predictor: Predictor,
    sources: Sequence[Path],
    file: Path | Writer | None,
    shares: ClassShares = "equal",
    batch: int = 0,
    columns: Columns = USUAL,
) -> Iterator[PredictionBatch]:
    """The same, each batch written to a .csv or .parquet file, to a writer, or to stdout, before it
    is yielded.

    The file appears once all is written, and not at all if nothing could be read.
    """
    batches = predict_sources(predictor, sources, shares, batch, columns)
    if not isinstance(file, Path):
        yield from _write_each(batches, file or CsvWriter(sys.stdout, predictor.classes))
        return
    open_writer = writer_for(file)
    require_other_file(file, sources)
    with (
        whole_file(file, "choose another file with -o.") as temporary,
        open_writer(temporary, predictor.classes) as writer,
    ):
        yield from _write_each(batches, writer)


def _write_each(batches: Iterable[PredictionBatch], writer: Writer) -> Iterator[PredictionBatch]:
    any_sound, first_problem = False, ""
    for batch in batches:
        any_sound = any_sound or "" in batch.problems
        named = (
            f"{name}: {problem}"
            for name, problem in zip(batch.names, batch.problems, strict=True)
            if problem
        )
        first_problem = first_problem or next(named, "")
        writer.write(batch)
        yield batch
    if not any_sound:
        raise UserError(
            f"None of the pictures can be read ({first_problem}).",
            "name pictures, or a folder that holds some.",
        )


# --- reading ---

Input = tuple[str, Callable[[], Row]]
"""A name, and how to get the array that it stands for."""
Shard = Mapping[str, Any]
"""Some of a source's inputs, as JSON: {"pictures": paths}, or {"file": path, "start": row, "stop":
row}."""


def split_source(
    source: Path, card: ModelCard, size: int = sys.maxsize, columns: Columns = USUAL
) -> Iterator[Shard]:
    """The inputs of a source in shards of at most `size`; UserError before the first of them if it
    cannot be read."""
    if not os.path.lexists(source):
        raise UserError(
            f"There is no {source}.",
            "name a folder, a list, pictures, or a .npy, .npz or .parquet file.",
        )
    if source.exists() and not (source.is_dir() or source.is_file()):
        raise UserError(f"{source} is neither a folder nor a regular file.", "name one of these.")
    if not source.is_dir() and source.suffix.lower() in ARRAYS:
        images = _checked_length(source, card)
        for start in range(0, images, size):
            yield {"file": str(source), "start": start, "stop": min(start + size, images)}
        return
    paths = _picture_paths(source, columns)
    if not card.images:
        raise UserError(
            f"The model takes {card.input}, and not pictures.",
            "name a .npy, .npz or .parquet file of embeddings.",
        )
    for start in range(0, len(paths), size):
        yield {"pictures": [str(path) for path in paths[start : start + size]]}


def _picture_paths(source: Path, columns: Columns) -> list[Path]:
    """The pictures in a folder, in a list, or the one that `source` is."""
    if source.is_dir():
        paths = [source / path for path in find_pictures(source)]
        if not paths:
            raise UserError(
                f"The folder {source} holds no picture.", "name a folder that does; it is searched."
            )
        return paths
    if source.suffix.lower() in LISTS:
        listing = read_listing(source, columns)
        return [listing.root / path for path in listing.paths]
    return [source]


def _checked_length(file: Path, card: ModelCard) -> int:
    """The number of inputs in an array; UserError if it has none, or none that the model takes."""
    x = _array(file, card)
    if not x.ndim or not len(x):
        raise UserError(f"The array in {file} is empty.", "it needs one row or image at least.")
    as_input(np.zeros_like(x[:1]), card)  # shape and type are wrong for all rows or for none
    return len(x)


def shard_inputs(shard: Shard, card: ModelCard) -> Iterator[Input]:
    """The inputs of a shard, each to be read when its turn comes."""
    if "pictures" in shard:
        for path in map(Path, shard["pictures"]):
            yield readable(path), partial(decode, path, card.shape)
        return
    file = Path(shard["file"])
    x = _array(file, card)
    for i in range(shard["start"], shard["stop"]):
        row = partial(_row_of, x, i, card)
        yield f"{readable(file)}:{i}", row


def _row_of(x: Row, row: int, card: ModelCard) -> Row:
    """One row of an array, as the model takes it."""
    found: Row = as_input(x[row : row + 1], card)[0]
    return found


def _array(file: Path, card: ModelCard) -> Row:
    """The array in a file, its columns in the model's order where both have names.

    A .npy stays on the disk until its rows are read.
    """
    if file.suffix.lower() != ".npy":
        return read_array(file).in_order_of(card.columns, file, "the model")
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except Exception:  # a damaged file can fail anywhere
        return read_array(file).x  # which raises a UserError that names the problem
