"""Choose among networks by the ranks of label-free scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from askew.evaluation.outputs import Floats
from askew.evaluation.scores import ScoredNetwork

CHOOSERS = ("source", "prior-information", "corr-c", "expected", "ensemble")
"""Scores whose ranks `choose` adds up; chosen on the development tasks alone."""
JOINS = 0.75
"""Share of the mean sum of ranks from which on a network is one of those whose mean is handed out;
on the development tasks 0.7 and 0.8 make no difference, and 1 costs half a point."""
MANY, JOINS_MANY = 6, 0.5
"""Of so many networks or more, that share suffices: ranks lie further apart, and those that err in
their own way would be left out (28 development tasks with six networks: 0.3 points more,
results/own-data). Of three, it means all."""


def rank_sums(networks: Sequence[ScoredNetwork]) -> Floats:
    """The sum of each network's ranks by scores that err in different ways; large is good. (n,)

    Prior-aware information and confidence by class rely on the estimated prior, and praise a
    network that predicts one class for everything where that estimate fails; Corr-C wants all
    classes, which is wrong under label shift, and notices just that. The ensemble looks at the
    other networks, and the source's accuracy at what was forgotten.
    """
    from scipy.stats import rankdata

    by_score = [
        rankdata(np.round([network.scores[name] for network in networks], 9)) for name in CHOOSERS
    ]
    ranks: Floats = np.sum(by_score, axis=0)
    return ranks


def choose(networks: Sequence[ScoredNetwork]) -> int:
    """The network to prefer, without a label: that of the best sum of ranks.

    Of equals, the first is taken, so put source-only first.
    """
    return int(np.argmax(rank_sums(networks)))


def choose_several(
    networks: Sequence[ScoredNetwork], weights: Sequence[float] | None = None
) -> list[int]:
    """The networks whose mean to hand out: source-only, the first, if it is preferred, or all
    adapted ones whose sum of ranks, times the network's weight, is at least JOINS of the mean sum
    (of many networks, JOINS_MANY). Several together are better than the one that scores prefer, and
    scores are good for telling which one is far worse than the others."""
    ranks = rank_sums(networks)
    weighted = ranks * (1 if weights is None else np.asarray(weights))
    least = (JOINS if len(networks) < MANY else JOINS_MANY) * ranks.mean()
    better = [i for i in range(1, len(networks)) if weighted[i] >= least]
    return better if choose(networks) else [0]
