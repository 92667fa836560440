"""The expected accuracy on the target: from how often networks agree, or from one posterior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from askew.evaluation.outputs import DomainOutputs, Floats, Labels, adjust_logits, softmax
from askew.evaluation.priors import em_prior


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The share of target images whose predictions are expected to be right."""

    overall: float
    per_class_mean: float
    """The mean over the predicted classes."""
    networks: int
    """How many networks were compared with each other; 1: by the posterior of the saved one."""
    before: float | None = None
    """The same share without adaptation, where that can be told."""

    @property
    def sentence(self) -> str:
        overall, mean = 100 * self.overall, 100 * self.per_class_mean
        if self.before is not None:
            return (
                f"Expected accuracy: {overall:.0f} % ({mean:.0f} % as a mean over classes; without "
                f"adaptation about {100 * self.before:.0f} %), if the model describes the target."
            )
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


def target_posterior(outputs: DomainOutputs) -> tuple[Floats, Floats]:
    """Give each target image's posterior under the estimated class shares, and these shares.

    r_ik ∝ π_k p_ik, with p the calibrated probabilities for equal shares and π of greatest
    likelihood, by EM (Saerens et al. 2002). (n_t, c), (c,)
    """
    p = softmax(outputs.target_uniform)
    shares = em_prior(p, np.full(outputs.classes, 1 / outputs.classes))
    r = p * shares
    return r / r.sum(axis=1, keepdims=True), shares


def accuracy_by_posterior(posterior: Floats, predicted: Labels, before: Labels) -> ExpectedAccuracy:
    """Estimate the accuracy of predictions, and of those without adaptation, by one posterior.

    (n_t, c), (n_t,), (n_t,)
    """
    rows = np.arange(len(posterior))
    right = posterior[rows, predicted]
    expected = np.maximum(posterior.sum(axis=0), 1.0)  # images of each class
    by_class = np.bincount(predicted, right, posterior.shape[1]) / expected
    some = posterior.sum(axis=0) >= 1
    mean = float(by_class[some].mean()) if some.any() else float(right.mean())
    without = float(posterior[rows, before].mean())
    return ExpectedAccuracy(float(right.mean()), mean, 1, without)


def best_accuracy(outputs: DomainOutputs) -> float:
    """Give the accuracy on the target that the source allows, at most.

    A network that moved to the target is not right more often there than on source images that
    are moved likewise: Σ_k π_k a_k, with a_k the share of the source's images of class k that are
    right, and π the estimated class shares; plus what chance in so few images explains.
    """
    _, shares = target_posterior(outputs)
    uniform = np.full(outputs.classes, 1 / outputs.classes)
    logits = adjust_logits(outputs.source_val, uniform, outputs.training_prior)
    right = logits.argmax(axis=1) == outputs.source_val_y
    sizes = np.maximum(outputs.source_sizes, 1)
    recall = np.bincount(outputs.source_val_y, right, outputs.classes) / sizes
    error = np.sqrt((shares**2 * recall * (1 - recall) / sizes).sum())
    return float((shares * recall).sum() + Z_ONE_SIDED * error)


def at_most(expected: ExpectedAccuracy, most: float) -> ExpectedAccuracy:
    """Lower expectations that exceed what the source allows, all by as much."""
    excess = max(0.0, expected.overall - most)
    before = None if expected.before is None else max(0.0, expected.before - excess)
    return replace(
        expected,
        overall=expected.overall - excess,
        per_class_mean=max(0.0, expected.per_class_mean - excess),
        before=before,
    )


Z_ONE_SIDED = 1.64
"""Standard errors of a normal distribution that chance exceeds in one of twenty cases."""
