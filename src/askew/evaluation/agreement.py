"""What networks tell by agreeing: how many target images are right, and which may be of no known
class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.logits import Floats, Labels, softmax
from askew.evaluation.outputs import DomainOutputs

ALARMS = 0.05
"""Share of the held-out source that is taken for unknown."""
MOST = 0.15
"""Share of the target that is marked at most: where it looks different, the methods disagree on
much of it."""


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The share of target images that are expected to be right."""

    overall: float
    per_class_mean: float
    """As a mean over the classes that are predicted."""
    networks: int
    """Those that were compared with each other."""

    @property
    def sentence(self) -> str:
        overall, mean = 100 * self.overall, 100 * self.per_class_mean
        return (
            f"On average, two of the {self.networks} adapted networks name the same class for "
            f"{overall:.0f} % of the "
            f"target, {mean:.0f} % as a mean over classes: expect about as many predictions to "
            "be right, unless the "
            "networks share their mistakes."
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def expected_accuracy(
    networks: Sequence[DomainOutputs], predicted: Labels
) -> ExpectedAccuracy | None:
    """By adapted networks for the same target images, whose classes are predicted by one or by all
    of them; None where fewer than two can be compared.

    Networks that are trained to the same end, and together are as confident as they are right,
    agree as often as one of them is right (Y. Jiang et al., Assessing generalization of SGD via
    disagreement, 2022). Softmaxes have no part in it: networks that adapted to the target are sure
    of everything there.
    """
    if len(networks) < 2:
        return None
    answers = [outputs.target_uniform.argmax(axis=1) for outputs in networks]
    agreed = np.mean([one == other for one, other in combinations(answers, 2)], axis=0)
    by_class = [agreed[predicted == k].mean() for k in np.unique(predicted)]
    return ExpectedAccuracy(float(agreed.mean()), float(np.mean(by_class)), len(networks))


# --- images of no known class ---


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
