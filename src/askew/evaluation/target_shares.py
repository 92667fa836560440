"""The target's label distribution as users are told it, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.logits import Floats
from askew.evaluation.metrics import wilson
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.prior_estimators import PriorEstimate, PriorEstimator


@dataclass(frozen=True, eq=False)
class TargetShares:
    """The share of each class in the target, with 95 % intervals whose coverage docs/trust.md
    tells."""

    estimator: PriorEstimator | Literal["counting"]
    prior: Floats
    """(c,)"""
    low: Floats
    high: Floats
    unsure: bool = False
    """Whether the network cannot tell some classes apart, so that their shares are arbitrary."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator,
            "shares": self.prior.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "unsure": self.unsure,
        }


def target_shares(
    outputs: DomainOutputs, others: Sequence[DomainOutputs], estimate: PriorEstimate, alike: bool
) -> TargetShares:
    """The shares by a network, beside all others that were trained, and its estimate under label
    shift alone.

    Where images of a class look `alike` in both domains, that estimate is shown: what the network
    confuses in the source, it confuses in the target. Elsewhere it does not, and to correct for it
    does harm: the share of target images that the network predicts a class for is closer to the
    truth on all development tasks. Intervals span what is wrong either way: from the share on which
    all networks agree to the share that any of them predicts, by Wilson's lower and upper end,
    since all may err alike; and the interval of the estimate under label shift alone.
    """
    predicted = np.stack(
        [one.target_uniform.argmax(axis=1) for one in (*others, outputs)]
    )  # (networks, n_t)
    says = predicted[..., None] == np.arange(outputs.classes)
    agreed, any_says = says.all(axis=0).mean(axis=0), says.any(axis=0).mean(axis=0)
    n, counted = predicted.shape[1], says[-1].mean(axis=0)
    low = np.minimum(wilson(agreed, n)[0], estimate.low)
    high = np.maximum(wilson(any_says, n)[1], estimate.high)
    if alike:
        return TargetShares(estimate.estimator, estimate.prior, low, high, estimate.unsure)
    return TargetShares("counting", counted, low, high)
