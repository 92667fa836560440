"""The target's class prior by three estimators, with intervals.

BBSE (Lipton et al. 2018), RLLS (Azizzadenesheli et al. 2019) and EM (Saerens et al. 2002) on
calibrated posteriors (Alexandari et al. 2020). All assume label shift alone, p(x|y) = q(x|y); where
that fails they guess.

quapy (0.2.3) has all three, and ours agree with its: BBSE to 3e-6, EM to 4e-4 on 2,000 and 10,000
images. But it wraps classifiers that it fits itself, takes calibration from a library of 2020 in
which the bias of a class with hardly a held-out image diverges, and brings six more dependencies
and a cone solver.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from askew.evaluation.calibration import CalibrationFit
from askew.evaluation.logits import Floats, Labels, as_floats, as_labels, softmax
from askew.evaluation.outputs import DomainOutputs

PriorEstimator = Literal["bbse", "rlls", "em"]
ESTIMATORS: tuple[PriorEstimator, ...] = ("bbse", "rlls", "em")
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
    """The target's class prior by one estimator, with a bootstrap of held-out source (class by
    class) and target."""
    rng = np.random.default_rng(seed)
    rates = PredictionRates.of(outputs.source_val, outputs.source_val_y, outputs.target)
    if estimator == "em":
        prior, draws = _em_bootstrap(outputs, resamples, rng)
    else:
        solve = PredictionRates.bbse if estimator == "bbse" else PredictionRates.rlls
        prior = solve(rates)
        draws = np.array([solve(again) for again in rates.resampled(resamples, rng)]).reshape(
            -1, outputs.classes
        )
    return PriorEstimate(estimator, prior, draws, rates.unsure)


def estimate_priors(
    outputs: DomainOutputs, *, resamples: int = 200, seed: int = 0
) -> dict[PriorEstimator, PriorEstimate]:
    """The same by every estimator."""
    return {
        name: estimate_prior(outputs, name, resamples=resamples, seed=seed) for name in ESTIMATORS
    }


def target_prior(outputs: DomainOutputs, estimator: PriorEstimator = DEFAULT) -> Floats:
    """The estimate without an interval. (c,)"""
    return estimate_prior(outputs, estimator, resamples=0).prior


def consensus_prior(networks: Sequence[DomainOutputs]) -> Floats:
    """The median of several networks' estimates for one target, which one collapsed network does
    not move. (c,)"""
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

    def rlls(self) -> Floats:
        return rlls_prior(self.confusion, self.target, self.source_prior, int(self.sizes.sum()))

    def resampled(self, resamples: int, rng: np.random.Generator) -> list[PredictionRates]:
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


RLLS_SHARE, RLLS_DELTA = 0.01, 0.05
"""The share of its bound, and the probability that the bound fails, that RLLS was published
with."""


def rlls_prior(confusion: Floats, predicted: Floats, prior: Floats, images: int) -> Floats:
    """argmin over w ≥ 0 of ‖J w − μ‖ + ρ‖w − 1‖ with the joint J[i, j] = C[i, j]·p_j; then w·p,
    summing to one.

    ρ = 0.01·3(2a/3n + √(2a/n)), a = log(2c/δ): a share of how far J may be from the truth with n
    images. Each norm is bounded by a parabola that touches it at the current w (‖r‖ ≤ ‖r‖²/2s +
    s/2), which leaves non-negative least squares. (c, c), (c,), (c,) → (c,)
    """
    from scipy.optimize import nnls

    c = len(prior)
    a = np.log(2 * c / RLLS_DELTA) / images
    rho = RLLS_SHARE * 3 * (2 * a / 3 + np.sqrt(2 * a))
    joint = confusion * prior
    ridge, w = rho, np.ones(c)
    for _ in range(30):
        rows = np.vstack([joint, np.sqrt(ridge) * np.eye(c)])
        w, _ = nnls(rows, np.append(predicted, np.full(c, np.sqrt(ridge))), maxiter=100 * c)
        moved = np.linalg.norm(w - 1)
        if moved < 1e-9:
            break
        before, ridge = ridge, max(1e-9, rho * float(np.linalg.norm(joint @ w - predicted) / moved))
        if abs(before - ridge) <= 1e-3 * before:
            break
    q: Floats = w * prior
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
        calibration = fit.resampled(_draw_counts(outputs.source_val_y, rng))
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
