"""Calibrated posteriors: bias-corrected temperature scaling on held-out source images (Alexandari
et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.evaluation.outputs import (
    DomainOutputs,
    Floats,
    Labels,
    adjust_logits,
    floor_prior,
    prior_bias,
    softmax,
)

SUREST, SOFTEST = 0.1, 100.0
"""Bounds of the search for a temperature."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """softmax(scale·z + bias): a posterior under the held-out source's own label distribution."""

    scale: float
    """One over the temperature."""
    bias: Floats
    """(c,)"""
    prior: Floats
    """The prior that the posterior assumes: its mean over the held-out source. (c,)"""

    def posterior(self, logits: Floats, prior: Floats | None = None) -> Floats:
        """Under the held-out source's label distribution, or under another by Bayes' rule. (n, c) →
        (n, c)"""
        z = self.scale * logits + self.bias
        return softmax(z if prior is None else adjust_logits(z, prior, self.prior))


def temperature(outputs: DomainOutputs) -> float:
    """The temperature T of greatest likelihood on the held-out source, with Platt's targets.

    Of r right predictions, the labels count (r + 1)/(r + 2) and the other classes share the rest,
    so that T cannot run to 0 where all are right (J. Platt, Probabilistic outputs for support
    vector machines, 1999).
    """
    from scipy.optimize import minimize_scalar

    z, y = outputs.source_val, outputs.source_val_y
    right = int((z.argmax(axis=1) == y).sum())
    sure = (right + 1) / (right + 2)
    target = np.full(z.shape, (1 - sure) / max(1, outputs.classes - 1))
    target[np.arange(len(y)), y] = sure

    def loss(log_t: float) -> float:
        return float(-(target * np.log(np.maximum(softmax(z / np.exp(log_t)), 1e-300))).sum())

    return float(np.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded").x))


def temperature_for(logits: Floats, accuracy: float) -> float:
    """Find the temperature at which the mean confidence equals this accuracy. (n, c)

    A temperature changes no predicted class.
    """
    from scipy.optimize import brentq

    def excess(t: float) -> float:
        return float(softmax(logits / t).max(axis=1).mean()) - accuracy

    if excess(SUREST) <= 0:
        return SUREST
    return SOFTEST if excess(SOFTEST) >= 0 else float(brentq(excess, SUREST, SOFTEST))


def at_temperature(outputs: DomainOutputs, temperature: float) -> DomainOutputs:
    """Divide a network's logits by T, which changes no predicted class.

    The logits are first adjusted to a uniform prior; else T would also weaken the training prior.
    """
    uniform = np.full(outputs.classes, 1 / outputs.classes)
    val, target = (
        adjust_logits(z, uniform, outputs.training_prior)
        for z in (outputs.source_val, outputs.target)
    )
    return replace(
        outputs, source_val=val / temperature, target=target / temperature, training_prior=uniform
    )


def impose_prior(logits: Floats, prior: Floats | None) -> tuple[Floats, Floats]:
    """Shift logits to the known prior of these images, with a bias that gives classes these shares.

    `logits` are calibrated, under a uniform prior. Without a known prior they are unchanged, and
    the bias is zero.

    Returns:
        The shifted logits, (n, c), and the bias in them, (c,).
    """
    c = logits.shape[1]
    if prior is None:
        return logits, np.zeros(c)
    under = adjust_logits(logits, prior, np.full(c, 1 / c))
    bias = prior_bias(under, prior)
    return under + bias, bias


def mean_outputs(
    networks: Sequence[DomainOutputs], weights: Sequence[float] | None = None
) -> DomainOutputs:
    """Average the calibrated logits of networks for the same images, under a uniform prior."""
    calibrated = [at_temperature(outputs, temperature(outputs)) for outputs in networks]
    val = np.average([outputs.source_val for outputs in calibrated], axis=0, weights=weights)
    target = np.average([outputs.target for outputs in calibrated], axis=0, weights=weights)
    return replace(calibrated[0], source_val=val, target=target)


def calibrate(outputs: DomainOutputs) -> Calibration:
    """The calibration of greatest likelihood on the held-out source."""
    return CalibrationFit.of(outputs).calibration


@dataclass(frozen=True, eq=False, kw_only=True)
class CalibrationFit:
    """A fitted calibration, with the derivatives that fit it again to resampled images.

    Parameters θ = (log scale, bias beyond its start) maximise the likelihood times a unit normal,
    which keeps classes with hardly an image where they are. Sampler and method decide which prior a
    network was trained for, so the bias starts at log(source prior/training prior).
    """

    logits: Floats
    """Of the held-out source. (n, c)"""
    start: Floats
    """Where the bias starts. (c,)"""
    theta: Floats
    """(1 + c,)"""
    gradients: Floats
    """Each image's gradient of the negative log-likelihood at θ. (n, 1 + c)"""
    curvature: Floats
    """Second derivatives of what is minimised, at θ. (1 + c, 1 + c)"""

    @classmethod
    def of(cls, outputs: DomainOutputs) -> CalibrationFit:
        from scipy.optimize import minimize

        z = outputs.source_val - outputs.source_val.mean(
            axis=1, keepdims=True
        )  # an offset changes no posterior
        start, one_hot = _initial_bias(outputs), np.eye(outputs.classes)[outputs.source_val_y]

        def loss(theta: Floats) -> tuple[float, Floats]:
            p, gradients = _gradients(theta, z, start, one_hot)
            likelihood = np.log(np.maximum((p * one_hot).sum(axis=1), 1e-300)).sum()
            return float(theta @ theta / 2 - likelihood), gradients.sum(axis=0) + theta

        theta: Floats = minimize(loss, np.zeros(1 + outputs.classes), jac=True, method="L-BFGS-B").x
        p, gradients = _gradients(theta, z, start, one_hot)
        return cls(
            logits=outputs.source_val,
            start=start,
            theta=theta,
            gradients=gradients,
            curvature=_curvature(theta, z, p),
        )

    @property
    def calibration(self) -> Calibration:
        return self._calibration_at(self.theta, np.ones(len(self.logits), dtype=np.int64))

    def refit(self, counts: Labels) -> Calibration:
        """Fit again with each image counted so often, by one Newton step from θ. (n,)"""
        moved = self.theta - np.linalg.solve(self.curvature, counts @ self.gradients + self.theta)
        return self._calibration_at(moved, counts)

    def _calibration_at(self, theta: Floats, counts: Labels) -> Calibration:
        scale, bias = float(np.exp(theta[0])), self.start + theta[1:]
        return Calibration(
            scale, bias, floor_prior(counts @ softmax(scale * self.logits + bias) / counts.sum())
        )


def _initial_bias(outputs: DomainOutputs) -> Floats:
    """log(source prior/training prior), where a class without a held-out image counts half of one.
    (c,)"""
    c = outputs.classes
    smoothed = (outputs.source_sizes.astype(np.float64) + 0.5) / (len(outputs.source_val_y) + c / 2)
    return adjust_logits(np.zeros(c), smoothed, outputs.training_prior)


def _gradients(theta: Floats, z: Floats, start: Floats, one_hot: Floats) -> tuple[Floats, Floats]:
    """Posterior, and each image's gradient of the negative log-likelihood. (n, c), (n, 1 + c)"""
    scale = np.exp(theta[0])
    p = softmax(scale * z + start + theta[1:])
    error = p - one_hot
    return p, np.column_stack([scale * (error * z).sum(axis=1), error])


def _curvature(theta: Floats, z: Floats, p: Floats) -> Floats:
    """Fisher information of all images, plus the unit normal's identity. (1 + c, 1 + c)"""
    slope = np.exp(theta[0]) * (
        z - (p * z).sum(axis=1, keepdims=True)
    )  # ∂ of each centred log-odds by log scale
    mixed = (p * slope).sum(axis=0)
    of_scale = np.array([[(p * slope**2).sum()]])
    of_bias = np.diag(p.sum(axis=0)) - p.T @ p
    return np.block([[of_scale, mixed[None]], [mixed[:, None], of_bias]]) + np.eye(len(theta))
