"""Domains that live in Python: lists, arrays, DataFrames, and data sets of torch's and Hugging
Face's."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from askew.core.errors import UserError, unknown
from askew.core.options import text
from askew.data.array_files import known_array, label_names
from askew.data.custom import CustomDomain, Which, listed_domain, read_domain, require_labels
from askew.data.decode import SIDE, decode, decoding
from askew.data.domains import RowSubset
from askew.data.feature_columns import LABEL_COLUMNS, as_frame, is_frame, numbers_of
from askew.data.image_lists import Listing
from askew.data.paths import cache_folder

_IMAGE = ("image", "img", "path", "file", "filename")
_FORMS = (
    "a folder or file; a list of paths, images or arrays; an array; a DataFrame; a torch Dataset "
    "or DataLoader; a data "
    "set of Hugging Face's; labels as (images, labels), as (image, label) in each item, or in a "
    "column."
)

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Items:
    """A domain one by one: an image (a path, a picture, an array) or a row of numbers, and its
    label or None."""

    what: str
    pairs: Iterable[Pair]
    """An exception stands for an image that cannot be read."""
    names: Sequence[str] | None = None
    """None: their numbers."""
    classes: Sequence[str] = ()
    """Names of labels that are numbers."""
    columns: tuple[str, ...] = ()
    """Names of the columns of features, where they have some."""


def as_domain(
    given: Any,
    which: Which,
    *,
    image: str = "",
    label: str = "",
    skip_broken: bool = False,
    most: int = 0,
) -> CustomDomain:
    """A domain from whatever holds it. `image` and `label` name columns where there are some;
    `most` as `read_domain`.

    A target's labels are not read.
    """
    for name, column in (("image", image), ("label", label)):
        text(name, column)
    if isinstance(given, CustomDomain):
        return given
    if isinstance(given, str | Path):
        return read_domain(Path(given), which, skip_broken, most)
    if which == "target" and type(getattr(given, "sampler", None)).__name__ == "RandomSampler":
        raise UserError(
            "The target's DataLoader shuffles: nobody could tell its predictions apart.",
            "shuffle=False.",
        )
    items = _items(given, image, label)
    pairs = iter(items.pairs)
    head = list(_until_sound(pairs))
    first = head[-1][0] if head else None
    read = (
        _listed if isinstance(first, str | Path) else _decoded if _is_picture(first) else _stacked
    )
    domain = read(
        dataclasses.replace(items, pairs=itertools.chain(head, pairs)), which, skip_broken
    )
    if which == "source":
        require_labels(domain)
    return domain


def _until_sound(pairs: Iterator[Pair]) -> Iterator[Pair]:
    """The first item that can be read, and those before it."""
    for x, y in pairs:
        yield x, y
        if not isinstance(x, Exception):
            return


# --- what people have ---


def _items(given: Any, image: str, label: str) -> Items:
    """The items of a list, an array, a DataFrame, a data set or a loader; UserError if it is
    something else."""
    if isinstance(given, tuple) and len(given) == 2 and not _is_one(given[0]):
        x, labels = _items(given[0], image, label), _list_of(given[1])
        if isinstance(given[0], Sequence | np.ndarray) and len(given[0]) != len(labels):
            raise UserError(
                f"There are {len(given[0])} images and {len(labels)} labels.",
                "give one label per image.",
            )
        return dataclasses.replace(
            x, pairs=[(one, y) for (one, _), y in zip(x.pairs, labels, strict=True)]
        )
    if is_frame(given):
        return _of_frame(as_frame(given), image, label)
    if (
        isinstance(given, Mapping)
        and given
        and all(hasattr(split, "features") for split in given.values())
    ):
        raise UserError(
            f"The data set has the splits {', '.join(given)}.",
            "name one, such as dataset['train'].",
        )
    if hasattr(given, "features") and hasattr(given, "column_names"):
        return _of_hugging_face(given, image, label)
    if hasattr(given, "dataset") and hasattr(given, "batch_size"):
        return Items(
            "a DataLoader", _batches(given, image, label), classes=_class_names(given.dataset)
        )
    if isinstance(given, list | tuple):
        return Items("a list", [item if _is_pair(item) else (item, None) for item in given])
    if hasattr(given, "__array__"):
        return _of_array(_array_of(given))
    if hasattr(given, "__getitem__") or hasattr(given, "__iter__"):
        pairs = (_pair(item, image, label) for item in _each(given))
        return Items(f"a {type(given).__name__}", pairs, classes=_class_names(given))
    raise UserError(f"A {type(given).__name__} is no data set.", _FORMS)


def is_labelled(given: tuple[Any, ...]) -> bool:
    """Tell whether a tuple is inputs and one label for each, not some inputs."""
    if len(given) != 2 or not (is_frame(given[0]) or getattr(given[0], "ndim", 0) > 1):
        return False
    return np.ndim(given[1]) == 1 and len(given[0]) == len(given[1])


def is_data_set(given: Any) -> bool:
    """Tell whether something is a data set or a loader of torch's or Hugging Face's."""
    own = hasattr(given, "column_names") or hasattr(given, "dataset") or isinstance(given, list)
    if isinstance(given, list):
        return bool(given) and all(_is_pair(item) for item in given)
    items = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    plain = isinstance(given, Sequence | Mapping | Image.Image) or hasattr(given, "__array__")
    return own or (items and not plain)


def column_of_pictures(table: Any) -> list[Any] | None:
    """The column of a table that holds pictures or their paths; None if there is none."""
    frame = as_frame(table)
    name = _column(list(frame.columns), "", _IMAGE)
    return None if name is None else list(frame[name])


def _of_array(array: NDArray[Any]) -> Items:
    if not array.ndim:
        raise UserError("An array without dimensions is no data set.", _FORMS)
    return Items("an array", ((x, None) for x in array))


def _list_of(labels: Any) -> list[Any]:
    try:
        return list(labels)
    except TypeError:
        raise UserError(
            f"The labels are a {type(labels).__name__}, and no list of labels.",
            "give one label per image.",
        ) from None


def _of_frame(frame: Any, image: str, label: str) -> Items:
    """A column of paths or images and one of labels; without the first, every other column of
    numbers is a feature."""
    names = list(frame.columns)
    x, y = _column(names, image, _IMAGE), _column(names, label, LABEL_COLUMNS)
    labels = [None] * len(frame) if y is None else frame[y].tolist()
    columns: tuple[str, ...] = ()
    if x is None:
        inputs, columns = numbers_of(frame.drop(columns=[y] if y else []))
    else:
        inputs = frame[x].tolist()
    pairs = list(zip(inputs, labels, strict=True))
    return Items("a DataFrame", pairs, tuple(map(str, frame.index)), columns=columns)


def _of_hugging_face(data: Any, image: str, label: str) -> Items:
    """Its Image column and its ClassLabel column, unless others are named."""
    features = data.features or {}
    kinds = {type(feature).__name__: name for name, feature in reversed(list(features.items()))}
    columns = list(features) or list(data.column_names or [])
    x = image or kinds.get("Image") or _column(columns, "", _IMAGE)
    y = _column(columns, label or kinds.get("ClassLabel", ""), LABEL_COLUMNS)
    if x not in columns:
        raise unknown("column of images", x or "image", columns, "name it: image='…'.")
    pairs = (
        (item if isinstance(item, Exception) else item[x], _of(item, y)) for item in _each(data)
    )
    return Items(
        "a Hugging Face data set",
        pairs,
        classes=tuple(getattr(features.get(y), "names", None) or ()),
    )


def _of(item: Any, column: str | None) -> Any:
    return None if column is None or isinstance(item, Exception) else item[column]


def _column(columns: Sequence[str], asked: str, usual: Sequence[str]) -> str | None:
    """The column that is asked for, or one with a usual name."""
    if asked and asked not in columns:
        raise unknown("column", asked, columns)
    return asked or next((name for name in usual if name in columns), None)


def _batches(loader: Any, image: str, label: str) -> Iterator[Pair]:
    for batch in loader:
        x, y = _pair(batch, image, label)
        for row, one in enumerate(x):
            yield one, None if y is None else y[row]


def _each(data: Any) -> Iterator[Any]:
    """The items by number, where they have some: then one that cannot be read does not end the
    others."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        yield from data
        return
    for row in range(len(data)):
        try:
            yield data[row]
        except Exception as error:  # a damaged picture can raise almost anything
            yield error


def _pair(item: Any, image: str, label: str) -> Pair:
    """An item of a data set, or a batch of a loader: (image, label, …), {column: …}, or an image
    alone."""
    if isinstance(item, Mapping):
        x, y = _column(list(item), image, _IMAGE), _column(list(item), label, LABEL_COLUMNS)
        return item[x or next(iter(item))], None if y is None else item[y]
    if isinstance(item, list | tuple) and len(item) > 1:
        return item[0], item[1]
    return item[0] if isinstance(item, list | tuple) else item, None


def _class_names(data: Any) -> tuple[str, ...]:
    """As torchvision's data sets have them, also within a Subset."""
    while not hasattr(data, "classes") and hasattr(data, "dataset"):
        data = data.dataset
    return tuple(map(str, getattr(data, "classes", None) or ()))


# --- from items to a domain ---


def _listed(items: Items, which: Which, skip_broken: bool) -> CustomDomain:
    """Paths of picture files, relative to where we are: decoded once, as those in a list file
    are."""
    pairs = list(items.pairs)
    paths, labels = tuple(str(x) for x, _ in pairs), _labels(items, [y for _, y in pairs])
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UserError(
            f"{items.what.capitalize()} names {twice} twice.", "name every picture once."
        )
    return listed_domain(Path(items.what), Listing(Path(), paths, labels), which, skip_broken)


def _decoded(items: Items, which: Which, skip_broken: bool) -> CustomDomain:
    """Pictures of any size as uint8 (n, 3, 256, 256), in a file that goes with the array: they may
    be many."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    kept, labels, hashes, broken = [], [], [], []
    with tempfile.TemporaryFile(dir=folder) as file, decoding():
        for row, (x, y) in enumerate(items.pairs):
            try:
                pixels = decode(_picture(x)).tobytes()
            except Exception as error:  # a damaged picture can raise almost anything
                broken.append(f"{_name(items, row)}: {error}")
                continue
            file.write(pixels)
            hashes.append(int.from_bytes(hashlib.blake2b(pixels, digest_size=8).digest(), "big"))
            kept.append(row)
            labels.append(y)
        file.flush()
        base = (
            np.memmap(file, np.uint8, "r+", shape=(len(kept), 3, SIDE, SIDE))
            if kept
            else np.empty(0, np.uint8)
        )
    if broken and not (skip_broken and kept):
        raise UserError(
            f"{len(broken)} of the {len(kept) + len(broken)} pictures of {items.what} cannot be "
            f"read: {broken[0]}.",
            "mend or remove them, or leave them out with skip_broken=True.",
        )
    x = RowSubset(base, np.arange(len(kept)), np.array(hashes, dtype="<u8"))
    names = tuple(_name(items, row) for row in kept)
    return _domain(items, x, names, labels, which, root=Path(), broken=tuple(broken))


def _stacked(items: Items, which: Which, skip_broken: bool) -> CustomDomain:
    """Arrays of equal shape: images, or rows of numbers."""
    pairs = list(items.pairs)
    place = Path(items.what)
    try:
        x = np.stack([_array_of(x) for x, _ in pairs]) if pairs else np.zeros((0, 0))
    except (ValueError, TypeError):
        raise UserError(
            f"The items of {items.what} are no arrays of one shape.",
            "arrays have to be of equal size; pictures of Pillow's are resized.",
        ) from None
    names = tuple(_name(items, row) for row in range(len(pairs)))
    return _domain(
        items, known_array(_eight_bits(x, items.what), place), names, [y for _, y in pairs], which
    )


def _domain(
    items: Items, x: Any, names: tuple[str, ...], labels: list[Any], which: Which, **more: Any
) -> CustomDomain:
    given = any(y is not None for y in labels)
    own = _labels(items, labels) if which == "source" else None
    return CustomDomain(
        path=Path(items.what),
        x=x,
        names=names,
        labels=own,
        labels_ignored=given and which == "target",
        columns=items.columns,
        **more,
    )


def _labels(items: Items, labels: list[Any]) -> tuple[str, ...] | None:
    """Names of all labels; None if there is none."""
    values = [y.item() if hasattr(y, "item") else y for y in labels]
    if all(y is None for y in values):
        return None
    numbers = all(isinstance(y, int) and not isinstance(y, bool) for y in values)
    if items.classes and numbers and all(0 <= y < len(items.classes) for y in values):
        return tuple(items.classes[y] for y in values)
    return label_names(np.array(values, dtype=object), len(values), Path(items.what))


def _name(items: Items, row: int) -> str:
    return str(row) if items.names is None else items.names[row]


def _is_picture(x: Any) -> bool:
    """Whether it is a picture of Pillow's, or an encoded one as Hugging Face keeps it."""
    return isinstance(x, Image.Image) or (isinstance(x, Mapping) and {"bytes", "path"} >= set(x))


def _picture(x: Any) -> Any:
    """What `decode` takes."""
    if isinstance(x, Exception):
        raise x
    if isinstance(x, Mapping):
        return io.BytesIO(x["bytes"]) if x.get("bytes") else x["path"]
    return x


def _is_one(x: Any) -> bool:
    return isinstance(x, str | Path | Image.Image | Mapping)


def _is_pair(item: Any) -> bool:
    """Whether an entry of a list is an image with its label."""
    return (
        isinstance(item, tuple)
        and len(item) == 2
        and (_is_one(item[0]) or hasattr(item[0], "__array__"))
    )


def _array_of(x: Any) -> NDArray[Any]:
    if isinstance(x, Exception):
        raise UserError(f"An item cannot be read: {x}.", "mend it, or leave it out.") from x
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _eight_bits(x: NDArray[Any], what: str) -> NDArray[Any]:
    """Images of floats from 0 to 1, as torchvision's ToTensor makes them, as uint8; all else as it
    is."""
    if x.ndim < 3 or x.dtype.kind != "f":
        return x
    low, high = float(x.min(initial=0.0)), float(x.max(initial=0.0))
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"The images of {what} hold numbers from {low:.3g} to {high:.3g}.",
            "give them before they are normalised: uint8, or floats from 0 to 1.",
        )
    eight: NDArray[np.uint8] = (255 * x).round().astype(np.uint8)
    return eight
