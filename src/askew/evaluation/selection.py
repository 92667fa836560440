"""Choose among networks by the ranks of label-free scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from askew.evaluation.outputs import Floats
from askew.evaluation.scores import ScoredNetwork

CHOOSERS = ("source", "prior-information", "corr-c", "expected", "ensemble")
"""Scores whose ranks `choose` adds up; selected on the development tasks only."""


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

    A tie goes to the first.
    """
    return int(np.argmax(rank_sums(networks)))
