"""The target's class prior: two estimators with intervals, and the shares that are reported.

BBSE (Lipton et al. 2018), and EM (Saerens et al. 2002) on calibrated posteriors (Alexandari et al.
2020). Both assume label shift alone, p(x|y) = q(x|y); under feature shift they may be wrong.

quapy (0.2.3) has both, and the results agree: BBSE to 3e-6, EM to 4e-4 on 2,000 and 10,000 images.
It is not used because it wraps classifiers that it fits itself, because the bias of a class with
hardly a held-out image diverges in the calibration library it uses, and because it brings six more
dependencies.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from askew.data.task import TestLabels
from askew.evaluation.calibration import CalibrationFit
from askew.evaluation.metrics import score_test, wilson
from askew.evaluation.outputs import (
    DomainOutputs,
    Floats,
    Labels,
    adjust_logits,
    as_floats,
    as_labels,
    softmax,
)

PriorEstimator = Literal["bbse", "em"]
ESTIMATORS: tuple[PriorEstimator, ...] = ("bbse", "em")
DEFAULT: PriorEstimator = "bbse"
"""EM is more exact under label shift alone; on the development tasks, where images look different
too, it relies on posteriors that are too confident, and errs more."""
Solver = Literal["simplex", "ridge"]
LEVEL = 0.95
"""Of the intervals."""
SINGULAR = 0.01
"""A confusion matrix whose smallest singular value is below this says next to nothing about some
classes."""


class UnsurePriorWarning(UserWarning):
    """The classifier confuses some classes so much that the target's class prior cannot be
    estimated."""


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """An estimated target prior and its uncertainty, if label shift is all that differs."""

    estimator: PriorEstimator
    prior: Floats
    """(c,)"""
    draws: Floats
    """Estimates from resampled images. (resamples, c)"""
    unsure: bool
    """Whether the classifier cannot tell some classes apart, so that their shares are arbitrary."""

    @property
    def low(self) -> Floats:
        low: Floats = np.minimum(np.quantile(self.draws, (1 - LEVEL) / 2, axis=0), self.prior)
        return low

    @property
    def high(self) -> Floats:
        high: Floats = np.maximum(np.quantile(self.draws, (1 + LEVEL) / 2, axis=0), self.prior)
        return high

    def as_dict(self) -> dict[str, Any]:
        ends = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {
            "estimator": self.estimator,
            "shares": self.prior.tolist(),
            **ends,
            "unsure": self.unsure,
        }


def estimate_prior(
    outputs: DomainOutputs,
    estimator: PriorEstimator = DEFAULT,
    *,
    resamples: int = 200,
    seed: int = 0,
) -> PriorEstimate:
    """Estimate the target's class prior, with a bootstrap of held-out source and target images.

    Held-out source images are drawn class by class.
    """
    rng = np.random.default_rng(seed)
    rates = PredictionRates.of(outputs.source_val, outputs.source_val_y, outputs.target)
    if estimator == "em":
        prior, draws = _em_bootstrap(outputs, resamples, rng)
    else:
        prior = rates.bbse()
        draws = np.array([again.bbse() for again in rates.resample(resamples, rng)])
        draws = draws.reshape(-1, outputs.classes)
    return PriorEstimate(estimator, prior, draws, rates.unsure)


def estimate_priors(
    outputs: DomainOutputs, *, resamples: int = 200, seed: int = 0
) -> dict[PriorEstimator, PriorEstimate]:
    """Estimate the prior by every estimator."""
    return {
        name: estimate_prior(outputs, name, resamples=resamples, seed=seed) for name in ESTIMATORS
    }


def target_prior(outputs: DomainOutputs, estimator: PriorEstimator = DEFAULT) -> Floats:
    """Estimate the prior without an interval. (c,)"""
    return estimate_prior(outputs, estimator, resamples=0).prior


def consensus_prior(networks: Sequence[DomainOutputs]) -> Floats:
    """Take the median of several networks' estimates, which one collapsed network does not move.
    (c,)"""
    median = np.median([target_prior(outputs) for outputs in networks], axis=0)
    prior: Floats = median / median.sum()
    return prior


def bbse_prior(
    source_val: Tensor,
    source_val_y: Tensor,
    target: Tensor,
    *,
    solver: Solver = "simplex",
    soft: bool = False,
) -> Tensor:
    """Black-box shift estimation from logits during training, with a warning where it cannot be
    trusted. (n_v, c), (n_v,), (n_t, c) → (c,)"""
    rates = PredictionRates.of(source_val, source_val_y, target, soft=soft)
    if rates.unsure:
        warnings.warn(
            "The confusion matrix is close to singular (smallest singular value "
            f"{rates.smallest_singular_value:.1g}): "
            "the classifier cannot tell some classes apart, and their shares in the estimated "
            "target prior are "
            "arbitrary.",
            UnsurePriorWarning,
            stacklevel=2,
        )
    return torch.from_numpy(rates.bbse(solver)).float().to(target.device)


# --- from predicted classes ---


@dataclass(frozen=True, eq=False)
class PredictionRates:
    """How often each class is predicted: for the held-out images of every class, and for the
    target."""

    confusion: Floats
    """C[i, j] = E[predicted i | class j]. (c, c)"""
    target: Floats
    """μ, the mean prediction on the target. (c,)"""
    sizes: Labels
    """Held-out images of each class. (c,)"""
    images: int
    """Target images."""

    @classmethod
    def of(
        cls, source_val: Any, source_val_y: Any, target: Any, *, soft: bool = False
    ) -> PredictionRates:
        """From logits, as tensors or arrays; a soft prediction is the softmax, a hard one the most
        probable class."""
        predict = softmax if soft else one_hot_predictions
        y, predicted = as_labels(source_val_y), predict(as_floats(target))
        confusion = confusion_by_class(predict(as_floats(source_val)), y)
        return cls(
            confusion,
            predicted.mean(axis=0),
            np.bincount(y, minlength=len(confusion)),
            len(predicted),
        )

    @property
    def smallest_singular_value(self) -> float:
        return float(np.linalg.svd(self.confusion, compute_uv=False)[-1])

    @property
    def unsure(self) -> bool:
        return self.smallest_singular_value < SINGULAR

    @property
    def source_prior(self) -> Floats:
        prior: Floats = self.sizes / max(1, self.sizes.sum())
        return prior

    def bbse(self, solver: Solver = "simplex") -> Floats:
        """The prior under which the held-out source would be predicted as the target is. (c,)"""
        if solver == "simplex":
            return simplex_prior(self.confusion, self.target)
        images = max(1, min(int(self.sizes.sum()), self.images))
        return ridge_prior(self.confusion, self.target, self.source_prior, images)

    def resample(self, resamples: int, rng: np.random.Generator) -> list[PredictionRates]:
        """Rates of hard predictions on images drawn again with replacement, which are multinomial
        draws."""
        counts = rng.multinomial(self.sizes, self.confusion.T, size=(resamples, len(self.sizes)))
        rows = np.where(
            self.sizes[:, None] > 0, counts / np.maximum(self.sizes, 1)[:, None], self.confusion.T
        )
        targets = rng.multinomial(self.images, self.target, size=resamples) / self.images
        return [
            replace(self, confusion=row.T, target=target)
            for row, target in zip(rows, targets, strict=True)
        ]


def one_hot_predictions(logits: Floats) -> Floats:
    """1 for the most probable class, 0 for the others. (n, c) → (n, c)"""
    predicted: Floats = np.eye(logits.shape[1])[logits.argmax(axis=1)]
    return predicted


def confusion_by_class(predicted: Floats, y: Labels) -> Floats:
    """C[i, j] = E[predicted i | class j]; a class without an image is taken to be recognised. (n,
    c), (n,) → (c, c)"""
    c = predicted.shape[1]
    labels = np.eye(c)[y]
    counts = labels.sum(axis=0)
    return np.where(counts > 0, predicted.T @ labels / np.maximum(counts, 1), np.eye(c))


def simplex_prior(confusion: Floats, predicted: Floats) -> Floats:
    """argmin over the simplex of ‖μ − C q‖², μ the mean prediction on the target. (c, c), (c,) →
    (c,)

    Non-negative least squares, with the sum as one more equation that outweighs the others.
    """
    from scipy.optimize import nnls

    heavy = 1e4
    c = len(predicted)
    rows = np.vstack([confusion, np.full((1, c), heavy)])
    q: Floats
    q, _ = nnls(rows, np.append(predicted, heavy), maxiter=100 * c)
    prior: Floats = q / q.sum()
    return prior


def ridge_prior(confusion: Floats, predicted: Floats, prior: Floats, images: int) -> Floats:
    """The published form: w = (JᵀJ + λI)⁻¹Jᵀμ with the joint J[i, j] = C[i, j]·p_j and λ =
    1/images; then w·p, made to sum to one.

    It shrinks rare classes far too much under strong label shift. (c, c), (c,), (c,) → (c,)
    """
    joint = confusion * prior
    ratio = np.linalg.solve(joint.T @ joint + np.eye(len(prior)) / images, joint.T @ predicted)
    q: Floats = np.maximum(ratio, 0) * prior
    return q / q.sum() if q.sum() > 0 else prior


# --- from calibrated posteriors ---


def em_prior(
    posterior: Floats, prior: Floats, weights: Floats | None = None, close: float = 1e-6
) -> Floats:
    """The prior of greatest likelihood: q ← mean of q_k r_ik / Σ_j q_j r_ij, r = posterior/prior,
    until it converges.

    (n, c), (c,) → (c,); `weights` of the images sum to one.
    """
    ratio = posterior / prior
    share = np.full(len(ratio), 1 / len(ratio)) if weights is None else weights
    q = prior
    for _ in range(1000):
        before, q = q, q * ((share / (ratio @ q)) @ ratio)
        if np.abs(q - before).max() < close:
            break
    found: Floats = q / q.sum()
    return found


def _em_bootstrap(
    outputs: DomainOutputs, resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """EM, and EM of resampled images with the calibration fitted to them again. (c,), (resamples,
    c)"""
    fit = CalibrationFit.of(outputs)
    prior = em_prior(fit.calibration.posterior(outputs.target), fit.calibration.prior)
    n, draws = len(outputs.target), np.empty((resamples, outputs.classes))
    for i in range(resamples):
        calibration = fit.refit(_draw_counts(outputs.source_val_y, rng))
        weights = np.bincount(rng.integers(n, size=n), minlength=n) / n
        draws[i] = em_prior(
            calibration.posterior(outputs.target), calibration.prior, weights, close=1e-5
        )
    return prior, draws


def _draw_counts(y: Labels, rng: np.random.Generator) -> Labels:
    """How often each image is drawn when its class is drawn again with replacement. (n,)"""
    counts = np.zeros(len(y), dtype=np.int64)
    for rows in (np.flatnonzero(y == k) for k in np.unique(y)):
        np.add.at(counts, rows[rng.integers(len(rows), size=len(rows))], 1)
    return counts


# --- shares as they are reported ---


@dataclass(frozen=True, eq=False, kw_only=True)
class TargetShares:
    """The share of each class in the target, with 95 % intervals (docs/trust.md)."""

    estimator: PriorEstimator | Literal["counting"]
    prior: Floats
    """(c,)"""
    low: Floats
    high: Floats
    unsure: bool = False
    """Whether shares are arbitrary: the network cannot tell some classes apart, or too few source
    images are held out."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "estimator": self.estimator,
            "shares": self.prior.tolist(),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "unsure": self.unsure,
        }


FEW_HELD_OUT = 5
"""Held-out source images per class, on average, below which a confusion matrix is chance."""


def rests_on_few(outputs: DomainOutputs) -> bool:
    """Tell whether too few source images are held out to estimate the target's class shares."""
    return len(outputs.source_val_y) < FEW_HELD_OUT * outputs.classes


def target_shares(
    outputs: DomainOutputs,
    others: Sequence[DomainOutputs],
    estimate: PriorEstimate,
    alike: bool,
    few: bool = False,
) -> TargetShares:
    """The shares by a network, beside all others that were trained, and its estimate under label
    shift alone.

    Where images of a class look `alike` in both domains, that estimate is shown: what the network
    confuses in the source, it confuses in the target. Elsewhere it does not, and to correct for it
    does harm: the share of target images that the network predicts a class for is closer to the
    truth on all development tasks. Intervals span what is wrong either way: from the share on which
    all networks agree to the share that any of them predicts, by Wilson's lower and upper end,
    since all may err alike; and the interval of the estimate under label shift alone.

    Where `few` images are held out, predictions are counted too, and the shares are unsure.
    """
    predicted = np.stack(
        [one.target_uniform.argmax(axis=1) for one in (*others, outputs)]
    )  # (networks, n_t)
    says = predicted[..., None] == np.arange(outputs.classes)
    agreed, any_says = says.all(axis=0).mean(axis=0), says.any(axis=0).mean(axis=0)
    n, counted = predicted.shape[1], says[-1].mean(axis=0)
    low = np.minimum(wilson(agreed, n)[0], estimate.low)
    high = np.maximum(wilson(any_says, n)[1], estimate.high)
    if alike and not few:
        return TargetShares(
            estimator=estimate.estimator,
            prior=estimate.prior,
            low=low,
            high=high,
            unsure=estimate.unsure,
        )
    return TargetShares(estimator="counting", prior=counted, low=low, high=high, unsure=few)


# --- scores under the estimated prior ---


def score_under_estimated_prior(
    test: TestLabels,
    logits: Tensor,
    source_val: Tensor,
    source_val_y: Tensor,
    target: Tensor,
    training_prior: Tensor,
) -> dict[str, Any]:
    """Score a network whose logits are adjusted to BBSE's estimate of the target prior.

    The prior is estimated from the logits of the held-out source and of the training target.
    """
    trained_on = as_floats(training_prior)
    rates = PredictionRates.of(source_val, source_val_y, target)
    prior = rates.bbse()
    scores = score_test(test, adjust_logits(as_floats(logits), prior, trained_on))
    record = {"target_shares": prior.tolist(), "training_shares": trained_on.tolist()}
    return record | {"unsure": rates.unsure, "scores": scores}
