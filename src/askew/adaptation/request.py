"""What a user asks for, and what they know of the target: some labels, class shares."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.adaptation.target_rows import TargetRows, hash_rows
from askew.core.errors import UserError, unknown
from askew.core.files import unique_keys
from askew.core.options import whole_number
from askew.core.text import from_csv_cell
from askew.core.tracking import Maker
from askew.data.array_files import ARRAYS, label_names, read_array
from askew.data.custom import CustomDomain, in_columns_of
from askew.data.domains import Labeled, Rows, RowSubset
from askew.data.image_lists import LISTS, USUAL, Columns, read_folder, read_lines
from askew.data.paths import require_file
from askew.data.task import Task
from askew.evaluation.outputs import Floats
from askew.methods import make_method, method_class
from askew.methods.auto import Auto

_FORM = (
    "a list of path,label (--label-column names another column, empty labels are skipped), a "
    "folder with one sub-folder per class, or an array with the labelled rows as x and their "
    "labels as y."
)
_SHARES = (
    'lines of class,share, or JSON: {"cat": 0.7, "dog": 0.3}; every class of the source, in '
    "any unit."
)

Labels = NDArray[np.int64]


class GivenLabels(dict[str, str]):
    """Labels from Python, by the names of target images as predictions.csv has them."""

    def __str__(self) -> str:
        return "the labels"


class GivenShares(dict[str, float]):
    """Class shares from Python."""

    def __str__(self) -> str:
        return "the target's class shares"


# --- the request ---


@dataclass(frozen=True, kw_only=True)
class AdaptRequest:
    """What a user asks for."""

    source: Path | CustomDomain
    target: Path | CustomDomain
    methods: tuple[str, ...] = ()
    """Candidates that `auto` trains beside source-only; empty: its own. One alone is saved."""
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hyper-parameters of the methods, by id."""
    search: int = 0
    """How many settings of one method are tried, the best chosen without labels; 0 and 1: one."""
    backbone: str = ""
    """Network by name, or `file.py:function`; empty: one that suits the data."""
    weights: str = "hub"
    """Its starting weights: hub, none, or a .safetensors or .pth file."""
    fine_tune: bool | None = None
    """Whether the backbone is fine-tuned; None: on a GPU, unless the look is a quick one."""
    quick: bool = False
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    skip_broken: bool = False
    columns: Columns = USUAL
    """Where lists hold their paths and labels."""
    labels: Path | GivenLabels | CustomDomain | None = None
    """Labels of some target images, which every candidate is trained with."""
    target_shares: Path | GivenShares | None = None
    """The target's known class shares, which the predictions follow."""
    take: str = ""
    """The network to save, of those that an earlier adaptation trained; empty: the final one."""
    resamples: int = 100
    """How often images are drawn again for intervals."""
    log: tuple[str | Maker, ...] = ()
    """Trackers that hear of its runs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_number("seed", self.seed))

    @property
    def method(self) -> str:
        """The one method that is asked for; empty where several are combined."""
        return self.methods[0] if len(self.methods) == 1 else ""

    def check(self) -> None:
        """Raise a UserError for methods or hyper-parameters that do not exist, before any work."""
        if self.search and not self.method:
            raise UserError("A search needs one method.", "name it: --method coal, say.")
        ids = [method_class(name).id for name in self.methods]
        check_combination(ids)
        for name in self.params:
            if name not in ids:
                raise UserError(
                    "Hyper-parameters belong to one method, and none was named.",
                    "--method coal, say.",
                )
        for name, own in zip(self.methods, ids, strict=True):
            make_method(name, dict(self.params.get(own, {})))


def check_combination(ids: Sequence[str]) -> None:
    """Raise a UserError if methods cannot be combined: one is `auto`, or is named twice."""
    if Auto.id in ids:
        raise UserError(
            f"{Auto.id} combines methods by itself, and cannot be one of them.",
            f"--method {Auto.id} alone, or the other methods without it.",
        )
    for number, name in enumerate(ids):
        if name in ids[:number]:
            raise UserError(
                f"The method {name} is named twice.",
                "name it once; --search tries several of its hyper-parameters.",
            )


# --- a few labels ---


@dataclass(frozen=True, eq=False)
class TargetLabels:
    """Labels of some target images."""

    rows: Labels
    """Which images. (n,)"""
    y: Labels
    """(n,)"""
    classes: int

    def set_in(self, soft: Floats) -> Floats:
        """Replace the soft labels of labelled images by their labels. (n_t, c) → (n_t, c)"""
        exact = soft.copy()
        exact[self.rows] = np.eye(self.classes)[self.y]
        return exact


LABELLED_SHARE = 0.1
"""Labelled target images of a class for each of its source images, if need be by repetition. With
1 or 0.33 the same few images are learnt by heart."""


def add_target_labels(task: Task, labels: TargetLabels, share: float = LABELLED_SHARE) -> Task:
    """Add the labelled target images to the source of a task."""
    data = task.training_data
    sizes, own = data.source.sizes(labels.classes), np.bincount(labels.y, minlength=labels.classes)
    times = np.maximum(1, np.round(share * sizes / np.maximum(1, own)).astype(np.int64))[labels.y]
    rows = np.repeat(labels.rows, times)
    x = data.target.x
    target = Labeled(
        x.pick(rows) if isinstance(x, RowSubset) else x[rows], np.repeat(labels.y, times)
    )
    return replace(task, training_data=replace(data, source=data.source.followed_by(target)))


# --- known class shares ---


def read_shares(file: Path | GivenShares, classes: Sequence[str]) -> Floats:
    """The target's share of each class, in their order and with the sum one. (c,)"""
    try:
        found = file if isinstance(file, GivenShares) else _shares(_text(file))
        shares = {str(name): float(share) for name, share in found.items()}
        if len(shares) < len(found):
            raise ValueError("a class comes twice")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The shares {file} cannot be read: {error}.", _SHARES) from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, csv.Error):
        raise UserError(
            f"{file} holds something else than the shares of classes.", _SHARES
        ) from None
    for name in shares:
        if name not in classes:
            raise unknown(
                "class", name, classes, f"{file} names it, and the source does not have it."
            )
    missing = [name for name in classes if name not in shares]
    prior = np.array([shares.get(name, 0.0) for name in classes])
    with np.errstate(over="ignore"):
        total = prior.sum()
    if missing or not np.isfinite(total) or prior.min() < 0 or total <= 0:
        what = (
            f"has no share of {missing[0]}"
            if missing
            else "has a share that is negative or no number, or none"
        )
        raise UserError(f"{file} {what}.", _SHARES)
    whole: Floats = prior / total
    return whole


def _text(file: Path) -> str:
    require_file(file)
    return file.read_text(encoding="utf-8-sig")


def _shares(text: str) -> Mapping[str, str | float]:
    """By class, as they stand in the text."""
    if text.lstrip().startswith("{"):
        return dict(json.loads(text, object_pairs_hook=unique_keys))
    lines = [line for line in text.splitlines() if line.strip()]
    delimiter = next((mark for mark in ("\t", ";", ",") if mark in (lines or [""])[-1]), " ")
    rows = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != " ")
    cells = [[cell.strip() for cell in row] for row in rows]
    if cells and not _is_number(cells[0][-1]):
        cells = cells[1:]  # a header
    shares = {" ".join(row[:-1]): row[-1].replace(",", ".") for row in cells}
    if len(shares) < len(cells):
        raise ValueError("a class comes twice")
    return shares


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


# --- reading labels ---


def read_truth(
    file: Path | GivenLabels | CustomDomain,
    target: TargetRows | Sequence[str],
    classes: Sequence[str],
    columns: Columns = USUAL,
) -> tuple[Labels, Labels]:
    """Give the rows of the target images that have labels, and those labels. (n,), (n,)

    Labels with names are matched by name, and by content where image files are there. Labels with
    rows are matched by the content of the rows.
    """
    known_rows = target if isinstance(target, TargetRows) else TargetRows(target)
    number, place = {name: k for k, name in enumerate(classes)}, _place(file)
    given = _labels(file, known_rows, columns)
    known = set(known_rows.names)
    found = [
        replace(
            one,
            name=one.name if one.name in known else from_csv_cell(one.name),
            label=one.label if one.label in number else from_csv_cell(one.label),
        )
        for one in given
        if one.label
    ]
    if not found:
        raise UserError(f"There is no label in {place}.", _FORM)
    for one in found:
        if one.label not in number:
            error = unknown("class", one.label, classes)
            raise UserError(
                f"{place} holds the label '{one.label}', which is not a class of the source.",
                f"{error.hint} Leave labels empty where no class fits.",
            )
    contents = [one.content for one in found]
    if found[0].name:
        rows = known_rows.by_name([one.name for one in found], contents, place)
    else:
        rows = known_rows.by_content([str(one) for one in contents], place)
    return np.array(rows, dtype=np.int64), np.array(
        [number[one.label] for one in found], dtype=np.int64
    )


def _place(file: Path | GivenLabels | CustomDomain) -> str:
    return "the labels" if isinstance(file, CustomDomain) else str(file)


@dataclass(frozen=True)
class _Given:
    """A label, and the name or the content of what it is of."""

    name: str
    """Empty for a row of an array, which is known by its content."""
    label: str
    """Empty if there is none."""
    content: str | None = None


def _labels(
    file: Path | GivenLabels | CustomDomain, target: TargetRows, columns: Columns
) -> list[_Given]:
    """Labels, some of which may be empty, with the names or contents of what they are of."""
    if isinstance(file, GivenLabels):
        return [_Given(name, label) for name, label in file.items()]
    if isinstance(file, CustomDomain):
        return _of_domain(file, target)
    suffix = file.suffix.lower()
    if not file.exists():
        raise UserError(f"The labels {file} do not exist.", _FORM)
    if file.is_dir():
        listing = read_folder(file)
        known = listing.labels or ("",) * len(listing.paths)
        return _of_files(file, listing.paths, known, target)
    if suffix in LISTS and file.is_file():
        lines = [line for line in read_lines(file, columns) if line[2]]
        paths, labels = [path for _, path, _ in lines], [label for _, _, label in lines]
        return _of_files(file.parent, paths, labels, target)
    if suffix in ARRAYS and file.is_file():
        array = read_array(file)
        if array.y is None:
            return []
        x = array.in_order_of(target.columns, file, "the target")
        return _of_rows(x, label_names(array.y, len(array.x), file))
    raise UserError(f"{file} is neither a list nor a folder nor an array.", _FORM)


def _of_files(
    root: Path, paths: Sequence[str], labels: Sequence[str], target: TargetRows
) -> list[_Given]:
    contents = target.hashes_of_files(root, paths)
    return [_Given(*one) for one in zip(paths, labels, contents, strict=True)]


def _of_rows(x: Rows, labels: Sequence[str]) -> list[_Given]:
    return [_Given("", label, content) for label, content in zip(labels, hash_rows(x), strict=True)]


def _of_domain(domain: CustomDomain, target: TargetRows) -> list[_Given]:
    """Labels that came with their images or rows from Python."""
    assert domain.labels is not None
    if TargetRows.of(domain).files and domain.root is not None:
        return _of_files(domain.root, domain.names, domain.labels, target)
    domain = in_columns_of(domain, target.columns, "the target")
    return _of_rows(domain.x, domain.labels or ())
