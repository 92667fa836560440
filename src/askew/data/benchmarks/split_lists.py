"""List files of pictures, `path label` a line, as benchmarks publish them.

Only the last two parts of a path count, class folder and file, whatever stands before them and
whichever slashes; a picture's class is its folder's name, because the label numbers of published
lists do not agree with each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from askew.core.errors import UserError
from askew.data.paths import expanded, plain


class Entry(NamedTuple):
    """One line of a list."""

    folder: str
    file: str
    label: int


def read_list(path: Path) -> list[Entry]:
    """The lines of a list; a UserError names the first that is none."""
    form = "expected lines such as `Clipart/Alarm_Clock/00052.jpg 0`."
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list {path} cannot be read: {error}.", form) from None
    entries = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        # The label is what stands last: folders such as "Real World" hold spaces.
        where, *label = line.strip().rsplit(maxsplit=1)
        parts = where.replace("\\", "/").split("/")
        if not label or not label[0].isdecimal() or len(parts) < 2 or not (parts[-1] and parts[-2]):
            raise UserError(f"Line {number} of {path} is '{line[:80]}'.", form)
        entries.append(Entry(parts[-2], parts[-1], int(label[0])))
    if not entries:
        raise UserError(f"The list {path} is empty.", form)
    return entries


def list_folders(data: Path, root: Path | None, name: str) -> list[Path]:
    """Where lists of a data set are looked for: ASKEW_LISTS, the data set's folder, then `lists` in
    the data folder.

    A folder of lists may have sub-folders that begin with the data set's name, such as
    office-home-RSUT.
    """
    own = os.environ.get("ASKEW_LISTS", "")
    places = _with_inner(expanded(own, "folder of lists"), name) if own else []
    places += [] if root is None else [root, root / "lists"]
    return [*places, *_with_inner(data / "lists", name)]


def _with_inner(folder: Path, name: str) -> list[Path]:
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    return [*(p for p in inside if p.is_dir() and plain(p.name).startswith(plain(name))), folder]


def find_list(places: Iterable[Path], names: Sequence[str]) -> Path | None:
    """The first list that has one of the names, however it is spelled."""
    wanted = {plain(name) for name in names}
    for place in places:
        found = (
            sorted(p for p in place.glob("*.txt") if plain(p.stem) in wanted)
            if place.is_dir()
            else []
        )
        if found:
            return found[0]
    return None


def numbering(entries: Iterable[Entry]) -> dict[str, int] | None:
    """The label number of each class by its plain name; None if the numbers disagree with each
    other."""
    numbers: dict[str, int] = {}
    for entry in entries:
        if numbers.setdefault(plain(entry.folder), entry.label) != entry.label:
            return None
    return numbers if len(set(numbers.values())) == len(numbers) else None
