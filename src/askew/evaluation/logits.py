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
    """The prior with ABSENT of an even share for every class that has less, so that its logarithm
    is finite. (c,) → (c,)"""
    return np.maximum(prior, ABSENT / len(prior))


def adjust_logits(logits: NDArray[Any], prior: Floats, training_prior: Floats) -> Floats:
    """z_k + log(prior_k/training_prior_k): Bayes' rule from the class prior of training to another
    one. (…, c), (c,), (c,) → (…, c)

    Both priors are floored, so that an estimate of zero rules no class out for good. A class that
    was absent from training keeps its logit: nothing taught the network when to predict it, and to
    divide by its share would let it win every image.
    """
    floored = floor_prior(training_prior)
    absent = training_prior < floored
    shift = np.where(absent, 0.0, np.log(floor_prior(prior) / floored))
    adjusted: Floats = logits + shift
    return adjusted


def prior_bias(logits: Floats, prior: Floats) -> Floats:
    """b with mean_i softmax(z_i + b) = prior: what the logits of these images lack for classes to
    have known shares. (n, c), (c,) → (c,)

    Sinkhorn's iteration: b_k ← b_k + log(prior_k/mean_i softmax(z_i + b)_k), the prior being
    floored.
    """
    wanted = floor_prior(prior)
    wanted, bias = wanted / wanted.sum(), np.zeros(len(prior))
    for _ in range(1000):
        step = np.log(wanted / np.maximum(softmax(logits + bias).mean(axis=0), 1e-300))
        bias += step
        if np.abs(step).max() < 1e-6:
            break
    centred: Floats = bias - bias.mean()
    return centred


def decide(logits: Floats, prior: Floats | None) -> tuple[Floats, Floats]:
    """Logits under the known prior of these images, and the bias in them that gives classes just
    those shares.

    From calibrated logits under a uniform prior, which stay as they are if no prior is known.
    (n, c), (c,) → (n, c), (c,)
    """
    c = logits.shape[1]
    if prior is None:
        return logits, np.zeros(c)
    under = adjust_logits(logits, prior, np.full(c, 1 / c))
    bias = prior_bias(under, prior)
    return under + bias, bias


def as_floats(values: Any) -> Floats:
    """An array of doubles from a tensor or array of any precision, on any device."""
    return np.asarray(_on_host(values)).astype(np.float64)


def as_labels(values: Any) -> Labels:
    """The same for class indices."""
    return np.asarray(_on_host(values)).astype(np.int64)


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
