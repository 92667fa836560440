"""Scores of predictions against test labels: per-class mean accuracy, overall, worst class, and
their uncertainty."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.data.task import TestLabels

RESAMPLES = 2_000
Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def confusion(
    y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int
) -> NDArray[np.int64]:
    """n_(i,j): images of class i that were labelled j. (c, c)"""
    return np.bincount(y * classes + predicted, minlength=classes * classes).reshape(
        classes, classes
    )


def class_accuracy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """S_i = n_(i,i)/n_i; NaN for a class without a test label. (c, c) → (c,)"""
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy: NDArray[np.float64] = np.diag(counts) / counts.sum(axis=1)
    return accuracy


def bootstrap_interval(
    counts: NDArray[np.int64], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the per-class mean when the test images are resampled, class by class.

    Drawing n_i images of a class of accuracy S_i again with replacement is a binomial draw.
    """
    sizes = counts.sum(axis=1)
    present = sizes > 0
    rng = np.random.default_rng(seed)
    accuracy = np.diag(counts)[present] / sizes[present]
    means = (
        rng.binomial(sizes[present], accuracy, size=(RESAMPLES, present.sum())) / sizes[present]
    ).mean(axis=1)
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


@dataclass(frozen=True, eq=False)
class Strata:
    """Labelled images that were drawn where networks disagree more often than elsewhere.

    What is labelled of the agreed images is too little to tell how many there are of each class;
    the class that all networks predict tells that, up to the share of them that is wrong.
    """

    contested: NDArray[np.bool_]
    """Of each labelled image. (n,)"""
    weights: tuple[float, float]
    """How many images of the whole an agreed, and a contested, labelled image stands for."""
    agreed: NDArray[np.int64]
    """All agreed images, labelled or not, by their predicted class. (c,)"""

    def model_agreed(
        self, right: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Agreed images of each class, as many in sum as are labelled: right ones and wrong ones.
        (c,), (c,)"""
        n = int((~self.contested).sum())
        share = (float(right[~self.contested].sum()) + 1) / (n + 2)
        by_class = n * self.agreed / max(1, self.agreed.sum())
        return share * by_class, (1 - share) * by_class


def mean_accuracy(
    y: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, strata: Strata | None = None
) -> Estimate:
    """Mean accuracy over the classes that occur, with its interval."""
    counts = _outcomes(y, np.where(predicted == y, 0, 1), classes, 2, strata)
    if strata is not None:
        counts[0] = np.stack(strata.model_agreed(predicted == y), axis=1)
    return _estimate(counts, np.array([1.0, 0.0]), strata)


def accuracy_gain(
    y: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    classes: int,
    strata: Strata | None = None,
) -> Estimate:
    """Difference of two mean accuracies on the same images: how many of each class became right,
    and how many wrong."""
    return _estimate(_gains(y, before, after, classes, strata), GAIN, strata, differs=True)


def labels_to_settle(
    y: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    classes: int,
    most: int,
    strata: Strata | None = None,
) -> int | None:
    """How many labels, drawn like these, would show which network is better, if the difference is
    what it seems.

    None if so many as there are images, `most`, would not.
    """
    counts = _gains(y, before, after, classes, strata)
    for n in np.unique(np.geomspace(len(y), max(len(y), most), 100).astype(np.int64)):
        found = _estimate(counts * (n / len(y)), GAIN, strata, differs=True)
        if found.low > 0 or found.high < 0:
            return int(n)
    return None


GAIN = np.array([1.0, -1.0, 0.0])
"""What an image adds to a difference that became right, became wrong, or stayed as it was."""


def _gains(
    y: NDArray[np.int64],
    before: NDArray[np.int64],
    after: NDArray[np.int64],
    classes: int,
    strata: Strata | None,
) -> NDArray[np.float64]:
    better, worse = (after == y) & (before != y), (after != y) & (before == y)
    counts = _outcomes(y, np.where(better, 0, np.where(worse, 1, 2)), classes, 3, strata)
    if strata is not None:
        counts[0] = 0
        counts[0, :, 2] = np.sum(strata.model_agreed(after == y), axis=0)
    return counts


def _outcomes(
    y: NDArray[np.int64],
    outcome: NDArray[np.int64],
    classes: int,
    kinds: int,
    strata: Strata | None,
) -> NDArray[np.float64]:
    """Labelled images by stratum, class and outcome. (s, c, o)"""
    stratum = (
        np.zeros(len(y), dtype=np.int64) if strata is None else strata.contested.astype(np.int64)
    )
    of = 1 if strata is None else 2
    flat = np.bincount((stratum * classes + y) * kinds + outcome, minlength=of * classes * kinds)
    return flat.reshape(of, classes, kinds).astype(np.float64)


def _estimate(
    counts: NDArray[np.float64],
    values: NDArray[np.float64],
    strata: Strata | None,
    *,
    differs: bool = False,
) -> Estimate:
    """The mean over classes of a value that each image has, and Wilson's interval for an effective
    number of images.

    counts (s, c, o): images of each stratum and class with each of the values (o,). Scaled to [0,
    1], the mean has

        n = μ(1 − μ)/V,   V = Σ_k V_k / c²,   V_k = (1 + 2/n_k) Σ_i w_i² (v_i − μ_k)² / (Σ_i w_i)²,

    the sums over the images of class k and two more, which have the mean shares of all classes: a
    class with a single label has no variance of its own. w is how many images of the whole one of
    its stratum stands for; without strata V_k is the variance over n_k. Where networks agree, two
    of them cannot differ, so nothing is added there to a difference. A bootstrap is too sure of
    such classes, and a posterior draws every one of them towards its prior, so that with many
    classes its interval misses the mean.
    """
    low, span = values.min(), np.ptp(values)
    scaled, counts = (values - low) / span, counts[:, counts.sum(axis=(0, 2)) > 0]
    w = np.array([1.0] if strata is None else strata.weights)
    n, of_class = counts.sum(axis=(1, 2)), counts.sum(axis=(0, 2))
    shares = [
        (s[s.sum(axis=1) > 0] / s[s.sum(axis=1) > 0].sum(axis=1, keepdims=True)) for s in counts
    ]
    pool = np.array(
        [
            (n_s * (own.mean(axis=0) if len(own) else 0) + 2) / (n_s + 2 * len(values))
            for n_s, own in zip(n, shares, strict=True)
        ]
    )
    if differs and strata is not None:
        pool[0] = values == 0
    added = counts + 2 * (n / n.sum())[:, None, None] * pool[:, None]
    weight = np.einsum("s,sco->c", w, added)
    own = np.einsum("s,sco,o->c", w, added, scaled) / weight
    spread = np.einsum("s,sco->c", w**2, added * (scaled - own[None, :, None]) ** 2) / weight**2
    variance = ((1 + 2 / of_class) * spread).sum() / len(own) ** 2
    size = own.mean() * (1 - own.mean()) / variance
    mean = (np.einsum("s,sco,o->c", w, counts, scaled) / np.einsum("s,sco->c", w, counts)).mean()
    ends = (mean, *wilson(np.array(mean), size))
    return Estimate(*(100 * float(low + span * end) for end in ends))


def wilson(share: NDArray[np.float64], n: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of Wilson's 95 % interval for shares of n images.

    >>> low, high = wilson(np.array([0.0, 0.5]), 100)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([0.0, 0.404], [0.037, 0.596])
    """
    centre = (n * share + Z**2 / 2) / (n + Z**2)
    half = Z * np.sqrt(n * share * (1 - share) + Z**2 / 4) / (n + Z**2)
    low, high = np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)
    return np.minimum(low, share), np.maximum(high, share)  # but for rounding


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


def main_scores(scores: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The scores that are one number each, by test split."""
    names = ("per_class_mean", "overall", "worst")
    return {
        f"{split}/{name}": float(values[name]) for split, values in scores.items() for name in names
    }


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
