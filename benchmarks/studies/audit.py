"""How often `askew audit`'s intervals hold the truth: simulated targets, labelled at random or
where networks disagree.

    python benchmarks/studies/audit.py [--draws 1000]

A target of 3,000 images has its classes in shares that fall by a factor of six, and two networks
whose accuracies fall with the class. Some images are labelled, and the mean over classes and the
gain of the second network are estimated as `askew audit` does; printed are the shares of draws in
which the intervals contain the point estimate, the truth over the classes that have labels, and the
truth over all classes, and the mean width of the gain's interval. Nominal: 95 %.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from askew.adaptation.audit import _strata, _turns
from askew.evaluation.metrics import Estimate, accuracy_gain, mean_accuracy

IMAGES = 3000
CASES = ((3, 100), (10, 100), (31, 100), (31, 310), (65, 100), (65, 650))

Labels = NDArray[np.int64]


def simulate(classes: int, labelled: int, disagree: bool, draws: int, seed: int = 0) -> list[float]:
    """Shares of draws with the estimate inside, then truths inside (accuracy and gain, both
    truths); and a width."""
    rng = np.random.default_rng(seed)
    prior = np.geomspace(6, 1, classes) / np.geomspace(6, 1, classes).sum()
    y = rng.choice(classes, IMAGES, p=prior)
    u = rng.random(
        IMAGES
    )  # networks err on the same images, mostly: that is why they rarely disagree
    first, then = (
        np.where(
            u + 0.1 * rng.normal(size=IMAGES) < np.linspace(*ends, classes)[y],
            y,
            _other(y, classes, rng),
        )
        for ends in ((0.9, 0.4), (0.95, 0.55))
    )
    found = []
    for _ in range(draws):
        order = rng.permutation(IMAGES)
        if disagree:
            order = order[np.argsort(_turns((first != then)[order]), kind="stable")]
        rows = order[:labelled]
        strata = _strata([first, then], rows, classes)
        accuracy = mean_accuracy(y[rows], then[rows], classes, strata)
        gain = accuracy_gain(y[rows], first[rows], then[rows], classes, strata)
        right, better = (then == y).astype(float), (then == y).astype(float) - (first == y)
        there = np.unique(y[rows])
        truths = [
            [_by_class(values, y, own) for own in (there, np.unique(y))]
            for values in (right, better)
        ]
        inside = [_holds(e, e.value) for e in (accuracy, gain)]
        inside += [
            _holds(e, 100 * t)
            for e, both in zip((accuracy, gain), truths, strict=True)
            for t in both
        ]
        found.append([float(all(inside[:2])), *map(float, inside[2:]), gain.high - gain.low])
    return np.mean(found, axis=0).tolist()


def _other(y: Labels, classes: int, rng: np.random.Generator) -> Labels:
    return (y + rng.integers(1, classes, len(y))) % classes


def _by_class(values: NDArray[np.float64], y: Labels, classes: Labels) -> float:
    return float(np.mean([values[y == k].mean() for k in classes]))


def _holds(estimate: Estimate, value: float) -> bool:
    return estimate.low <= value <= estimate.high


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=1000)
    draws = parser.parse_args().draws
    print(
        "| classes | labels | drawn | holds the estimate | accuracy, labelled classes | "
        "accuracy, all classes "
        "| gain, labelled classes | gain, all classes | width of the gain's, points |"
    )
    print("|---" * 9 + "|")
    for classes, labelled in CASES:
        for disagree in (False, True):
            *shares, width = simulate(classes, labelled, disagree, draws)
            cells = [f"{100 * share:.1f} %" for share in shares]
            drawn = "where they disagree" if disagree else "at random"
            print(
                "| "
                + " | ".join([str(classes), str(labelled), drawn, *cells, f"{width:.1f}"])
                + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
