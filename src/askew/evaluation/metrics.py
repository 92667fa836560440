"""Scores of predictions against test labels: per-class mean accuracy, overall, worst class, and their uncertainty."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.data.task import TestLabels

RESAMPLES = 2_000
Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def confusion(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """n_(i,j): images of class i that were labelled j. (c, c)"""
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_accuracy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_i = n_(i,i)/n_i; NaN for a class without a test label. (c, c) → (c,)"""
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy: NDArray[np.float64] = np.diag(counts) / counts.sum(axis=1)
    return accuracy


def bootstrap_interval(counts: NDArray[np.int64], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the per-class mean when the test images are resampled, class by class.

    Drawing n_i images of a class of accuracy S_i again with replacement is a binomial draw.
    """
    sizes = counts.sum(axis=1)
    present = sizes > 0
    rng = np.random.default_rng(seed)
    accuracy = np.diag(counts)[present] / sizes[present]
    means = (rng.binomial(sizes[present], accuracy, size=(RESAMPLES, present.sum())) / sizes[present]).mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Estimate:
    """A value in per cent, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def mean_accuracy(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Estimate:
    """Mean accuracy over the classes that occur, with its interval."""
    sizes = np.bincount(y, minlength=classes)
    right = np.bincount(y[y == predicted], minlength=classes)
    return _estimate(np.stack([right, sizes - right], axis=1), np.array([1.0, 0.0]))


def accuracy_gain(y: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64], classes: int) -> Estimate:
    """Difference of two mean accuracies on the same images: how many of each class became right, and how many wrong."""
    sizes = np.bincount(y, minlength=classes)
    better = np.bincount(y[(after == y) & (before != y)], minlength=classes)
    worse = np.bincount(y[(after != y) & (before == y)], minlength=classes)
    return _estimate(np.stack([better, worse, sizes - better - worse], axis=1), np.array([1.0, -1.0, 0.0]))


def _estimate(counts: NDArray[np.int64], values: NDArray[np.float64]) -> Estimate:
    """The mean over classes of a value that each image has, and Wilson's interval for an effective number of images.

    counts (c, o): images of each class with each of the values (o,). Scaled to [0, 1], the mean has

        n = μ(1 − μ)/V,   V = Σ_k Var_k/n_k / c²,

    where μ and Var_k are those of a class's shares after two images of the mean shares of all classes have joined it: a
    class with a single label has no variance of its own. A bootstrap is too sure of such classes, and a posterior
    draws every one of them towards its prior, so that with many classes its interval misses the mean.
    """
    low, span = values.min(), np.ptp(values)
    scaled, counts = (values - low) / span, counts[counts.sum(axis=1) > 0]
    n = counts.sum(axis=1)
    pool = (n.sum() * (counts / n[:, None]).mean(axis=0) + 2) / (n.sum() + 2 * len(values))
    shares = (counts + 2 * pool) / (n[:, None] + 2)
    own = shares @ scaled
    variance = ((shares @ scaled**2 - own**2) / n).sum() / len(n) ** 2
    size = own.mean() * (1 - own.mean()) / variance
    mean = (counts @ scaled / n).mean()
    centre = (size * mean + Z**2 / 2) / (size + Z**2)
    half = Z * np.sqrt(size * mean * (1 - mean) + Z**2 / 4) / (size + Z**2)
    ends = (mean, min(mean, max(0.0, centre - half)), max(mean, min(1.0, centre + half)))  # but for rounding
    return Estimate(*(100 * float(low + span * end) for end in ends))


def score(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> dict[str, Any]:
    """All scores against some labels, as plain values; accuracies in per cent."""
    counts = confusion(y, predicted, classes)
    accuracy = class_accuracy(counts)
    worst = int(np.nanargmin(accuracy))
    low, high = bootstrap_interval(counts)
    return {
        "images": len(y),
        "per_class_mean": 100 * float(np.nanmean(accuracy)),
        "interval": [100 * low, 100 * high],
        "overall": 100 * float(np.diag(counts).sum() / counts.sum()),
        "worst": 100 * float(accuracy[worst]),
        "worst_class": worst,
        "per_class": [None if np.isnan(a) else 100 * float(a) for a in accuracy],
        "confusion": counts.tolist(),
    }


def score_test(test: TestLabels, logits: NDArray[np.floating[Any]]) -> dict[str, dict[str, Any]]:
    """Scores on the whole test split and, where it is another, on the paper's."""
    predicted = logits.argmax(axis=1)
    classes = len(test.classes)
    scores = {"whole": score(test.y, predicted, classes)}
    if test.paper is not None:
        scores["paper"] = score(test.y[test.paper], predicted[test.paper], classes)
    return scores


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
