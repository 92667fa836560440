"""Scores of predictions against an exam: per-class mean accuracy, overall, worst class, and how sure we are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.data.task import TestLabels

RESAMPLES = 2_000
DRAWS = 4_000
"""Accuracies that the interval of an `Estimate` is made from."""


def confusion(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """n_(i,j): images of class i that were labelled j. (c, c)"""
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def class_accuracy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_i = n_(i,i)/n_i; NaN for a class that the exam does not have. (c, c) → (c,)"""
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy: NDArray[np.float64] = np.diag(counts) / counts.sum(axis=1)
    return accuracy


def bootstrap_interval(counts: NDArray[np.int64], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the per-class mean when the exam's images are drawn again, class by class.

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


def accurate(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> Estimate:
    """Mean accuracy over the classes that occur. With few labels of a class, a bootstrap would be too sure of them: one
    that is right is right in every resample. So accuracies are drawn from their posterior under Jeffreys' prior."""
    sizes = np.bincount(y, minlength=classes)
    right = np.bincount(y[y == predicted], minlength=classes)[sizes > 0]
    wrong = sizes[sizes > 0] - right
    drawn = np.random.default_rng(0).beta(right + 0.5, wrong + 0.5, size=(DRAWS, len(right))).mean(axis=1)
    return _estimate(float((right / (right + wrong)).mean()), drawn)


def gained(y: NDArray[np.int64], before: NDArray[np.int64], after: NDArray[np.int64], classes: int) -> Estimate:
    """Difference of two mean accuracies on the same images: how many of each class became right, and how many wrong."""
    sizes = np.bincount(y, minlength=classes)
    better = np.bincount(y[(after == y) & (before != y)], minlength=classes)
    worse = np.bincount(y[(after != y) & (before == y)], minlength=classes)
    counts = np.stack([better, worse, sizes - better - worse], axis=1)[sizes > 0]
    gammas = np.random.default_rng(0).gamma(counts + 1 / 3, size=(DRAWS, *counts.shape))
    shares = gammas / gammas.sum(axis=2, keepdims=True)
    drawn = (shares[:, :, 0] - shares[:, :, 1]).mean(axis=1)
    return _estimate(float(((better - worse)[sizes > 0] / sizes[sizes > 0]).mean()), drawn)


def _estimate(value: float, drawn: NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Estimate(100 * value, 100 * float(low), 100 * float(high))


def score(y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> dict[str, Any]:
    """All scores of one exam, as plain values; accuracies in per cent."""
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
    """Scores on the whole test part and, where it is another, on the paper's exam."""
    predicted = logits.argmax(axis=1)
    classes = len(test.classes)
    scores = {"whole": score(test.y, predicted, classes)}
    if test.paper is not None:
        scores["paper"] = score(test.y[test.paper], predicted[test.paper], classes)
    return scores


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
