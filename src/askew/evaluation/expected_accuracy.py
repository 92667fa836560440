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
    """The share of target images whose predictions are expected to be right."""

    overall: float
    per_class_mean: float
    """The mean over the predicted classes."""
    networks: int
    """How many networks were compared with each other."""

    @property
    def sentence(self) -> str:
        overall, mean = 100 * self.overall, 100 * self.per_class_mean
        return (
            f"On average, two of the {self.networks} adapted networks predict the same class for "
            f"{overall:.0f} % of the target ({mean:.0f} % as a mean over classes). Expect about as "
            "many predictions to be right, unless the networks share their mistakes."
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def expected_accuracy(
    networks: Sequence[DomainOutputs], predicted: Labels
) -> ExpectedAccuracy | None:
    """Estimate the accuracy of `predicted` from how often pairs of adapted networks agree.

    Networks that are trained in the same way, and are calibrated together, agree as often as one
    of them is right (Y. Jiang et al., Assessing generalization of SGD via disagreement, 2022).
    Softmax confidence is not used: adapted networks are overconfident on the target.

    Args:
        networks: The adapted networks' outputs for the same target images.
        predicted: The class predicted for each target image. (n_t,)

    Returns:
        The estimate, or None for fewer than two networks.
    """
    if len(networks) < 2:
        return None
    classes = [outputs.target_uniform.argmax(axis=1) for outputs in networks]
    agreement = np.mean([one == other for one, other in combinations(classes, 2)], axis=0)
    by_class = [agreement[predicted == k].mean() for k in np.unique(predicted)]
    return ExpectedAccuracy(float(agreement.mean()), float(np.mean(by_class)), len(networks))
