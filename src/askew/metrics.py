"""Scores of predictions against an exam: per-class mean accuracy, overall, worst class, and how sure we are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.data.task import Exam

RESAMPLES = 2_000


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


def score_exam(exam: Exam, logits: NDArray[np.floating[Any]]) -> dict[str, dict[str, Any]]:
    """Scores on the whole test part and, where it is another, on the paper's exam."""
    predicted = logits.argmax(axis=1)
    classes = len(exam.classes)
    scores = {"whole": score(exam.y, predicted, classes)}
    if exam.paper is not None:
        scores["paper"] = score(exam.y[exam.paper], predicted[exam.paper], classes)
    return scores
