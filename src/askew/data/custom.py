"""The user's own data as a task without test labels: a labelled source and an unlabelled target."""

from __future__ import annotations

import hashlib
import os
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import SimilarClassesWarning, UserError
from askew.core.text import visible
from askew.data import label_shift
from askew.data.array_files import ARRAYS, label_names, read_array
from askew.data.decode import PictureFiles
from askew.data.domains import Labeled, Rows, RowSubset, Unlabeled, row_hashes
from askew.data.feature_columns import in_order_of
from askew.data.image_cache import Pictures, pictures
from askew.data.image_lists import (
    LISTS,
    TABLES,
    USUAL,
    Columns,
    Listing,
    in_order,
    read_folder,
    read_listing,
)
from askew.data.task import Task, make_unlabeled_task

Kind = Literal["embeddings", "tables", "small-images", "images"]
"""Rows of many numbers, rows of few, images in an array, or image files."""

OWN = "own"
"""In place of a benchmark's name, in the name of a task of the user's own data."""
WIDEST_TABLE = 99
"""Rows of more numbers are taken for embeddings."""


def kind_of(shape: tuple[int, ...], files: bool = False) -> Kind:
    """The kind of data, by the shape of one input and by whether inputs are image files."""
    if len(shape) == 1:
        return "tables" if shape[0] <= WIDEST_TABLE else "embeddings"
    return "images" if files else "small-images"


Which = Literal["source", "target"]

_FORMS = (
    "a folder with one sub-folder per class, a .csv or .txt list of pictures, or a .npz, .npy or "
    ".parquet array; "
    "a target may be a folder without sub-folders."
)
_MOST_NAMED = 5


@dataclass(frozen=True, eq=False, kw_only=True)
class CustomDomain:
    """One domain as the user gave it."""

    path: Path
    """Where it lies; of an object in memory, what it is."""
    x: Rows
    names: tuple[str, ...]
    """One per row: a picture's path below the root, or a row number."""
    labels: tuple[str, ...] | None
    root: Path | None = None
    """The folder of the pictures; None for an array."""
    broken: tuple[str, ...] = ()
    """Pictures that were left out, and why."""
    labels_ignored: bool = False
    """Whether it is a target that has labels, which are not read."""
    columns: tuple[str, ...] = ()
    """Names of the columns of features; empty where nothing names them. (d,)"""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class CustomData:
    """The task that two domains of the user make, and what a report should mention."""

    kind: Kind
    task: Task
    source: CustomDomain
    target: CustomDomain
    unknown: tuple[str, ...]
    """Labels of the target that the source does not have; nothing else of the target's labels is
    used."""
    shared: int
    """How many rows of the target are in the source too, bit for bit."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of features; empty where neither domain names them. (d,)"""
        return self.source.columns or self.target.columns

    @property
    def source_sizes(self) -> NDArray[np.int64]:
        """How many images of each class the source has, including those held out. (c,)"""
        data = self.task.training_data
        return data.source.sizes(len(data.classes)) + data.source_val.sizes(len(data.classes))

    @property
    def source_prior(self) -> NDArray[np.float64]:
        """The same as probabilities. (c,)"""
        prior: NDArray[np.float64] = self.source_sizes / self.source_sizes.sum()
        return prior


def list_pictures(
    path: Path, which: Which, most: int = 0, columns: Columns = USUAL
) -> Listing | None:
    """The pictures of a folder or a list, at most so many; None if it is neither."""
    if not path.exists():
        raise UserError(f"The {which} {path} does not exist.", _FORMS)
    if not (path.is_dir() or path.is_file()):
        raise UserError(f"The {which} {path} is neither a folder nor a regular file.", _FORMS)
    if path.is_dir():
        return _some(read_folder(path), which, most)
    return _some(read_listing(path, columns), which, most) if path.suffix.lower() in LISTS else None


def pictures_to_embed(path: Path, columns: Columns = USUAL) -> Listing:
    """The same; UserError if it is neither."""
    listing = list_pictures(path, "target", columns=columns)
    if listing is None:
        raise UserError(
            f"{path} is neither a folder nor a list of pictures.",
            "`askew adapt` embeds arrays of images.",
        )
    return listing


OpenPictures = Callable[[Listing], Pictures]


def open_decoded(listing: Listing) -> Pictures:
    """The listed pictures, decoded now or before into a file of the cache."""
    name = (
        "own-"
        + hashlib.sha256("\n".join(listing.paths).encode(errors="surrogateescape")).hexdigest()[:12]
    )
    return pictures(name, listing.root, listing.paths, skip_broken=True)


def open_unread(listing: Listing) -> Pictures:
    """The listed pictures, each to be decoded when it is asked for, and known by its number
    alone."""
    files, rows = (
        PictureFiles([listing.root / path for path in listing.paths]),
        np.arange(len(listing.paths)),
    )
    return Pictures(RowSubset(files, rows, rows.astype("<u8")), rows, {})


def read_domain(
    path: Path,
    which: Which,
    skip_broken: bool = False,
    most: int = 0,
    columns: Columns = USUAL,
    open_pictures: OpenPictures = open_decoded,
) -> CustomDomain:
    """Read a folder, a list or an array file. A target's labels are ignored, but for their names.

    `most` limits the number of rows, in proportion to the classes and with at least two of
    each.
    """
    listing, suffix = list_pictures(path, which, most, columns), path.suffix.lower()
    if listing is not None:
        domain = listed_domain(path, listing, which, skip_broken, open_pictures)
    elif suffix in ARRAYS:
        found = read_array(path)
        names = tuple(str(row) for row in range(len(found.x)))
        labels = (
            None if found.y is None or which == "target" else label_names(found.y, len(names), path)
        )
        domain = CustomDomain(
            path=path,
            x=found.x,
            names=names,
            labels=labels,
            labels_ignored=found.y is not None and which == "target",
            columns=found.columns,
        )
        domain = _sampled(domain, which, most)
    else:
        raise UserError(f"The {which} {path} is neither a folder nor a list nor an array.", _FORMS)
    if which == "source":
        require_labels(domain)
    return domain


def require_labels(domain: CustomDomain) -> None:
    """UserError if a source has none."""
    if domain.labels is not None:
        return
    flat = sum("/" not in name for name in domain.names)
    if domain.path.is_dir() and flat < len(domain.names):
        raise UserError(
            f"{flat} of the {len(domain.names)} pictures in {domain.path} lie outside its class "
            "folders.",
            "put every picture of the source into the sub-folder of its class.",
        )
    if domain.path.suffix.lower() in TABLES and domain.path.is_file():
        with domain.path.open(encoding="utf-8-sig") as lines:
            first = next(lines).strip()
        raise UserError(
            f"The source {domain.path} has no labels: its first line is '{first[:80]}'.",
            "the column of labels is called label, class or y, or as --label-column (in Python: "
            "label=) says.",
        )
    raise UserError(
        f"The source {domain.path} has no labels.", f"it needs {_FORMS.partition(';')[0]} with y."
    )


def _sampled(domain: CustomDomain, which: str, most: int) -> CustomDomain:
    """About `most` rows of a domain; those of a target are drawn without regard to its labels."""
    n = len(domain.names)
    if not most or n <= most:
        return domain
    rows = _draw(n, domain.labels if which == "source" else None, most)
    x = domain.x.pick(rows) if isinstance(domain.x, RowSubset) else domain.x[rows]
    names = tuple(domain.names[i] for i in rows)
    labels = None if domain.labels is None else tuple(domain.labels[i] for i in rows)
    return replace(domain, x=x, names=names, labels=labels)


def _draw(n: int, labels: Sequence[str] | None, most: int) -> NDArray[np.int64]:
    """Draw about `most` of n rows, in proportion to classes, with at least two of each."""
    y = np.unique(np.array(labels or [""] * n), return_inverse=True)[1]
    sizes = np.bincount(y)
    return label_shift.draw(y, np.minimum(sizes, np.maximum(2, sizes * most // n)), 0)


def _some(listing: Listing, which: str, most: int) -> Listing:
    """About `most` pictures of a listing; those of a target are drawn without regard to its
    labels."""
    n = len(listing.paths)
    if not most or n <= most:
        return listing
    rows = _draw(n, listing.labels if which == "source" else None, most).tolist()
    labels = None if listing.labels is None else tuple(listing.labels[i] for i in rows)
    return Listing(listing.root, tuple(listing.paths[i] for i in rows), labels)


def listed_domain(
    path: Path,
    listing: Listing,
    which: Which,
    skip_broken: bool,
    open_pictures: OpenPictures = open_decoded,
) -> CustomDomain:
    """The listed pictures; broken or missing ones are a UserError, or left out if allowed."""
    found = open_pictures(listing)
    broken = tuple(f"{name}: {why}" for name, why in found.broken.items())
    if broken and not (skip_broken and len(found.kept)):
        first = visible("; ".join(broken[:3]), keep="") + ("; …" if len(broken) > 3 else "")
        raise UserError(
            f"{len(broken)} of the {len(listing.paths)} pictures of {path} cannot be read: "
            f"{first}.",
            ("" if path.is_dir() else f"paths are relative to {listing.root.resolve()}; ")
            + "mend or remove them, or leave them out with --skip-broken.",
        )
    kept = found.kept.tolist()
    labels = None if listing.labels is None else tuple(listing.labels[i] for i in kept)
    names = tuple(listing.paths[i] for i in kept)
    ignored = labels is not None and which == "target"
    return CustomDomain(
        path=path,
        x=found.x,
        names=names,
        labels=labels,
        root=listing.root,
        broken=broken,
        labels_ignored=ignored,
    )


def load_custom_data(
    source: Path | CustomDomain,
    target: Path | CustomDomain,
    skip_broken: bool = False,
    most: int = 0,
    columns: Columns = USUAL,
    open_pictures: OpenPictures = open_decoded,
) -> CustomData:
    """Both domains as a task without test labels; of each source class, a tenth is held out for
    validation."""
    if isinstance(source, Path) and isinstance(target, Path):
        _apart(source, target)
    if isinstance(source, Path):
        source = read_domain(source, "source", skip_broken, most, columns, open_pictures)
    else:
        source = _sampled(source, "source", most)
    if isinstance(target, Path):
        target = read_domain(target, "target", skip_broken, most, columns, open_pictures)
    else:
        target = _sampled(target, "target", most)
    if len(target.names) < 2:
        raise UserError(
            f"The target {target.path} holds one image, which is too few to adapt to.",
            "name more; `askew predict` answers for one, by a model that is there.",
        )
    assert source.labels is not None
    classes = _classes(source.labels, source.path)
    warn_of_similar({*classes, *(target.labels or ())})
    target = in_columns_of(target, source.columns, f"the source {source.path}")
    xs, xt = _alike(source, target)
    index = {name: k for k, name in enumerate(classes)}
    whole = Labeled(xs, np.array([index[label] for label in source.labels], dtype=np.int64))
    if not (whole.sizes(len(classes)) > 1).any():
        raise UserError(
            f"No class of the source {source.path} has two images, so none can be held out.",
            "label a few more.",
        )
    kind = kind_of(source.shape, source.root is not None)
    return CustomData(
        kind=kind,
        task=make_unlabeled_task(f"{OWN}/{kind}", whole, Unlabeled(xt), classes),
        source=source,
        target=target,
        unknown=_unknown(target.labels or (), classes),
        shared=int(np.isin(row_hashes(target.x), row_hashes(source.x)).sum())
        if source.shape == target.shape
        else 0,
    )


def _unknown(labels: tuple[str, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Labels that are no class of the source; if none of them is one, sub-folders have some other
    meaning."""
    names = set(labels)
    return tuple(in_order(list(names.difference(classes)))) if names.intersection(classes) else ()


def _apart(source: Path, target: Path) -> None:
    """UserError if source and target are the same, or one lies inside the other and would be read
    twice."""
    here, there = (Path(os.path.realpath(path)) for path in (source, target))
    if here == there:
        raise UserError(f"Source and target are the same: {source}.", "name two different places.")
    for outer, inner in ((here, there), (there, here)):
        if inner.is_dir() and outer.is_dir() and inner.is_relative_to(outer):
            raise UserError(
                f"The folder {inner} lies inside {outer}.",
                "move it: its pictures would be read twice.",
            )


def _classes(labels: tuple[str, ...], path: Path) -> tuple[str, ...]:
    names = set(labels)
    if len(names) < 2:
        raise UserError(
            f"The source {path} has one class, {names.pop()}.",
            "there is nothing to tell apart; add another.",
        )
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=_as_number))
    return tuple(in_order(list(names)))


def _as_number(name: str) -> tuple[int, str, str]:
    """A key that sorts digits by their number, however many there are; equal numbers by name."""
    digits = "".join(str(unicodedata.decimal(digit)) for digit in name).lstrip("0")
    return len(digits), digits, name


def warn_of_similar(names: Iterable[str]) -> None:
    """Warn of class names that differ in case, spaces or Unicode form alone."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        plain = unicodedata.normalize("NFKC", name).casefold()
        alike["".join(character for character in plain if not character.isspace())].append(name)
    for several in alike.values():
        if len(several) > 1:
            shown = " and ".join(ascii(name) for name in several[:_MOST_NAMED])
            warnings.warn(
                f"The classes {shown} differ in case, spaces or Unicode form alone: if they are "
                "one class, give them one name.",
                SimilarClassesWarning,
                stacklevel=2,
            )


def in_columns_of(domain: CustomDomain, wanted: Sequence[str], origin: str) -> CustomDomain:
    """Put a domain's columns in the wanted order, by name; UserError if the names differ."""
    order = in_order_of(wanted, domain.columns, f"The {domain.path}", origin)
    if order is None:
        return domain
    x = np.ascontiguousarray(np.asarray(domain.x)[:, order])
    return replace(domain, x=x, columns=tuple(wanted))


def _alike(source: CustomDomain, target: CustomDomain) -> tuple[Rows, Rows]:
    """Both as one network takes them: of equal shape, grey images beside coloured ones in three
    channels."""
    xs, xt = source.x, target.x
    if xs.ndim == xt.ndim == 4 and xs.shape[1] != xt.shape[1] and xs.shape[2:] == xt.shape[2:]:
        xs, xt = (_in_colour(x) for x in (xs, xt))
    if xs.shape[1:] != xt.shape[1:]:
        raise UserError(
            f"The source is {_described(source.shape)} and the target {_described(target.shape)}.",
            "make both in the same way: equal sizes, or embeddings of one network.",
        )
    return xs, xt


def _in_colour(x: Rows) -> NDArray[Any]:
    whole = np.asarray(x)
    return whole if whole.shape[1] == 3 else np.ascontiguousarray(np.repeat(whole, 3, axis=1))


def _described(shape: tuple[int, ...]) -> str:
    return (
        f"rows of {shape[0]} numbers"
        if len(shape) == 1
        else f"images of {' x '.join(map(str, shape))}"
    )


def few(names: tuple[str, ...]) -> str:
    """The first few of many names, as text."""
    return ", ".join(names[:_MOST_NAMED]) + (
        f", … ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    )
