"""Pictures below a folder, or in a list file."""

from __future__ import annotations

import csv
import io
import mimetypes
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from askew.core.errors import UserError
from askew.data.decode import SUFFIXES
from askew.data.paths import readable

TABLES = frozenset((".csv", ".tsv"))
LISTS = TABLES | {".txt", ".list"}

_RAW = frozenset((".arw", ".cr2", ".cr3", ".dng", ".jxl", ".nef", ".orf", ".raf", ".rw2"))
"""Formats of cameras, and others that Python's table of types lacks."""

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
    # The real folders on the way to each folder.
    above: dict[str, tuple[Path, ...]] = {str(folder): (Path(os.path.realpath(folder)),)}
    for where, inner, files in os.walk(folder, followlinks=True, onerror=_unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        here, way = Path(where), above.pop(where)
        for name in inner:
            link = here / name
            real = Path(os.path.realpath(link))
            if link.is_symlink() and any(place.is_relative_to(real) for place in way):
                raise UserError(
                    f"The link {link} leads back to a folder that it lies in.",
                    "remove the link and start again.",
                )
            above[os.path.join(where, name)] = (*way, real)  # noqa: PTH118 -- as os.walk joins
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
    _require_no_lost_class(folder, paths)
    parts = [Path(path).parts for path in paths]
    labels = (
        None
        if any(len(part) == 1 for part in parts)
        else tuple(readable(part[0]) for part in parts)
    )
    return Listing(folder, tuple(paths), labels)


def _require_no_lost_class(folder: Path, paths: Sequence[str]) -> None:
    """Raise a UserError if a sub-folder holds images, and all are of formats that are not read."""
    known = {Path(path).parts[0] for path in paths}
    for sub in sorted(folder.iterdir()):
        if sub.name in known or sub.name.startswith(".") or not sub.is_dir():
            continue
        other = next((file for file in sorted(sub.rglob("*")) if _is_other_image(file)), None)
        if other is not None:
            raise UserError(
                f"The folder {sub} holds images such as {other.name}, and none in a format that "
                "is read.",
                f"convert them to one of {', '.join(sorted(SUFFIXES))}, or move the folder away.",
            )


def _is_other_image(file: Path) -> bool:
    kind = mimetypes.guess_type(file.name)[0] or ""
    return (kind.startswith("image/") or file.suffix.lower() in _RAW) and _is_file(file)


Line = tuple[int, str, str]  # number, path, label or nothing


def read_lines(file: Path, columns: Columns = USUAL) -> list[Line]:
    """The lines of a list: CSV, TSV, or text with `path label` or just `path` per line. No path
    comes twice."""
    return _read_lines(file, columns)[0]


def _read_lines(file: Path, columns: Columns) -> tuple[list[Line], bool]:
    """The same, and whether the first line was a header."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as content:
            text = content.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list {file} cannot be read: {error}.", _FORM) from None
    rows, has_header = (
        _table(file, text, columns)
        if file.suffix.lower() in TABLES
        else (list(_text(file.parent, text)), False)
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
    return rows, has_header


def read_listing(file: Path, columns: Columns = USUAL) -> Listing:
    """A list of pictures of which all are labelled, or none. Missing files are found when they are
    decoded."""
    root, (rows, has_header) = file.parent, _read_lines(file, columns)
    if not has_header:
        _require_no_header(file, rows)
    unlabelled = [number for number, _, label in rows if not label]
    if unlabelled and len(unlabelled) < len(rows):
        raise UserError(f"Line {unlabelled[0]} of {file} has no label, and others have one.", _FORM)
    labels = None if unlabelled else tuple(label for _, _, label in rows)
    return Listing(root, tuple(path for _, path, _ in rows), labels)


def _require_no_header(file: Path, rows: Sequence[Line]) -> None:
    """Raise a UserError if the first line must be a header: it names no file, and others do."""
    number, first, _ = rows[0]
    if Path(first).suffix.lower() in SUFFIXES or _is_file(file.parent / first):
        return
    if any(_is_file(file.parent / path) for _, path, _ in rows[1:]):
        raise UserError(
            f"Line {number} of {file} names no file, '{first[:80]}', and other lines do: it seems "
            "to be a header.",
            "name its columns with --path-column and --label-column (in Python: image= and "
            "label=), or remove the line.",
        )


def _table(file: Path, text: str, columns: Columns) -> tuple[list[Line], bool]:
    """The lines of a table, and whether the first is a header."""
    rows = csv.reader(
        io.StringIO(text, newline=""),
        delimiter="\t" if file.suffix.lower() == ".tsv" else _delimiter(text),
        skipinitialspace=True,  # a quote after a space is a quote
    )
    lines: list[Line] = []
    header: tuple[int, int] | None = None
    at, of, width, first = 0, 1, 2, True
    try:
        for row in rows:
            cells = _without_empty_end([cell.strip() for cell in row])
            if not cells:
                continue
            if first and (header := _header(file, cells, columns)) is not None:
                (at, of), width = header, max(2, len(cells))
            else:
                _check_cells(file, rows.line_num, cells, at, width)
                lines.append((rows.line_num, cells[at], cells[of] if of < len(cells) else ""))
            first = False
    except csv.Error as error:
        raise UserError(f"Line {rows.line_num} of {file} cannot be read: {error}.", _FORM) from None
    return lines, header is not None


def _without_empty_end(cells: list[str]) -> list[str]:
    """The cells but for empty ones at the end, which spreadsheets write."""
    while cells and not cells[-1]:
        cells = cells[:-1]
    return cells


def _check_cells(file: Path, number: int, cells: list[str], at: int, width: int) -> None:
    """Raise a UserError if a line has no path, or more cells than there are columns."""
    if at >= len(cells) or not cells[at]:
        raise UserError(f"Line {number} of {file} names no picture.", _FORM)
    if len(cells) > width:
        raise UserError(
            f"Line {number} of {file} has {len(cells)} columns, and {width} are known.",
            "begin the list with a header such as path,label, name other columns with "
            "--path-column and --label-column, and put quotes around a path that holds a comma.",
        )


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
    of = next((_only(file, head, name) for name in labels if name in head), len(head))
    if any(name in head for name in paths):
        return next(_only(file, head, name) for name in paths if name in head), of
    if columns.path:
        raise UserError(
            f"{file} has no column '{columns.path}': its first line is {', '.join(cells)}.",
            "--path-column and --label-column name columns of the first line.",
        )
    if columns.label and of < len(head):
        return 0 if of else 1, of
    return None


def _only(file: Path, head: Sequence[str], name: str) -> int:
    """Where a column is; UserError if two have its name."""
    if head.count(name) > 1:
        raise UserError(f"{file} has two columns '{name}'.", "rename or remove one of them.")
    return head.index(name)


def _delimiter(text: str) -> str:
    """A semicolon, which spreadsheets write where the comma is a decimal sign, if the first line
    has more of them."""
    first = next((line for line in io.StringIO(text) if line.strip()), "")
    return ";" if first.count(";") > first.count(",") else ","


def _text(root: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        whole = line.strip()
        if not whole:
            continue
        # A name may hold spaces, so what is a file as it stands has no label.
        path, *label = [whole] if _is_file(root / whole) else whole.rsplit(maxsplit=1)
        yield number, path, label[0] if label else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, for one, or one with a zero byte
        return False


def in_order(names: Sequence[str]) -> list[str]:
    """Class names in alphabetical order, whatever their case: the order in which classes are
    numbered."""
    return sorted(names, key=lambda name: (name.casefold(), name))
