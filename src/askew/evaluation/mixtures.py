"""The target's class mix by three estimators, with intervals.

BBSE (Lipton et al. 2018), RLLS (Azizzadenesheli et al. 2019) and EM (Saerens et al. 2002) on posteriors that were
calibrated by one temperature and a bias a class (Alexandari et al. 2020). All assume label shift, p(x|y) = q(x|y).

quapy (0.2.3) carries all three, and ours agree with its: BBSE to 3e-6, EM to 4e-4 on 2,000 and 10,000 images. But it
wraps classifiers that it fits itself, takes calibration from a library of 2020 that lets a class with hardly a held-out
image run away, and brings six more dependencies and a cone solver; of logits that are there already, this is a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.outputs import DomainOutputs, Floats, Labels, softmax
from askew.evaluation.priors import SINGULAR, confusion_by_class, simplex_prior

PriorEstimator = Literal["bbse", "rlls", "em"]
ESTIMATORS: tuple[PriorEstimator, ...] = ("bbse", "rlls", "em")
DEFAULT: PriorEstimator = "bbse"
"""EM is the sharper one under label shift alone; on the development tasks, where images look different too, it believes
posteriors that are too sure, and errs more."""
LEVEL = 0.95
"""Of the intervals."""


@dataclass(frozen=True, eq=False)
class PriorEstimate:
    """A target mix and how far it may be off, if label shift is all that there is."""

    estimator: PriorEstimator
    mix: Floats
    """(c,)"""
    draws: Floats
    """The estimate again, from images drawn again. (resamples, c)"""
    unsure: bool
    """Whether the classifier cannot tell some classes apart, so that they may have been divided in any way."""

    @property
    def low(self) -> Floats:
        low: Floats = np.quantile(self.draws, (1 - LEVEL) / 2, axis=0)
        return low

    @property
    def high(self) -> Floats:
        high: Floats = np.quantile(self.draws, (1 + LEVEL) / 2, axis=0)
        return high

    def as_dict(self) -> dict[str, Any]:
        ends = {"low": self.low.tolist(), "high": self.high.tolist()}
        return {"estimator": self.estimator, "mix": self.mix.tolist(), **ends, "unsure": self.unsure}


def estimate_prior(
    said: DomainOutputs, estimator: PriorEstimator = DEFAULT, *, resamples: int = 200, seed: int = 0
) -> PriorEstimate:
    """The target's class mix by one estimator, with a bootstrap of held-out source (class by class) and target."""
    rng = np.random.default_rng(seed)
    hard = _Hard.of(said)
    if estimator == "em":
        mix, draws = _em_draws(said, resamples, rng)
    else:
        solve = simplex_prior if estimator == "bbse" else hard.rlls
        mix = solve(hard.confusion, hard.said)
        draws = np.array([solve(*again) for again in hard.again(resamples, rng)]).reshape(-1, said.classes)
    return PriorEstimate(estimator, mix, draws, hard.unsure)


def estimate_priors(said: DomainOutputs, *, resamples: int = 200, seed: int = 0) -> dict[PriorEstimator, PriorEstimate]:
    """The same by every estimator."""
    return {name: estimate_prior(said, name, resamples=resamples, seed=seed) for name in ESTIMATORS}


def target_prior_of(said: DomainOutputs, estimator: PriorEstimator = DEFAULT) -> Floats:
    """The estimate alone. (c,)"""
    return estimate_prior(said, estimator, resamples=0).mix


def consensus_prior(saids: Sequence[DomainOutputs], estimator: PriorEstimator = DEFAULT) -> Floats:
    """The median of what several networks estimate for one target, so that one that collapsed does not rule. (c,)"""
    median = np.median([target_prior_of(said, estimator) for said in saids], axis=0)
    mix: Floats = median / median.sum()
    return mix


# --- from the classes that were said first ---


def predicted_distribution(said: DomainOutputs) -> tuple[Floats, Floats]:
    """C[i, j]: how often class i was said of held-out class j, and μ: how often of the target. (c, c), (c,)"""
    own = np.eye(said.classes)
    confusion = confusion_by_class(own[said.source_val.argmax(axis=1)], said.source_val_y)
    return confusion, own[said.target.argmax(axis=1)].mean(axis=0)


@dataclass(frozen=True, eq=False)
class _Hard:
    """How often each class was said: of each held-out class, and of the target."""

    confusion: Floats
    said: Floats
    sizes: Labels
    images: int

    @classmethod
    def of(cls, said: DomainOutputs) -> _Hard:
        return cls(*predicted_distribution(said), said.source_sizes, len(said.target))

    @property
    def unsure(self) -> bool:
        return bool(np.linalg.svd(self.confusion, compute_uv=False)[-1] < SINGULAR)

    def rlls(self, confusion: Floats, said: Floats) -> Floats:
        held_out = int(self.sizes.sum())
        return rlls_prior(confusion, said, self.sizes / held_out, held_out)

    def again(self, resamples: int, rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
        """Drawing images again with replacement is a multinomial draw of what was said of them."""
        counts = rng.multinomial(self.sizes, self.confusion.T, size=(resamples, len(self.sizes)))
        columns = np.where(self.sizes[:, None] > 0, counts / np.maximum(self.sizes, 1)[:, None], self.confusion.T)
        said = rng.multinomial(self.images, self.said, size=resamples) / self.images
        return [(column.T, mean) for column, mean in zip(columns, said, strict=True)]


RLLS_SHARE, RLLS_DELTA = 0.01, 0.05
"""The share of its bound, and the probability that the bound fails, that RLLS was published with."""


def rlls_prior(confusion: Floats, said: Floats, mix: Floats, images: int) -> Floats:
    """argmin over w ≥ 0 of ‖J w − μ‖ + ρ‖w − 1‖ with the joint J[i, j] = C[i, j]·mix_j; then w·mix, summing to one.

    ρ = 0.01·3(2a/3n + √(2a/n)), a = log(2c/δ): a share of how far J may be from the truth with n images. Each norm is
    bounded by a parabola that touches it where we are (‖r‖ ≤ ‖r‖²/2s + s/2), which leaves non-negative least squares.
    (c, c), (c,), (c,) → (c,)
    """
    from scipy.optimize import nnls

    c = len(mix)
    a = np.log(2 * c / RLLS_DELTA) / images
    rho = RLLS_SHARE * 3 * (2 * a / 3 + np.sqrt(2 * a))
    joint = confusion * mix
    ridge, w = rho, np.ones(c)
    for _ in range(30):
        rows = np.vstack([joint, np.sqrt(ridge) * np.eye(c)])
        w, _ = nnls(rows, np.append(said, np.full(c, np.sqrt(ridge))), maxiter=100 * c)
        moved = np.linalg.norm(w - 1)
        if moved < 1e-9:
            break
        before, ridge = ridge, max(1e-9, rho * float(np.linalg.norm(joint @ w - said) / moved))
        if abs(before - ridge) <= 1e-3 * before:
            break
    q: Floats = w * mix
    return q / q.sum() if q.sum() > 0 else mix


# --- from calibrated posteriors ---


@dataclass(frozen=True, eq=False)
class Calibration:
    """softmax(scale·z + bias): what the network should have said under the held-out source's own mix."""

    scale: float
    """One over the temperature."""
    bias: Floats
    mix: Floats
    """The mix that the posterior is for: its mean over the held-out source. (c,)"""

    def posterior(self, logits: Floats, mix: Floats | None = None) -> Floats:
        """For the held-out source's mix, or for another by Bayes' rule. (n, c) → (n, c)"""
        turn = 0.0 if mix is None else np.log(_present(mix) / self.mix)
        return softmax(self.scale * logits + self.bias + turn)


def calibrate(said: DomainOutputs) -> Calibration:
    """Bias-corrected temperature scaling (Alexandari et al. 2020), by the held-out source's likelihood.

    The sampler and the method decide which mix a network was trained for; the bias begins at log(source/seen), and a
    unit normal on what is added to it, and on log scale, keeps classes with hardly an image where they are.
    """
    theta = _fit(said)[0]
    return _calibration(said, theta)


def _present(mix: Floats) -> Floats:
    """A class that is not there keeps a thousandth of an even share, so that it can be found elsewhere. (c,) → (c,)"""
    return np.maximum(mix, 1e-3 / len(mix))


def _start(said: DomainOutputs) -> Floats:
    """log(source/seen); a class without an image counts half of one."""
    c = said.classes
    smooth = (said.source_sizes + 0.5) / (len(said.source_val_y) + c / 2)
    start: Floats = np.log(smooth / _present(said.training_prior))
    return start


def _calibration(said: DomainOutputs, theta: Floats) -> Calibration:
    scale, bias = float(np.exp(theta[0])), _start(said) + theta[1:]
    return Calibration(scale, bias, _present(softmax(scale * said.source_val + bias).mean(axis=0)))


def _fit(said: DomainOutputs) -> tuple[Floats, Floats, Floats]:
    """θ = (log scale, bias beyond the start), each image's gradient there, and the curvature. (1+c,), (n, 1+c), ²"""
    from scipy.optimize import minimize

    z = said.source_val - said.source_val.mean(axis=1, keepdims=True)  # a logit's offset says nothing
    start, own = _start(said), np.eye(said.classes)[said.source_val_y]

    def gradients(theta: Floats) -> tuple[Floats, Floats]:
        p = softmax(np.exp(theta[0]) * z + start + theta[1:])
        off = p - own
        each: Floats = np.column_stack([np.exp(theta[0]) * (off * z).sum(axis=1), off])
        return p, each

    def loss(theta: Floats) -> tuple[float, Floats]:
        p, each = gradients(theta)
        likelihood = np.log(np.maximum((p * own).sum(axis=1), 1e-300)).sum()
        return float(theta @ theta / 2 - likelihood), each.sum(axis=0) + theta

    theta: Floats = minimize(loss, np.zeros(1 + said.classes), jac=True, method="L-BFGS-B").x
    p, each = gradients(theta)
    tilt = np.exp(theta[0]) * (z - (p * z).sum(axis=1, keepdims=True))  # ∂ of each log-odds by log scale, centred
    mixed = (p * tilt).sum(axis=0)
    curve = np.block(
        [[np.array([[(p * tilt**2).sum()]]), mixed[None]], [mixed[:, None], np.diag(p.sum(axis=0)) - p.T @ p]]
    )
    return theta, each, curve + np.eye(len(theta))


def em_prior(posterior: Floats, mix: Floats, weights: Floats | None = None, close: float = 1e-6) -> Floats:
    """The mix of greatest likelihood: q ← mean of q_k r_ik / Σ_j q_j r_ij with r = posterior/mix, until it stands.

    (n, c), (c,) → (c,); `weights` of the images sum to one.
    """
    ratio = posterior / mix
    share = np.full(len(ratio), 1 / len(ratio)) if weights is None else weights
    q = mix
    for _ in range(1000):
        before, q = q, q * ((share / (ratio @ q)) @ ratio)
        if np.abs(q - before).max() < close:
            break
    found: Floats = q / q.sum()
    return found


def _em_draws(said: DomainOutputs, resamples: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """EM, and EM of images drawn again; the calibration is drawn again by one Newton step from where it is."""
    theta, each, curve = _fit(said)
    fitted = _calibration(said, theta)
    mix = em_prior(fitted.posterior(said.target), fitted.mix)
    n, draws = len(said.target), np.empty((resamples, said.classes))
    for i in range(resamples):
        counts = _again(said.source_val_y, rng)
        moved = theta - np.linalg.solve(curve, counts @ each + theta)
        scale, bias = np.exp(moved[0]), _start(said) + moved[1:]
        own = _present(counts @ softmax(scale * said.source_val + bias) / counts.sum())
        weights = np.bincount(rng.integers(n, size=n), minlength=n) / n
        draws[i] = em_prior(softmax(scale * said.target + bias), own, weights, close=1e-5)
    return mix, draws


def _again(y: Labels, rng: np.random.Generator) -> Labels:
    """How often each image is drawn when its class is drawn again with replacement. (n,)"""
    counts = np.zeros(len(y), dtype=np.int64)
    for rows in (np.flatnonzero(y == k) for k in np.unique(y)):
        np.add.at(counts, rows[rng.integers(len(rows), size=len(rows))], 1)
    return counts
