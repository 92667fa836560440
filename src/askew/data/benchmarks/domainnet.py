"""DomainNet (Peng et al., ICCV 2019) as in the paper: 40 classes of real, clipart, painting and
sketch.

`<data>/domainnet/<domain>/<class>/*` and the lists `<domain>_train_mini.txt` and
`<domain>_test_mini.txt`. The label shift is the domains' own: the lists are taken as they are, the
target is adapted on its train part and scored on its test split, and the source's test split serves
for validation.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np

from askew.core.errors import UserError
from askew.data.benchmarks.image_trees import (
    DataSet,
    Domain,
    cache_name,
    class_files,
    load_domain,
    missing_pictures,
)
from askew.data.benchmarks.split_lists import Entry, find_list, list_folders, numbering, read_list
from askew.data.domains import Labeled
from askew.data.image_lists import in_order
from askew.data.paths import data_folder, plain
from askew.data.task import Info, Pool, Shift, Task, make_task

DOMAINNET = DataSet(
    name="domainnet",
    folders=("domainnet",),
    domains={"r": ("real",), "c": ("clipart",), "p": ("painting",), "s": ("sketch",)},
    classes=40,
)
PARTS = ("train", "test")

TASKS = {
    f"{s}-{t}": Info(source=s, target=t, network="resnet50", shift="natural")
    for s, t in permutations(DOMAINNET.domains, 2)
}


def find_part(data: Path, short: str, part: str) -> Path:
    """The list of a domain's part."""
    places = list_folders(data, DOMAINNET.root(data), DOMAINNET.folders[0])
    names = [f"{domain}_{part}_mini" for domain in DOMAINNET.domains[short]]
    found = find_list(places, names)
    if found is None:
        raise UserError(
            f"The list {names[0]}.txt is missing.",
            f"put the DomainNet-40 lists into {data / DOMAINNET.folders[0]}, or name their "
            "folder in ASKEW_LISTS; "
            "`askew data fetch domainnet` tells where to get them.",
        )
    return found


def listed_paths(folder: Path, entries: list[Entry], list_file: Path) -> list[str]:
    """`<class>/<picture>` of a list's pictures, as they are spelled on the disk."""
    there = {(plain(c), f): f"{c}/{f}" for c, names in class_files(folder).items() for f in names}
    missing = [e for e in entries if (plain(e.folder), e.file) not in there]
    if missing:
        raise missing_pictures(missing, len(entries), list_file)
    return list(dict.fromkeys(there[plain(e.folder), e.file] for e in entries))


def load_parts(data: Path, short: str, classes: tuple[str, ...]) -> tuple[Labeled, Labeled, Domain]:
    """A domain's training and test split, from one cache."""
    folder = DOMAINNET.domain(data, short)
    lists = [find_part(data, short, part) for part in PARTS]
    paths = [listed_paths(folder, read_list(path), path) for path in lists]
    if twice := set(paths[0]) & set(paths[1]):
        raise UserError(
            f"{min(twice)} is in both {lists[0]} and {lists[1]}.",
            "a test picture must not be trained on.",
        )
    domain = load_domain(cache_name(DOMAINNET.name, short), folder, classes, [*paths[0], *paths[1]])
    test = np.isin(domain.paths, paths[1])
    train, held = (domain.images.take(np.flatnonzero(rows)) for rows in (~test, test))
    return train, held, domain


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark, with the label shift that its domains have by themselves."""
    info, data = TASKS[name], data_folder(data)
    if shift.kind not in ("natural", "dirichlet"):
        raise UserError(
            f"DomainNet's domains have a label shift by themselves; '{shift}' is not defined for "
            "them.",
            "use --shift natural, or dirichlet:S to draw the target's label distribution.",
        )
    entries = [
        entry
        for short in (info.source, info.target)
        for part in PARTS
        for entry in read_list(find_part(data, short, part))
    ]
    spelled = {plain(entry.folder): entry.folder for entry in entries}
    numbers = numbering(entries)
    if numbers is None:  # an order is still needed: that of the names
        classes = tuple(in_order(list(spelled.values())))
        notes: tuple[str, ...] = (
            "label numbers of the lists disagree: classes go by their folders' names",
        )
    else:
        classes, notes = tuple(spelled[c] for c in sorted(numbers, key=lambda c: numbers[c])), ()
    if len(classes) != DOMAINNET.classes:
        notes += (f"{len(classes)} classes were found where domainnet has {DOMAINNET.classes}",)
    train, spare, source = load_parts(data, info.source, classes)
    target, test, own = load_parts(data, info.target, classes)
    c = len(classes)
    uniform = np.full(c, 1 / c)  # neither shift has a tail
    made = make_task(
        f"domainnet/{name}",
        classes,
        uniform,
        shift,
        draw,
        Pool.of(train, c, spare),
        Pool.of(target, c),
        test,
    )
    return Task(
        made.name, made.training_data, made.test, (*notes, *source.notes, *own.notes, *made.notes)
    )
