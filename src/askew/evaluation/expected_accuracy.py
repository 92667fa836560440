"""The expected accuracy on the target, from how often adapted networks agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from askew.evaluation.outputs import DomainOutputs, Labels


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
