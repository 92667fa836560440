"""Domains as folders of pictures, `<domain>/<class>/<picture>`, and the tasks between two of
them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.data import label_shift
from askew.data.benchmarks.split_lists import Entry, find_list, list_folders, numbering, read_list
from askew.data.decode import SUFFIXES
from askew.data.domains import Labeled
from askew.data.image_cache import pictures
from askew.data.image_lists import in_order
from askew.data.paths import data_folder, find_folder, plain
from askew.data.task import Info, Listed, Pool, Shift, Task, make_task

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A published set of pictures in several domains."""

    name: str
    folders: tuple[str, ...]
    """Names that its folder may have in the data folder; messages use the first."""
    domains: Mapping[str, tuple[str, ...]]
    """What each domain's folder may be called, by its short name."""
    classes: int
    lists: bool = False
    """Whether lists of its draws were published."""

    def root(self, data: Path) -> Path | None:
        """Its folder, where there is one."""
        folder = find_folder(data, self.folders)
        if folder and not any(find_folder(folder, names) for names in self.domains.values()):
            # Archives often unpack into a folder of their own, such as PACS/kfold.
            inner = [p for p in sorted(folder.iterdir()) if p.is_dir()]
            return next(
                (p for p in inner if any(find_folder(p, n) for n in self.domains.values())), folder
            )
        return folder

    def domain(self, data: Path, short: str) -> Path:
        """A domain's folder."""
        root, names = self.root(data), self.domains[short]
        folder = root and find_folder(root, names)
        if folder is None:
            raise UserError(
                f"The pictures {data / self.folders[0] / names[0]} are missing.",
                f"expected {self.folders[0]}/{names[0]}/<class>/<picture>; `askew data fetch "
                f"{self.name}` "
                "tells where to get them.",
            )
        return folder


def class_files(folder: Path) -> dict[str, list[str]]:
    """The picture files of a domain by class folder; hidden files and files of other kinds are
    ignored."""
    found: dict[str, list[str]] = {}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = (
            p for p in sub.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
        )
        found[sub.name] = sorted(p.name for p in files)
    return found


def all_paths(files: Mapping[str, Sequence[str]]) -> list[str]:
    """`<class>/<picture>` of every file."""
    return [f"{c}/{file}" for c, names in files.items() for file in names]


def hash_order(paths: Sequence[str]) -> list[str]:
    """Paths in the order of their hashes, so that an image's row index does not reveal its
    class."""
    return sorted(paths, key=lambda path: hashlib.sha256(os.fsencode(path)).digest())


def cache_name(data_set: str, domain: str) -> str:
    return f"{data_set}--{plain(domain)}"


@dataclass(frozen=True, eq=False)
class Domain:
    """The decoded pictures of one domain."""

    folder: Path
    images: Labeled
    paths: tuple[str, ...]
    """`<class>/<picture>` of each image."""
    broken: tuple[str, ...]
    """The same of pictures that could not be decoded and were left out."""

    @property
    def notes(self) -> tuple[str, ...]:
        n = len(self.broken)
        return (
            (f"{n} broken picture{'s' if n > 1 else ''} of {self.folder.name} left out",)
            if n
            else ()
        )

    def rows(self, list_file: Path, entries: Sequence[Entry]) -> Rows:
        """The row indices of a list's pictures, in rising order; UserError if some are not
        there."""
        row_of = {_key(*path.split("/")): row for row, path in enumerate(self.paths)}
        broken = {_key(*path.split("/")) for path in self.broken}
        wanted = {_key(e.folder, e.file): e for e in entries}
        missing = [e for key, e in wanted.items() if key not in row_of and key not in broken]
        if missing:
            raise missing_pictures(missing, len(entries), list_file)
        return np.array(sorted(row_of[key] for key in wanted if key in row_of), dtype=np.int64)


def _key(folder: str, file: str) -> tuple[str, str]:
    return plain(folder), file


def missing_pictures(missing: Sequence[Entry], n: int, list_file: Path) -> UserError:
    return UserError(
        f"{len(missing)} of the {n} pictures in {list_file} are missing, the first is "
        f"{missing[0].folder}/{missing[0].file}.",
        "unpack the data set again, or move the list away.",
    )


def load_domain(name: str, folder: Path, classes: Sequence[str], paths: Sequence[str]) -> Domain:
    """Decode a domain's pictures, `<class>/<picture>` each; the class is the folder's name."""
    paths = hash_order(paths)
    decoded = pictures(name, folder, paths)
    kept = [paths[i] for i in decoded.kept.tolist()]
    index = {plain(c): k for k, c in enumerate(classes)}
    y = np.array([index[plain(path.split("/")[0])] for path in kept], dtype=np.int64)
    return Domain(folder, Labeled(decoded.x, y), tuple(kept), tuple(decoded.broken))


SAME_IMAGES = (
    "a domain has no test split: the unbalanced test images are those adapted on, as in "
    "related work"
)


def load_pair(
    data_set: DataSet, name: str, info: Info, shift: Shift, draw: int, data: Path | None
) -> Task:
    """A task between two domains that have no test split.

    Adapted on is the target under the shift (UT), which is also the paper's test split; `whole` is
    all of the target domain, which has the same classes and more images. Draw 0 is the published
    lists where they are found, under the shifts that have some (rs-ut: `<Domain>_RS.txt` and
    `_UT.txt`, bs-bt: `_BS` and `_BT`); else the rule draws.
    """
    data, pair = data_folder(data), (info.source, info.target)
    folders = [data_set.domain(data, short) for short in pair]
    files = [class_files(folder) for folder in folders]
    classes = _common_classes(folders, files)
    source, target = (
        load_domain(cache_name(data_set.name, short), folder, classes, all_paths(of))
        for short, folder, of in zip(pair, folders, files, strict=True)
    )
    listed, notes = None, [SAME_IMAGES]
    if draw == 0 and data_set.lists and shift.kind in LIST_SUFFIXES:
        lists = find_lists(data_set, data, pair, LIST_SUFFIXES[shift.kind])
        listed = lists and published_rows(lists, (source, target))
        notes += _list_notes(lists, classes)
    if (
        len(classes) != data_set.classes
    ):  # as in a part of the data set; the tail then runs over these
        notes.append(
            f"{len(classes)} classes were found where {data_set.name} has {data_set.classes}"
        )
    c = len(classes)
    pools = Pool.of(source.images, c), Pool.of(target.images, c)
    tail = label_shift.picture_tail(c)
    made = make_task(
        f"{data_set.name}/{name}", classes, tail, shift, draw, *pools, target.images, listed
    )
    return Task(
        made.name,
        made.training_data,
        made.test,
        (*notes, *source.notes, *target.notes, *made.notes),
    )


def _common_classes(
    folders: Sequence[Path], files: Sequence[Mapping[str, Sequence[str]]]
) -> tuple[str, ...]:
    names = [{plain(c): c for c, own in of.items() if own} for of in files]
    for here, there in ((0, 1), (1, 0)):
        for name in names[here].keys() - names[there].keys():
            raise UserError(
                f"The class {names[here][name]} has pictures in {folders[here]} and none in "
                f"{folders[there]}.",
                "both domains need the same class folders.",
            )
    if len(names[0]) < 2:
        raise UserError(
            f"There are no class folders with pictures in {folders[0]}.",
            "expected <class>/<picture>.",
        )
    return tuple(in_order(list(names[0].values())))


LIST_SUFFIXES = {"rs-ut": ("RS", "UT"), "bs-bt": ("BS", "BT")}
"""Ends of the names of the published lists, of source and target, by kind of label shift."""

Lists = tuple[tuple[Path, list[Entry]], tuple[Path, list[Entry]]]
"""The published lists of source and target, and their lines."""


def find_lists(
    data_set: DataSet, data: Path, pair: tuple[str, str], suffixes: tuple[str, str]
) -> Lists | None:
    """The published lists of two domains; None if one is not found."""
    places = list_folders(data, data_set.root(data), data_set.folders[0])
    source, target = (
        find_list(places, [f"{name}_{suffix}" for name in data_set.domains[short]])
        for short, suffix in zip(pair, suffixes, strict=True)
    )
    if source is None or target is None:
        return None
    return (source, read_list(source)), (target, read_list(target))


def published_rows(lists: Lists, domains: tuple[Domain, Domain]) -> Listed:
    """The row indices of the listed pictures in their domains."""
    source, target = (domain.rows(*of) for domain, of in zip(domains, lists, strict=True))
    return Listed(source, target)


def _list_notes(lists: Lists | None, classes: Sequence[str]) -> list[str]:
    if lists is None:
        return ["images drawn by the rule; the published lists were not found"]
    numbers = numbering(entry for _, entries in lists for entry in entries)
    notes = ["images of the published lists"]
    if numbers != {plain(c): k for k, c in enumerate(classes) if plain(c) in (numbers or {})}:
        notes.append(
            "label numbers of the lists differ from the classes' order: classes go by their "
            "folders' names"
        )
    return notes
