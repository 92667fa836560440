"""Which data sets are on this machine, and whether they are complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from askew.core.errors import UserError, unknown
from askew.data import label_shift
from askew.data.benchmarks.digit_files import Part as DigitPart
from askew.data.benchmarks.digit_files import find_part, places, read_labels
from askew.data.benchmarks.domainnet import DOMAINNET, PARTS
from askew.data.benchmarks.domainnet import find_part as find_list_of
from askew.data.benchmarks.image_trees import (
    DataSet,
    all_paths,
    cache_name,
    class_files,
    hash_order,
)
from askew.data.benchmarks.office_home import OFFICE_HOME
from askew.data.benchmarks.pacs import PACS
from askew.data.benchmarks.split_lists import find_list, list_folders, read_list
from askew.data.image_cache import pictures
from askew.data.paths import find_folder, plain

State = Literal["complete", "enough", "short", "missing", "unreadable"]
"""complete: as published; enough: images are missing, but tasks are the same; short: tasks would
differ."""

UNTRIED = "not tried: askew was written where no such address can be reached"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a data set: what was found of it."""

    name: str
    where: str
    found: int
    published: int
    state: State
    note: str = ""
    needed: bool = True


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set that commands know by name, and how to get it."""

    title: str
    folder: str
    """Where it belongs in the data folder."""
    get: str
    """The command that fetches it, or where a person finds it."""
    look: Callable[[Path], Iterator[Part]]
    fetched: bool = False
    """Whether `askew data fetch` can download it."""
    hub: str = ""
    """A data set of the Hub that holds its images."""


_RULE = {  # images that the label-shift rule draws of the whole part
    ("mnist", "train"): 12_144,
    ("mnist", "test"): 2_181,
    ("usps", "train"): 1_432,
    ("usps", "test"): 390,
    ("svhn", "train"): 10_395,
}
_PUBLISHED = {
    ("mnist", "train"): 60_000,
    ("mnist", "test"): 10_000,
    ("usps", "train"): 7_291,
    ("usps", "test"): 2_007,
    ("svhn", "train"): 73_257,
}
OFFICE_HOME_IMAGES = {"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "Real World": 4_357}
_PACS = {"photo": 1_670, "art_painting": 2_048, "cartoon": 2_344, "sketch": 3_929}
_DOMAINNET = {
    ("real", "train"): 16_141,
    ("painting", "train"): 6_727,
    ("clipart", "train"): 3_707,
    ("sketch", "train"): 5_537,
    ("real", "test"): 6_943,
    ("painting", "test"): 2_909,
    ("clipart", "test"): 1_616,
    ("sketch", "test"): 2_399,
}


def _digits(name: str, data: Path) -> Iterator[Part]:
    for (own, part), published in _PUBLISHED.items():
        if own == name:
            yield _digit_part(data, name, "train" if part == "train" else "test", published)


def _digit_part(data: Path, name: str, part: DigitPart, published: int) -> Part:
    files = find_part(data, name, part)
    if not files:
        return Part(
            name=part,
            where=str(places(data, name)[0]),
            found=0,
            published=published,
            state="missing",
        )
    try:
        y = read_labels(data, name, part)
        drawn = y[5_000:] if (name, part) == ("mnist", "train") else y
        sizes = np.bincount(drawn, minlength=10)
        by_rule = (
            int(label_shift.rs_counts(sizes, label_shift.DIGITS_TAIL).sum())
            if min(sizes[0], sizes[9])
            else 0
        )
    except UserError as error:
        return Part(
            name=part,
            where=str(files[0]),
            found=0,
            published=published,
            state="unreadable",
            note=error.sentence,
        )
    wanted = _RULE[name, part]
    note = f"the rule draws {by_rule:,}" + (
        "" if by_rule == wanted else f" where the whole gives {wanted:,}"
    )
    state: State = "complete" if len(y) == published else "enough" if by_rule == wanted else "short"
    return Part(
        name=part, where=str(files[0]), found=len(y), published=published, state=state, note=note
    )


def _tree(data_set: DataSet, published: dict[str, int], data: Path) -> Iterator[Part]:
    """Domains of one part each; a domain that no task uses may be missing."""
    needed = {plain(name) for names in data_set.domains.values() for name in names}
    for domain, n in published.items():
        root = data_set.root(data)
        folder = root and find_folder(root, [domain])
        where = data / data_set.folders[0] / domain
        if not folder:
            yield Part(
                name=domain,
                where=str(where),
                found=0,
                published=n,
                state="missing",
                needed=plain(domain) in needed,
            )
            continue
        files = class_files(folder)
        found, classes = sum(map(len, files.values())), sum(map(bool, files.values()))
        state: State = (
            "complete" if found == n else "enough" if classes == data_set.classes else "short"
        )
        note = f"{classes} of {data_set.classes} classes"
        yield Part(
            name=domain,
            where=str(folder),
            found=found,
            published=n,
            state=state,
            note=note,
            needed=plain(domain) in needed,
        )
    if data_set.lists:
        yield from _draw_lists(data_set, data)


def _draw_lists(data_set: DataSet, data: Path) -> Iterator[Part]:
    places = list_folders(data, data_set.root(data), data_set.folders[0])
    names = [
        (domain, side)
        for names in data_set.domains.values()
        for domain in names
        for side in ("RS", "UT")
    ]
    found = [path for domain, side in names if (path := find_list(places, [f"{domain}_{side}"]))]
    note = (
        "" if len(found) == len(names) else "without them the rule draws as many images, but others"
    )
    where = str(found[0].parent if found else places[0])
    state: State = "complete" if len(found) == len(names) else "missing"
    yield Part(
        name="lists RS, UT",
        where=where,
        found=len(found),
        published=len(names),
        state=state,
        note=note,
        needed=False,
    )


def _listed(data: Path) -> Iterator[Part]:
    """DomainNet-40: its lists, and how many of their pictures are there."""
    for short, (domain, *_) in DOMAINNET.domains.items():
        root = DOMAINNET.root(data)
        folder = root and find_folder(root, [domain])
        there = (
            {(plain(c), f) for c, names in class_files(folder).items() for f in names}
            if folder
            else set()
        )
        for part in PARTS:
            n, name = _DOMAINNET[domain, part], f"{domain} {part}"
            state: State = "missing"
            try:
                path = find_list_of(data, short, part)
                state = "unreadable"
                entries = read_list(path)
            except UserError as error:
                yield Part(
                    name=name,
                    where=f"{domain}_{part}_mini.txt",
                    found=0,
                    published=n,
                    state=state,
                    note=error.sentence,
                )
                continue
            found = sum((plain(e.folder), e.file) in there for e in entries)
            note = f"the list names {len(entries):,}" + (
                "" if len(entries) == n else ", not as published"
            )
            whole = found == len(entries)
            state = (
                "complete"
                if whole and found == n
                else "enough"
                if whole
                else "short"
                if found
                else "missing"
            )
            yield Part(name=name, where=str(path), found=found, published=n, state=state, note=note)


_LISTS_AT = "https://github.com/LeoXinhaoLee/Imbalanced-Source-free-Domain-Adaptation"

SOURCES = {
    "mnist": Source(
        title="MNIST",
        folder="digits/mnist",
        get="askew data fetch mnist",
        look=partial(_digits, "mnist"),
        fetched=True,
    ),
    "usps": Source(
        title="USPS",
        folder="digits/usps",
        get="askew data fetch usps",
        look=partial(_digits, "usps"),
        fetched=True,
    ),
    "svhn": Source(
        title="SVHN, cropped",
        folder="digits/svhn",
        get="askew data fetch svhn",
        look=partial(_digits, "svhn"),
        fetched=True,
    ),
    "office-home": Source(
        title="Office-Home",
        folder="office_home/<Domain>/<Class>/*.jpg",
        get="askew data fetch office-home, or https://www.hemanthdv.org/officeHomeDataset.html; "
        f"lists <Domain>_RS.txt and _UT.txt: {_LISTS_AT}",
        look=partial(_tree, OFFICE_HOME, OFFICE_HOME_IMAGES),
        hub="flwrlabs/office-home",
    ),
    "domainnet": Source(
        title="DomainNet, 40 classes",
        folder="domainnet/<domain>/<class>/*.jpg and domainnet/<domain>_{train,test}_mini.txt",
        get=f"http://ai.bu.edu/M3SDA/; lists <domain>_{{train,test}}_mini.txt: {_LISTS_AT}",
        look=_listed,
    ),
    "pacs": Source(
        title="PACS",
        folder="pacs/<domain>/<class>/*.jpg",
        get="https://dali-dl.github.io/project_iccv2017.html",
        look=partial(_tree, PACS, _PACS),
    ),
}


def source_named(name: str) -> Source:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES, "`askew data list` lists them.")
    return SOURCES[name]


def overall(parts: list[Part]) -> State:
    """The worst state among the parts that tasks need."""
    order: list[State] = ["missing", "unreadable", "short", "enough", "complete"]
    needed = [part.state for part in parts if part.needed]
    if "missing" in needed and set(needed) != {"missing"}:
        return "short"
    return min(needed, key=order.index)


def decode_all(name: str, data: Path, skip_broken: bool) -> dict[str, dict[str, str]]:
    """Decode all pictures that tasks use, compare cached ones with their index, and return broken
    ones by domain."""
    broken: dict[str, dict[str, str]] = {}
    data_set = {"office-home": OFFICE_HOME, "domainnet": DOMAINNET, "pacs": PACS}[name]
    root = data_set.root(data)
    for short, names in data_set.domains.items():
        folder = root and find_folder(root, names)
        if not folder:
            continue
        paths = all_paths(class_files(folder))
        if data_set is DOMAINNET:
            entries = [e for part in PARTS for e in read_list(find_list_of(data, short, part))]
            wanted = {(plain(e.folder), e.file) for e in entries}
            paths = [p for p in paths if (plain(p.split("/")[0]), p.split("/")[1]) in wanted]
        done = pictures(
            cache_name(name, short), folder, hash_order(paths), skip_broken=skip_broken, whole=True
        )
        broken[folder.name] = done.broken
    return broken
