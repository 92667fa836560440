"""Choose among networks by the ranks of label-free scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from askew.evaluation.outputs import Floats
from askew.evaluation.scores import ScoredNetwork

CHOOSERS = ("source", "prior-information", "corr-c", "expected", "ensemble")
"""Scores whose ranks `choose` adds up; selected on the development tasks only."""
JOINS = 0.75
"""Smallest sum of ranks, as a share of the mean sum, with which a network joins the ensemble.
On the development tasks 0.7 and 0.8 make no difference, and 1 costs half a point."""
MANY, JOINS_MANY = 6, 0.5
"""With at least MANY networks the smaller share applies: ranks then lie further apart
(results/own-data)."""


def rank_sums(networks: Sequence[ScoredNetwork]) -> Floats:
    """Sum each network's ranks by the CHOOSERS; large is good. (n,)

    The scores fail in different cases. Prior-aware information and confidence by class rely on the
    estimated prior; where it is wrong, they favour a network that predicts a single class. Corr-C
    favours equally frequent classes, which is wrong under label shift, but it detects that failure.
    The ensemble compares a network with the others, and source accuracy detects forgetting.
    """
    from scipy.stats import rankdata

    by_score = [
        rankdata(np.round([network.scores[name] for network in networks], 9)) for name in CHOOSERS
    ]
    ranks: Floats = np.sum(by_score, axis=0)
    return ranks


def choose(networks: Sequence[ScoredNetwork]) -> int:
    """Choose the network with the largest sum of ranks.

    A tie goes to the first, so put source-only first.
    """
    return int(np.argmax(rank_sums(networks)))


def choose_several(
    networks: Sequence[ScoredNetwork], weights: Sequence[float] | None = None
) -> list[int]:
    """Choose the members of the ensemble.

    If source-only, the first network, ranks first, it is the only member. Otherwise the members are
    the adapted networks whose sum of ranks, times their weight, is at least JOINS of the mean sum.
    """
    ranks = rank_sums(networks)
    weighted = ranks * (1 if weights is None else np.asarray(weights))
    least = (JOINS if len(networks) < MANY else JOINS_MANY) * ranks.mean()
    better = [i for i in range(1, len(networks)) if weighted[i] >= least]
    return better if choose(networks) else [0]
