"""Scores of a network whose logits are adjusted to the estimated target prior."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from askew.data.task import TestLabels
from askew.evaluation.logits import adjust_logits, as_floats
from askew.evaluation.metrics import score_test
from askew.evaluation.prior_estimators import PredictionRates


def reweighted_scores(
    test: TestLabels,
    logits: Tensor,
    source_val: Tensor,
    source_val_y: Tensor,
    target: Tensor,
    training_prior: Tensor,
) -> dict[str, Any]:
    """Scores of the same network under BBSE's target prior, estimated from the other logits; costs
    no training."""
    trained_on = as_floats(training_prior)
    rates = PredictionRates.of(source_val, source_val_y, target)
    prior = rates.bbse()
    scores = score_test(test, adjust_logits(as_floats(logits), prior, trained_on))
    record = {"target_mix": prior.tolist(), "seen_mix": trained_on.tolist()}
    return record | {"unsure": rates.unsure, "scores": scores}
