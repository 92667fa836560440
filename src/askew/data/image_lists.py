"""Pictures below a folder, or in a list file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from askew.core.errors import UserError
from askew.data.decode import SUFFIXES
from askew.data.paths import readable

TABLES = frozenset((".csv", ".tsv"))
LISTS = TABLES | {".txt", ".list"}

_FORM = (
    "a line has a path, relative to the list, and a label: photos/1.jpg,cat; a CSV may begin "
    "with path,label."
)
_PATH, _LABEL = ("path", "file", "filename", "image"), ("label", "class", "y")


@dataclass(frozen=True)
class Columns:
    """The columns of a table that hold paths and labels, by name; empty: the usual names, or the
    first two columns."""

    path: str = ""
    label: str = ""


USUAL = Columns()


@dataclass(frozen=True)
class Listing:
    """Pictures by their paths below a root, and labels where there are some."""

    root: Path
    paths: tuple[str, ...]
    labels: tuple[str, ...] | None


def find_pictures(folder: Path) -> list[str]:
    """All pictures below a folder by their paths in it, sorted; hidden ones and other files are
    passed over.

    Links are followed; one that leads back to where it lies is a UserError.
    """
    found = []
    for where, inner, files in os.walk(folder, followlinks=True, onerror=_unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        here = Path(where)
        for name in inner:
            link = here / name
            if link.is_symlink() and Path(os.path.realpath(here)).is_relative_to(
                os.path.realpath(link)
            ):
                raise UserError(
                    f"The link {link} leads back to a folder that it lies in.",
                    "remove the link and start again.",
                )
        for name in files:
            if Path(name).suffix.lower() in SUFFIXES and not name.startswith("."):
                found.append(os.path.relpath(here / name, folder))
    return sorted(found)


def _unreadable(error: OSError) -> None:
    raise UserError(
        f"The folder {error.filename} cannot be read: {error.strerror}.", "mend its permissions."
    )


def read_folder(folder: Path) -> Listing:
    """A folder's pictures; where all lie in sub-folders, the first sub-folder's name is a picture's
    label."""
    paths = find_pictures(folder)
    if not paths:
        raise UserError(
            f"The folder {folder} holds no picture.",
            f"pictures end in {', '.join(sorted(SUFFIXES))}; folders are searched.",
        )
    parts = [Path(path).parts for path in paths]
    labels = (
        None
        if any(len(part) == 1 for part in parts)
        else tuple(readable(part[0]) for part in parts)
    )
    return Listing(folder, tuple(paths), labels)


Line = tuple[int, str, str]  # number, path, label or nothing


def read_lines(file: Path, columns: Columns = USUAL) -> list[Line]:
    """The lines of a list: CSV, TSV, or text with `path label` or just `path` per line. No path
    comes twice."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list {file} cannot be read: {error}.", _FORM) from None
    lines = text.splitlines()
    rows = list(
        _table(file, lines, columns) if file.suffix.lower() in TABLES else _text(file.parent, lines)
    )
    if not rows:
        raise UserError(f"The list {file} is empty.", _FORM)
    seen: dict[str, int] = {}
    for number, path, _ in rows:
        if path in seen:
            raise UserError(
                f"Line {number} of {file} names {path}, which line {seen[path]} has named already.",
                "name every picture once.",
            )
        seen[path] = number
    return rows


def read_listing(file: Path, columns: Columns = USUAL) -> Listing:
    """A list of pictures of which all are labelled, or none. Missing files are found when they are
    decoded."""
    root, rows = file.parent, read_lines(file, columns)
    unlabelled = [number for number, _, label in rows if not label]
    if unlabelled and len(unlabelled) < len(rows):
        raise UserError(f"Line {unlabelled[0]} of {file} has no label, and others have one.", _FORM)
    labels = None if unlabelled else tuple(label for _, _, label in rows)
    return Listing(root, tuple(path for _, path, _ in rows), labels)


def _table(file: Path, lines: list[str], columns: Columns) -> Iterator[Line]:
    rows = csv.reader(lines, delimiter="\t" if file.suffix.lower() == ".tsv" else _delimiter(lines))
    at, of = 0, 1
    try:
        for first, row in enumerate(rows):
            cells = [cell.strip() for cell in row]
            header = _header(file, cells, columns) if first == 0 else None
            if header is not None:
                at, of = header
            elif any(cells):
                if at >= len(cells) or not cells[at]:
                    raise UserError(f"Line {rows.line_num} of {file} names no picture.", _FORM)
                yield rows.line_num, cells[at], cells[of] if of < len(cells) else ""
    except csv.Error as error:
        raise UserError(f"Line {rows.line_num} of {file} cannot be read: {error}.", _FORM) from None


def _header(file: Path, cells: list[str], columns: Columns) -> tuple[int, int] | None:
    """Where paths and labels are by the first line; None if it is no header. UserError if a named
    column is missing.

    A list without labels, such as a target's, need not have the column of labels.
    """
    head = [cell.lower() for cell in cells]
    paths, labels = (
        (wanted.lower(),) if wanted else usual
        for wanted, usual in ((columns.path, _PATH), (columns.label, _LABEL))
    )
    of = next((head.index(name) for name in labels if name in head), len(head))
    if any(name in head for name in paths):
        return next(head.index(name) for name in paths if name in head), of
    if columns.path:
        raise UserError(
            f"{file} has no column '{columns.path}': its first line is {', '.join(cells)}.",
            "--path-column and --label-column name columns of the first line.",
        )
    if columns.label and of < len(head):
        return 0 if of else 1, of
    return None


def _delimiter(lines: list[str]) -> str:
    """A semicolon, which spreadsheets write where the comma is a decimal sign, if the first line
    has more of them."""
    first = next((line for line in lines if line.strip()), "")
    return ";" if first.count(";") > first.count(",") else ","


def _text(root: Path, lines: list[str]) -> Iterator[Line]:
    for number, line in enumerate(lines, start=1):
        whole = line.strip()
        if not whole:
            continue
        # A name may hold spaces, so what is a file as it stands has no label.
        path, *label = [whole] if _is_file(root / whole) else whole.rsplit(maxsplit=1)
        yield number, path, label[0] if label else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, for one
        return False


def in_order(names: Sequence[str]) -> list[str]:
    """Class names in alphabetical order, whatever their case: the order in which classes are
    numbered."""
    return sorted(names, key=lambda name: (name.casefold(), name))
