"""Domains: images (or rows of features) with labels and without."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.data.decode import PictureFiles

Labels = NDArray[np.int64]

_BLOCK = 256  # rows that are read from a file at a time


class RowSubset:
    """Rows of a larger array by their indices, read when they are indexed.

    A domain's pictures are one memory-mapped file of gigabytes, or files yet to decode; its splits
    and draws are row indices in it.
    """

    def __init__(
        self,
        base: NDArray[Any] | PictureFiles,
        rows: Labels,
        hashes: NDArray[np.uint64] | None = None,
    ) -> None:
        self.base = base
        self.rows = rows
        self.hashes = hashes
        """A hash of each row of the base, where it is known: then a fingerprint reads no pixels."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.base.dtype

    @property
    def ndim(self) -> int:
        return self.base.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.base.shape[1:])

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.base.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        return np.asarray(self.base[self.rows[index]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self[:].astype(dtype)

    def pick(self, index: Labels) -> RowSubset:
        return RowSubset(self.base, self.rows[index], self.hashes)

    def expect(self, index: Labels) -> None:
        """Have the system read these rows of a mapped file, all at once, while we do something
        else.

        A row that it does not expect waits for its page faults, and each reads what lies around it
        too: 8 MiB for a picture of 192 KiB, where the disk's read-ahead is that long.
        """
        owner: Any = self.base
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if not isinstance(owner, mmap.mmap) or not hasattr(
            mmap, "MADV_WILLNEED"
        ):  # Windows has none
            return
        x = np.asarray(self.base)
        first, size = x.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data, x.strides[0]
        with contextlib.suppress(OSError):  # nothing but time depends on it
            for start in (first + size * self.rows[index].ravel()).tolist():
                within = start % mmap.PAGESIZE
                owner.madvise(mmap.MADV_WILLNEED, start - within, within + size)


Rows = NDArray[Any] | RowSubset  # uint8 images or float32 rows; `_checked` holds that


def row_hashes(x: Rows) -> NDArray[np.uint64]:
    """A hash of each row's content. (n, …) → (n,)"""
    if isinstance(x, RowSubset) and x.hashes is not None:
        return x.hashes[x.rows]
    hashes = (
        hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=8).digest()
        for row in np.asarray(x)
    )
    return np.frombuffer(b"".join(hashes), dtype="<u8")


def require_finite(x: NDArray[np.float32], place: str = "") -> None:
    """UserError if rows (n, d) hold NaN or infinity."""
    bad = int((~np.isfinite(x)).any(axis=1).sum())
    if bad:
        raise UserError(
            f"{bad} of the {len(x)} rows{place} hold NaN or infinity.",
            "remove or impute them first.",
        )


def _checked(x: Rows) -> None:
    if x.dtype == np.uint8 and x.ndim == 4:
        return
    if x.dtype == np.float32 and x.ndim == 2:
        require_finite(np.asarray(x))
        return
    raise UserError(
        "Expected uint8 images (n, channels, height, width) or float32 rows (n, width), found "
        f"{x.dtype} {x.shape}.",
        "convert the array first, for example x.astype('float32').",
    )


@dataclass(frozen=True, eq=False)
class Unlabeled:
    """Images uint8 (n, c, h, w) or feature rows float32 (n, d); no labels, by construction.

    >>> len(askew.data.Unlabeled(np.zeros((3, 2), np.float32)))
    3
    """

    x: Rows

    def __post_init__(self) -> None:
        _checked(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.x.dtype}{self.x.shape}".encode())
        if isinstance(self.x, RowSubset) and self.x.hashes is not None:
            digest.update(self.x.hashes[self.x.rows].tobytes())
            return digest.hexdigest()
        for start in range(0, len(self), _BLOCK):  # the same as all at once, without holding it all
            digest.update(np.ascontiguousarray(self.x[start : start + _BLOCK]).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Labeled:
    """The same with one class index per row.

    >>> askew.data.Labeled(np.zeros((3, 2), np.float32), np.array([0, 1, 1])).sizes(2).tolist()
    [1, 2]
    """

    x: Rows
    y: Labels

    def __post_init__(self) -> None:
        _checked(self.x)
        if self.y.shape != (len(self.x),):
            raise UserError(
                f"Expected {len(self.x)} labels, one per image, found shape {self.y.shape}.",
                "pass images and labels of equal length.",
            )

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> Labeled:
        x = self.x.pick(index) if isinstance(self.x, RowSubset) else self.x[index]
        return Labeled(x, self.y[index])

    def followed_by(self, other: Labeled) -> Labeled:
        """These rows, then the other's."""
        x: Rows
        if (
            isinstance(self.x, RowSubset)
            and isinstance(other.x, RowSubset)
            and self.x.base is other.x.base
        ):
            x = RowSubset(self.x.base, np.concatenate([self.x.rows, other.x.rows]), self.x.hashes)
        else:
            x = np.concatenate([np.asarray(self.x), np.asarray(other.x)])
        return Labeled(x, np.concatenate([self.y, other.y]))

    def unlabeled(self) -> Unlabeled:
        return Unlabeled(self.x)

    def sizes(self, classes: int) -> NDArray[np.int64]:
        """How many rows each class has."""
        return np.bincount(self.y, minlength=classes)

    def fingerprint(self) -> str:
        return hashlib.sha256(
            (Unlabeled(self.x).fingerprint()).encode() + self.y.tobytes()
        ).hexdigest()
