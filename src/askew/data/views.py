"""What training may look at: images (or feature rows) with labels, and without."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.errors import UserError

Rows = NDArray[Any]  # uint8 images or float32 rows; `_checked` holds that
Labels = NDArray[np.int64]


def _checked(x: Rows) -> Rows:
    if x.dtype == np.uint8 and x.ndim == 4:
        return x
    if x.dtype == np.float32 and x.ndim == 2:
        if not np.isfinite(x).all():
            bad = int((~np.isfinite(x)).any(axis=1).sum())
            raise UserError(f"{bad} of {len(x)} feature rows hold NaN or infinity.", "remove or impute them first.")
        return x
    raise UserError(
        f"Expected uint8 images (n, channels, height, width) or float32 rows (n, width), found {x.dtype} {x.shape}.",
        "convert the array first, for example x.astype('float32').",
    )


@dataclass(frozen=True, eq=False)
class Unlabeled:
    """Images uint8 (n, c, h, w) or feature rows float32 (n, d); no labels, by construction."""

    x: Rows

    def __post_init__(self) -> None:
        _checked(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.x.dtype}{self.x.shape}".encode())
        digest.update(np.ascontiguousarray(self.x).data)
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Labeled:
    """The same with one class index per row."""

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
        return Labeled(self.x[index], self.y[index])

    def unlabeled(self) -> Unlabeled:
        return Unlabeled(self.x)

    def sizes(self, classes: int) -> NDArray[np.int64]:
        """How many rows each class has."""
        return np.bincount(self.y, minlength=classes)

    def fingerprint(self) -> str:
        return hashlib.sha256((Unlabeled(self.x).fingerprint()).encode() + self.y.tobytes()).hexdigest()
