"""Domains as folders of pictures, `<domain>/<class>/<picture>`, and the tasks between two of them."""

from __future__ import annotations

import hashlib
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
from askew.data.task import Listed, Pool, Shift, Task, make_task

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class DataSet:
    """A published set of pictures in several domains."""

    name: str
    folders: tuple[str, ...]
    """Names that its folder may have in the data folder; the first is the one to use."""
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
            return next((p for p in inner if any(find_folder(p, n) for n in self.domains.values())), folder)
        return folder

    def domain(self, data: Path, short: str) -> Path:
        """A domain's folder."""
        root, names = self.root(data), self.domains[short]
        folder = root and find_folder(root, names)
        if folder is None:
            raise UserError(
                f"The pictures {data / self.folders[0] / names[0]} are missing.",
                f"expected {self.folders[0]}/{names[0]}/<class>/<picture>; `askew data fetch {self.name}` "
                "says where they come from.",
            )
        return folder


def class_files(folder: Path) -> dict[str, list[str]]:
    """The pictures of a domain by class folder; hidden files and what is no picture are passed over."""
    found: dict[str, list[str]] = {}
    for sub in sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")):
        files = (p for p in sub.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        found[sub.name] = sorted(p.name for p in files)
    return found


def by_chance(paths: Sequence[str]) -> list[str]:
    """Paths in an order that says nothing of their classes: neither an image's place nor its row number may tell."""
    return sorted(paths, key=lambda path: hashlib.sha256(path.encode()).digest())


@dataclass(frozen=True, eq=False)
class Domain:
    """The decoded pictures of one domain."""

    images: Labeled
    paths: tuple[str, ...]
    """`<class>/<picture>` of each."""
    notes: tuple[str, ...] = ()

    def rows(self, entries: Sequence[Entry], list_file: Path, skipped: Sequence[str] = ()) -> Rows:
        """The rows of a list's pictures, in rising order."""
        places = {_key(*path.split("/")): row for row, path in enumerate(self.paths)}
        left_out = {_key(*path.split("/")) for path in skipped}
        wanted = {_key(e.folder, e.file): e for e in entries}
        missing = [e for key, e in wanted.items() if key not in places and key not in left_out]
        if missing:
            raise missing_pictures(missing, len(entries), list_file)
        return np.array(sorted(places[key] for key in wanted if key in places), dtype=np.int64)


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
    paths = by_chance(paths)
    decoded = pictures(name, folder, paths)
    kept = [paths[i] for i in decoded.kept.tolist()]
    index = {plain(c): k for k, c in enumerate(classes)}
    y = np.array([index[plain(path.split("/")[0])] for path in kept], dtype=np.int64)
    n = len(decoded.broken)
    notes = (f"{n} broken picture{'s' if n > 1 else ''} of {folder.name} left out",) if n else ()
    return Domain(Labeled(decoded.x, y), tuple(kept), notes)


def cache_name(data_set: str, domain: str) -> str:
    return f"{data_set}--{plain(domain)}"


def all_paths(files: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{c}/{file}" for c, names in files.items() for file in names]


SAME_IMAGES = "a domain has one part: the unbalanced exam is the images adapted on, as peers have it"


def load_pair(
    data_set: DataSet, task: str, source: str, target: str, shift: Shift, draw: int, data: Path | None
) -> Task:
    """A task between two domains that have one part each.

    Adapted on is the target under the shift (UT), and that is the paper's exam; `whole` is all of the target domain,
    which has the same classes and more images. Draw 0 is the published lists where they are at hand, under the shifts
    that have some (rs-ut: `<Domain>_RS.txt` and `_UT.txt`, bs-bt: `_BS` and `_BT`); else the rule draws.
    """
    data = data_folder(data)
    folders = [data_set.domain(data, short) for short in (source, target)]
    files = [class_files(folder) for folder in folders]
    classes = _common_classes(folders, files)
    # Sets of one's own have fewer; the tail then runs over those, and the table says so.
    notes: tuple[str, ...] = ()
    if len(classes) != data_set.classes:
        notes = (f"{len(classes)} classes were found where {data_set.name} has {data_set.classes}",)
    tail = label_shift.picture_tail(len(classes))
    domains = [
        load_domain(cache_name(data_set.name, short), folder, classes, all_paths(own))
        for short, folder, own in zip((source, target), folders, files, strict=True)
    ]
    listed, about = _published(data_set, (source, target), shift, draw, data, domains, files, classes)
    own_source, own_target = (Pool.of(domain.images, len(classes)) for domain in domains)
    made = make_task(
        f"{data_set.name}/{task}", classes, tail, shift, draw, own_source, own_target, domains[1].images, listed
    )
    notes += tuple(note for domain in domains for note in domain.notes)
    return Task(made.name, made.training_data, made.test, (SAME_IMAGES, *about, *notes, *made.notes))


def _common_classes(folders: Sequence[Path], files: Sequence[Mapping[str, Sequence[str]]]) -> tuple[str, ...]:
    names = [{plain(c): c for c, own in of.items() if own} for of in files]
    for here, there in ((0, 1), (1, 0)):
        for name in names[here].keys() - names[there].keys():
            raise UserError(
                f"The class {names[here][name]} has pictures in {folders[here]} and none in {folders[there]}.",
                "both domains need the same class folders.",
            )
    if len(names[0]) < 2:
        raise UserError(f"There are no class folders with pictures in {folders[0]}.", "expected <class>/<picture>.")
    return tuple(in_order(list(names[0].values())))


_LISTS = {"rs-ut": ("RS", "UT"), "bs-bt": ("BS", "BT")}


def _published(
    data_set: DataSet,
    shorts: tuple[str, str],
    shift: Shift,
    draw: int,
    data: Path,
    domains: Sequence[Domain],
    files: Sequence[Mapping[str, Sequence[str]]],
    classes: Sequence[str],
) -> tuple[Listed | None, tuple[str, ...]]:
    """The rows of the published lists, if all of them are at hand, and what is to be said of them."""
    if not data_set.lists or draw != 0 or shift.kind not in _LISTS:
        return None, ()
    places = list_folders(data, data_set.root(data), data_set.folders[0])
    found = [
        find_list(places, [f"{name}_{side}" for name in data_set.domains[short]])
        for short, side in zip(shorts, _LISTS[shift.kind], strict=True)
    ]
    if found[0] is None or found[1] is None:
        return None, ("images drawn by the rule; the published lists were not at hand",)
    entries = [read_list(path) for path in found if path]
    rows = []
    for domain, own, path, of in zip(domains, entries, (found[0], found[1]), files, strict=True):
        skipped = set(all_paths(of)) - set(domain.paths)
        rows.append(domain.rows(own, path, sorted(skipped)))
    numbers = numbering(entry for own in entries for entry in own)
    notes = ["images of the published lists"]
    if numbers != {plain(c): k for k, c in enumerate(classes) if plain(c) in (numbers or {})}:
        notes.append("label numbers of the lists differ from the classes' order: classes go by their folders' names")
    return Listed(rows[0], rows[1]), tuple(notes)
