"""How many target images are right, told from how often networks name the same class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from askew.evaluation.logits import Floats, Labels, softmax
from askew.evaluation.outputs import DomainOutputs

SUREST, SOFTEST = 0.1, 100.0
"""Temperatures between which one is looked for."""


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
        return (
            f"Two of the {self.networks} adapted networks name the same class for {100 * self.overall:.0f} % of the "
            f"target, {100 * self.per_class_mean:.0f} % as a mean over classes: expect about so many predictions to be "
            "right, unless the networks make the same mistakes."
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def expected_accuracy(networks: Sequence[DomainOutputs], predicted: Labels) -> ExpectedAccuracy | None:
    """By adapted networks for the same target images, whose classes are predicted by one or by all of them; None
    where fewer than two can be compared.

    Networks that are trained to the same end, and together are as confident as they are right, agree as often as one
    of them is right (Y. Jiang et al., Assessing generalization of SGD via disagreement, 2022). Softmaxes have no part
    in it: networks that adapted to the target are sure of everything there.
    """
    if len(networks) < 2:
        return None
    answers = [outputs.target_uniform.argmax(axis=1) for outputs in networks]
    agreed = np.mean([one == other for one, other in combinations(answers, 2)], axis=0)
    by_class = [agreed[predicted == k].mean() for k in np.unique(predicted)]
    return ExpectedAccuracy(float(agreed.mean()), float(np.mean(by_class)), len(networks))


def temperature_for(logits: Floats, accuracy: float) -> float:
    """The temperature at which the most probable classes have this probability on average: no class changes, and
    probabilities are as high as predictions are right. (n, c)"""
    from scipy.optimize import brentq

    def excess(t: float) -> float:
        return float(softmax(logits / t).max(axis=1).mean()) - accuracy

    if excess(SUREST) <= 0:
        return SUREST
    return SOFTEST if excess(SOFTEST) >= 0 else float(brentq(excess, SUREST, SOFTEST))
