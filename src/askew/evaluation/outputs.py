"""What one trained network says of held-out source images and of the target: all that trust is built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class DomainOutputs:
    """Logits of both domains and the held-out labels; there is no target label in it. Made by `Said.of`."""

    source_val: Floats
    """Logits of the held-out source images. (n_v, c)"""
    source_val_y: Labels
    """Their labels. (n_v,)"""
    target: Floats
    """Logits of the target images. (n_t, c)"""
    training_prior: Floats
    """The class mix that the label loss saw, for which the logits speak. (c,)"""
    source_features: Floats | None = None
    """Features of the held-out source images, where they were kept. (n_v, d)"""
    target_features: Floats | None = None
    """Features of the target images. (n_t, d)"""

    @classmethod
    def of(
        cls,
        source_val: Any,
        source_val_y: Any,
        target: Any,
        training_prior: Any,
        source_features: Any = None,
        target_features: Any = None,
    ) -> DomainOutputs:
        """From tensors or arrays of any precision, on any device."""
        said = cls(
            _floats(source_val),
            np.asarray(_host(source_val_y)).astype(np.int64),
            _floats(target),
            _floats(training_prior),
            None if source_features is None else _floats(source_features),
            None if target_features is None else _floats(target_features),
        )
        said._check()
        return said

    def _check(self) -> None:
        n_v, c = self.source_val.shape
        if self.source_val_y.shape != (n_v,) or self.target.shape[1:] != (c,) or self.training_prior.shape != (c,):
            raise ValueError(
                f"shapes do not fit: {self.source_val.shape} logits and {self.source_val_y.shape} labels of the "
                f"source, {self.target.shape} logits of the target, a mix of {self.training_prior.shape}"
            )
        if not n_v or not len(self.target):
            raise ValueError("neither the held-out source nor the target may be empty")
        if self.source_val_y.min() < 0 or self.source_val_y.max() >= c:
            raise ValueError(f"labels from {self.source_val_y.min()} to {self.source_val_y.max()} for {c} classes")
        if (self.source_features is None) != (self.target_features is None):
            raise ValueError("features of one domain alone say nothing")
        if not all(np.isfinite(a).all() for a in (self.source_val, self.target, self.training_prior, *self.looks)):
            raise ValueError("logits and features have to be finite")

    @property
    def classes(self) -> int:
        return len(self.training_prior)

    @property
    def target_evenly(self) -> Floats:
        """Logits of the target images under an even class mix, by which they are labelled. (n_t, c)"""
        shifted: Floats = self.target - np.log(np.maximum(self.training_prior, 1e-6))
        return shifted

    @property
    def source_sizes(self) -> Labels:
        """Held-out source images of each class. (c,)"""
        return np.bincount(self.source_val_y, minlength=self.classes)

    @property
    def source_prior(self) -> Floats:
        """The held-out source's class mix. (c,)"""
        mix: Floats = self.source_sizes / len(self.source_val_y)
        return mix

    @property
    def looks(self) -> tuple[Floats, Floats]:
        """What domains are compared by: features where they were kept, else logits less their mean, an offset that says
        nothing. (n_v, d), (n_t, d)"""
        if self.source_features is not None and self.target_features is not None:
            return self.source_features, self.target_features
        val, target = (z - z.mean(axis=1, keepdims=True) for z in (self.source_val, self.target))
        return val, target


def softmax(logits: Floats) -> Floats:
    """Rows that sum to one. (n, c) → (n, c)"""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p


def _host(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _floats(values: Any) -> Floats:
    return np.asarray(_host(values)).astype(np.float64)
