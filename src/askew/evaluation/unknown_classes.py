"""Possible unknown-class images: target images on which the networks disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.outputs import DomainOutputs, Floats, softmax

ALARMS = 0.05
"""Share of the held-out source that is taken for unknown."""
MOST = 0.15
"""Share of the target that is marked at most: where it looks different, the methods disagree on
much of it."""


@dataclass(frozen=True, eq=False)
class Unfamiliar:
    """How little each target image looks like any of the classes."""

    score: Floats
    """How much the networks disagree, from 0, not at all, to 1, each sure of another class.
    (n_t,)"""
    threshold: float
    """Above it are ALARMS of the held-out source images."""

    @property
    def marked(self) -> NDArray[np.bool_]:
        """Target images above the threshold, or the strangest of them, where they are many.
        (n_t,)"""
        strangest = np.argsort(-self.score, kind="stable")[: round(MOST * len(self.score))]
        above: NDArray[np.bool_] = np.isin(np.arange(len(self.score)), strangest) & (
            self.score > self.threshold
        )
        return above

    @property
    def share(self) -> float:
        """Of the target that is above the threshold."""
        return float((self.score > self.threshold).mean())

    def as_dict(self) -> dict[str, Any]:
        return {"images": int(self.marked.sum()), "share": self.share, "threshold": self.threshold}


def find_unfamiliar(networks: Sequence[DomainOutputs]) -> Unfamiliar:
    """By all networks together, each calibrated: what none of them was trained on, they disagree
    about.

    s_i = (H(p̄_i) − mean_m H(p_im)) / log c, p̄ the mean of the networks' probabilities p_m: what
    knowing which network answers tells about the class. Of one network, its entropy. On development
    pairs this tells unknown images better than H(p̄) and than the certainty, energy and neighbours
    of the network that is handed out, which adaptation has made sure of everything.
    """
    val, target = (
        _disagreement([softmax(z) for z in logits], networks[0].classes)
        for logits in ([n.source_val for n in networks], [n.target_uniform for n in networks])
    )
    return Unfamiliar(target, float(np.quantile(val, 1 - ALARMS)))


def _disagreement(p: Sequence[Floats], classes: int) -> Floats:
    together = _entropy(np.mean(p, axis=0), classes)
    return (
        together
        if len(p) == 1
        else together - np.mean([_entropy(own, classes) for own in p], axis=0)
    )


def _entropy(p: Floats, classes: int) -> Floats:
    entropy: Floats = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1) / np.log(max(2, classes))
    return entropy
