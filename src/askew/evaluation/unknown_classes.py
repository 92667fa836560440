"""Possible unknown-class images: target images on which the networks disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.outputs import DomainOutputs, Floats, softmax

ALARMS = 0.05
"""Share of the held-out source images above the threshold: false alarms."""
MOST = 0.15
"""Largest share of the target that is marked. Where images look different, networks disagree on
much of the target."""


@dataclass(frozen=True, eq=False)
class UnknownImages:
    """How likely each target image shows none of the known classes."""

    score: Floats
    """Disagreement of the networks: 0 for none, 1 if each is certain of another class. (n_t,)"""
    threshold: float
    """The score that a share of ALARMS of the held-out source images exceeds."""

    @property
    def marked(self) -> NDArray[np.bool_]:
        """Possible unknown-class images: those above the threshold, at most a share of MOST.
        (n_t,)"""
        highest = np.argsort(-self.score, kind="stable")[: round(MOST * len(self.score))]
        above: NDArray[np.bool_] = np.isin(np.arange(len(self.score)), highest) & (
            self.score > self.threshold
        )
        return above

    @property
    def share(self) -> float:
        """Share of the target above the threshold."""
        return float((self.score > self.threshold).mean())

    def as_dict(self) -> dict[str, Any]:
        return {"images": int(self.marked.sum()), "share": self.share, "threshold": self.threshold}


def find_unknown_images(networks: Sequence[DomainOutputs]) -> UnknownImages:
    """Score target images by the disagreement of calibrated networks.

    s_i = (H(p̄_i) − mean_m H(p_im)) / log c, where p̄ is the mean of the networks' probabilities
    p_m. This is the mutual information of the class and the choice of network. With a single
    network, the score is its entropy. On development pairs this detects unknown classes better
    than H(p̄), and better than the final model's confidence, energy and neighbours.
    """
    val, target = (
        _disagreement([softmax(z) for z in logits], networks[0].classes)
        for logits in ([n.source_val for n in networks], [n.target_uniform for n in networks])
    )
    return UnknownImages(target, float(np.quantile(val, 1 - ALARMS)))


def _disagreement(p: Sequence[Floats], classes: int) -> Floats:
    entropy_of_mean = _entropy(np.mean(p, axis=0), classes)
    if len(p) == 1:
        return entropy_of_mean
    mean_entropy: Floats = np.mean([_entropy(each, classes) for each in p], axis=0)
    return entropy_of_mean - mean_entropy


def _entropy(p: Floats, classes: int) -> Floats:
    entropy: Floats = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1) / np.log(max(2, classes))
    return entropy
