"""From logits to probabilities, and from one class prior to another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

ABSENT = 1e-3
"""A class with less than this multiple of an even share counts as absent from a prior."""


def softmax(logits: Floats) -> Floats:
    """Rows that sum to one. (n, c) → (n, c)"""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p


def floor_prior(prior: Floats) -> Floats:
    """The prior with ABSENT of an even share for every class that has less, so that its logarithm is finite.
    (c,) → (c,)"""
    return np.maximum(prior, ABSENT / len(prior))


def adjust_logits(logits: NDArray[Any], prior: Floats, training_prior: Floats) -> Floats:
    """z_k + log(prior_k/training_prior_k): Bayes' rule from the class prior of training to another one.
    (…, c), (c,), (c,) → (…, c)

    Both priors are floored, so that an estimate of zero rules no class out for good. A class that was absent from
    training keeps its logit: nothing taught the network when to predict it, and to divide by its share would let it
    win every image.
    """
    floored = floor_prior(training_prior)
    absent = training_prior < floored
    shift = np.where(absent, 0.0, np.log(floor_prior(prior) / floored))
    adjusted: Floats = logits + shift
    return adjusted


def as_floats(values: Any) -> Floats:
    """An array of doubles from a tensor or array of any precision, on any device."""
    return np.asarray(_on_host(values)).astype(np.float64)


def as_labels(values: Any) -> Labels:
    """The same for class indices."""
    return np.asarray(_on_host(values)).astype(np.int64)


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
