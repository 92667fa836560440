"""The identity of the target's rows: their names and hashes of their content, in stored order."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from askew.core.errors import UserError
from askew.data.custom import CustomDomain
from askew.data.decode import PictureFiles
from askew.data.domains import Rows, RowSubset, row_hashes
from askew.data.paths import require_file
from askew.data.row_cache import content_hashes

TARGET_FILE = "target.json"
"""Holds the identity of the target's rows in the folder of an adaptation."""
FORM = 1
_BY_NAME = "give a list of path,label that names rows as predictions.csv does."


@dataclass(frozen=True, eq=False)
class TargetRows:
    """Names of the target's rows, with hashes of their content where these can be had."""

    names: Sequence[str]
    files: bool = False
    """Whether hashes are of image files; else they are of rows of an array."""
    columns: tuple[str, ...] = ()
    """Names of the columns of features, in the order in which rows are hashed. (d,)"""
    find_hashes: Callable[[], Sequence[str]] = tuple
    """Compute or give one hash for each row; none at all where they are not known."""

    @functools.cached_property
    def hashes(self) -> Sequence[str]:
        """One for each row; empty text where a file cannot be read."""
        return self.find_hashes()

    @classmethod
    def of(cls, domain: CustomDomain) -> TargetRows:
        """Identify the rows of a domain; files and arrays are hashed when hashes are asked for."""
        files = _has_files(domain)
        hashes = functools.partial(_file_hashes if files else _domain_hashes, domain)
        return cls(domain.names, files, domain.columns, hashes)

    def as_dict(self) -> dict[str, Any]:
        return {
            "form": FORM,
            "hashed": "files" if self.files else "rows",
            "columns": list(self.columns),
            "names": list(self.names),
            "hashes": list(self.hashes),
        }

    # --- matching ---

    def by_content(self, hashes: Sequence[str], place: object) -> list[int]:
        """Find the row of each hash; UserError if one is not the target's.

        Rows of equal content are taken in their order: nothing tells them apart, or needs to.
        """
        if not self.hashes:
            raise UserError(f"Nothing tells which target rows those of {place} are.", _BY_NAME)
        free: dict[str, list[int]] = defaultdict(list)
        for row in reversed(range(len(self.hashes))):
            free[self.hashes[row]].append(row)
        foreign = [k for k, one in enumerate(hashes) if one not in free]
        if foreign:
            raise UserError(
                f"{len(foreign)} of the {len(hashes)} labelled rows in {place} are not in the "
                f"target; the first is row {foreign[0]}.",
                f"give labels with the target's own rows, or {_BY_NAME}",
            )
        if any(n > len(free[one]) for one, n in Counter(hashes).items()):
            raise UserError(
                f"{place} holds a row of the target more often than the target does.",
                "give each row of the target once.",
            )
        return [free[one].pop() for one in hashes]

    def by_name(
        self, wanted: Sequence[str], hashes: Sequence[str | None], place: object
    ) -> list[int]:
        """Find the row of each name; UserError if a name or the content of its file does not fit.

        A name is a whole path, or as much of its end as is unique.
        """
        ends: dict[tuple[str, ...], list[int]] = defaultdict(list)
        whole: dict[str, list[int]] = defaultdict(list)
        for row, name in enumerate(self.names):
            whole[name].append(row)
            parts = PurePath(name).parts
            for start in range(len(parts)):
                ends[parts[start:]].append(row)
        found: dict[int, str] = {}
        for name, content in zip(wanted, hashes, strict=True):
            parts = PurePath(name).parts
            matches = whole.get(name) or next(
                (ends[parts[k:]] for k in range(len(parts)) if parts[k:] in ends), []
            )
            row = self._one_of(matches, name, content, place)
            if row in found:
                raise UserError(
                    f"{place} names one image twice, as {found[row]} and as {name}.",
                    "name it once.",
                )
            found[row] = name
        return list(found)

    def _one_of(self, matches: Sequence[int], name: str, content: str | None, place: object) -> int:
        """The one row that a name stands for."""
        alike = [row for row in matches if not content or self._hash(row) in ("", content)]
        if len(alike) == 1:
            return alike[0]
        if matches and not alike:
            raise UserError(
                f"{name} in {place} has another content than the target's "
                f"{self.names[matches[0]]}.",
                "give labels of the target's own images.",
            )
        what = (
            "could be several of the target's images"
            if matches
            else "is none of the target's images"
        )
        raise UserError(f"{name} in {place} {what}.", "name images as predictions.csv does.")

    def _hash(self, row: int) -> str:
        return self.hashes[row] if self.hashes else ""

    def hashes_of_files(self, root: Path, paths: Sequence[str]) -> list[str | None]:
        """Hash the files that are there, if the target's rows are files; None for all else."""
        there = [self.files and (root / path).is_file() for path in paths]
        read = hash_files([root / p for p, one in zip(paths, there, strict=True) if one])
        values = iter(read)
        return [(next(values) or None) if one else None for one in there]


def _has_files(domain: CustomDomain) -> bool:
    if domain.root is None:
        return False
    if isinstance(domain.x, RowSubset) and isinstance(domain.x.base, PictureFiles):
        return True
    return all((domain.root / name).is_file() for name in (domain.names[0], domain.names[-1]))


def _file_hashes(domain: CustomDomain) -> list[str]:
    assert domain.root is not None
    return hash_files([domain.root / name for name in domain.names])


def _domain_hashes(domain: CustomDomain) -> list[str]:
    return hash_rows(domain.x)


def hash_files(paths: Sequence[Path]) -> list[str]:
    """A hash of each file's bytes; empty text for one that cannot be read."""
    return [
        f"{one:016x}" if isinstance(one, int) else ""
        for some in content_hashes(paths)
        for one in some
    ]


def hash_rows(x: Rows) -> list[str]:
    """A hash of each row's content. (n, …) → (n,)"""
    return [f"{one:016x}" for one in row_hashes(x).tolist()]


def read_target_rows(out: Path) -> TargetRows | None:
    """What an adaptation stored; None if it is of a version that stored nothing."""
    file = out / TARGET_FILE
    if not file.exists():
        return None
    try:
        require_file(file)
        values = json.loads(file.read_text())
        names, hashes, columns = (values[key] for key in ("names", "hashes", "columns"))
        texts = [*names, *hashes, *columns, values["hashed"]]
        if not all(isinstance(text, str) for text in texts) or len(names) != len(hashes):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{file} is not as `askew adapt` wrote it.", "run that again with the same -o."
        ) from None
    return TargetRows(names, values["hashed"] == "files", tuple(columns), lambda: hashes)
