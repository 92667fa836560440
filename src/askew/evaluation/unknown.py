"""Images of no known class: a score, and a threshold from held-out source images, which are all of known ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.logits import Floats, softmax
from askew.evaluation.outputs import DomainOutputs

ALARMS = 0.05
"""Share of the held-out source that is taken for unknown."""


@dataclass(frozen=True, eq=False)
class Unfamiliar:
    """How little each target image looks like any of the classes."""

    score: Floats
    """Entropy of the networks' mean prediction, from 0, sure of a class, to 1, all equally probable. (n_t,)"""
    threshold: float
    """Above it are ALARMS of the held-out source images."""

    @property
    def marked(self) -> NDArray[np.bool_]:
        """Target images above the threshold. (n_t,)"""
        return self.score > self.threshold

    @property
    def share(self) -> float:
        """Of the target that is marked."""
        return float(self.marked.mean())

    def as_dict(self) -> dict[str, Any]:
        return {"images": int(self.marked.sum()), "share": self.share, "threshold": self.threshold}


def find_unfamiliar(networks: Sequence[DomainOutputs]) -> Unfamiliar:
    """By all networks together, each calibrated: what none of them was trained on, they disagree about.

    s_i = H(mean_m softmax(z_im)) / log c. On the development tasks one network by itself, its largest probability, its
    logits' energy and the distance of embeddings all tell unknown images worse.
    """
    c = networks[0].classes
    val, target = (
        np.mean([softmax(z) for z in logits], axis=0)
        for logits in ([n.source_val for n in networks], [n.target_uniform for n in networks])
    )
    return Unfamiliar(_entropy(target, c), float(np.quantile(_entropy(val, c), 1 - ALARMS)))


def _entropy(p: Floats, classes: int) -> Floats:
    entropy: Floats = -(p * np.log(np.maximum(p, 1e-12))).sum(axis=1) / np.log(max(2, classes))
    return entropy
