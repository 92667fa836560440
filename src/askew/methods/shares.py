"""Gaussian classes that move to the target with estimated class shares, beside logistic regression.

Two strengths of the anchor and a regression that never moves fail for different reasons; how much
each counts is told by held-out source rows, and by source rows that are moved as the target was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit
from askew.methods.lda import principal_components
from askew.methods.logistic import (
    Floats,
    Standardise,
    best_temperature,
    fit_logistic,
    folds_by_class,
    softmax_rows,
)

Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ShareAware(ClosedForm):
    """The class means, one offset, the covariance and the class shares move to the target by EM.

    Assumes: in either domain rows are Gaussian around their class's mean, with one covariance; the
        means move together by an offset o, and each a little by itself. Class shares may differ as
        they will. Where the rows deny this, logistic regression on the source counts more.
    Minimises: nothing by gradients; EM with r_ik ∝ π_k N(g_i; μ_k, Σ + s·tr(Σ)/d·I) and
        n_k = Σ_i r_ik:  π_k = (n_k + 1)/(n + c),  o = Σ_k n_k (ḡ_k − μ⁰_k)/n,
        μ_k = (n_k ḡ_k + a (μ⁰_k + o))/(n_k + a),  Σ = (Σ_s + Σ_t)/2,
        for each of two anchors a; g = f less the source's centre, and in the source
        μ⁰_k = n_k/(n_k + b)·(m_k − centre).
        The head is the weighted mean of these linear heads and of logistic regression's, each
        calibrated by cross-validation on the source; equal shares at the decision.
    Cites: A. Dempster, N. Laird, D. Rubin, Maximum likelihood from incomplete data via the EM
        algorithm, JRSS B 1977; M. Saerens, P. Latinne, C. Decaestecker, Adjusting the outputs of a
        classifier to new a priori probabilities, Neural Computation 2002; D. Wolpert, Stacked
        generalization, Neural Networks 1992.
    Use when: tables and embeddings, few classes, and class shares that may differ strongly.
    """

    id = "shares"
    calibrated = True

    anchor: Annotated[float, Between(0), Search(1, 100, log=True)] = 20.0
    """Rows a that a moved source mean counts for beside those of the target."""
    firm_anchor: Annotated[float, Between(0), Search(20, 1000, log=True)] = 80.0
    """Likewise, for the second of two moved heads."""
    shrinkage: Annotated[float, Between(0.001, 100), Search(0.03, 3, log=True)] = 0.3
    """Weight s of the mean variance, added to every component's."""
    few: Annotated[float, Between(0), Search(0.5, 20, log=True)] = 5.0
    """Rows b that draw a class's mean in the source to the centre of all."""
    steps: Annotated[int, Between(1, 1000)] = 30
    """How often posteriors, shares and means are computed."""
    tolerance: Annotated[float, Between(0.01), Search(1, 20, log=True)] = 5.0
    """Points of accuracy on moved source rows that make a head count 1/e as much."""
    components: Annotated[int, Between(1, 4096)] = 256
    """Most principal components that are kept."""

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        """Fit by EM and stacking. (n_s, d), (n_s,), (n_t, d)"""
        found = self.stack(fs, ys, ft, classes)
        # A source row lies beside its class's mean, which has moved by the offset.
        return LinearFit(found.weight, found.bias, -found.offset, torch.zeros_like(found.offset))

    def stack(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> Stacked:
        """Do the same, and tell the class shares and how much each head counts."""
        s, t, y = fs.cpu().double().numpy(), ft.cpu().double().numpy(), ys.cpu().numpy()
        scale = Standardise.of(s)
        s, t = scale(s), scale(t)
        basis = _basis(s, y, t, classes, self.components)
        s, t = s @ basis, t @ basis
        source = Moments.of(s, y, classes, self.few)
        moved = [self._move(source, t, anchor) for anchor in (self.anchor, self.firm_anchor)]
        regression = fit_logistic(s, y, classes)
        votes, temperatures = self._votes(s, y, classes, moved)
        heads = [(one.weight, one.bias) for one in moved] + [regression]
        counts = votes / temperatures
        weight = sum(v * w for v, (w, _) in zip(counts, heads, strict=True)) @ basis.T
        bias = np.asarray(sum(v * b for v, (_, b) in zip(counts, heads, strict=True)))
        calibrated = (regression[0] / temperatures[-1], regression[1] / temperatures[-1])
        shares = _shares(t, moved, calibrated, votes)
        offset = sum(v * one.offset for v, one in zip(votes, moved, strict=False)) @ basis.T
        plain_weight, plain_bias = scale.unfold(weight, bias)
        return Stacked(
            plain_weight,
            plain_bias,
            torch.from_numpy(shares),
            torch.from_numpy(offset * scale.sd),
            torch.from_numpy(votes),
            torch.from_numpy(temperatures),
        )

    def _move(self, source: Moments, t: Floats, anchor: float) -> Moved:
        """Move the source's Gaussians to the target by EM."""
        c, n, g = len(source.means), len(t), t - source.centre
        offset, within, shares = g.mean(axis=0), source.within, np.full(len(source.means), 1 / c)
        mu, second = source.means + offset, g.T @ g
        for _ in range(self.steps):
            weight, bias = gaussian_head(mu, within, source.centre, self.shrinkage)
            r = softmax_rows(t @ weight.T + bias + np.log(shares))
            size = r.sum(axis=0)[:, None]
            found = r.T @ g / np.maximum(size, 1e-9)
            shares = (size[:, 0] + 1) / (n + c)
            offset = (size * (found - source.means)).sum(axis=0) / n
            mu = (size * found + anchor * (source.means + offset)) / (size + anchor)
            cross = (mu * size).T @ found
            scatter = second - cross - cross.T + (mu * size).T @ mu
            within = (source.within + scatter / n) / 2
        head = gaussian_head(mu, within, source.centre, self.shrinkage)
        return Moved(*head, shares, offset)

    def _votes(
        self, s: Floats, y: Labels, classes: int, moved: list[Moved]
    ) -> tuple[Floats, Floats]:
        """Say how much each moved head counts, and last how much logistic regression does; and
        what each is divided by for calibrated probabilities.

        The two families share by the likelihood of held-out source rows. A moved head counts less
        if it fails on source rows that are moved by its offset: then its Gaussians did not move to
        where the classes are.
        """
        (gaussian, regression), (soft, softer), held_out = self._families(s, y, classes)
        back = np.array([_accuracy(y, s + one.offset, one, classes) for one in moved])
        best = back.max()
        fits = np.exp((back - max(best, held_out)) / self.tolerance)
        fits *= gaussian / np.exp((back - best) / self.tolerance).sum()
        votes = np.r_[fits, regression]
        return votes / votes.sum(), np.array([soft] * len(moved) + [softer])

    def _families(self, s: Floats, y: Labels, classes: int) -> tuple[Floats, list[float], float]:
        """Stack Gaussians and logistic regression on held-out source rows.

        Gives the share and the temperature of each, and the regression's held-out accuracy per
        class in points.
        """
        sizes = np.bincount(y, minlength=classes)
        weight = 1 / sizes[y] / (sizes > 0).sum()
        logits = np.zeros((2, len(y), classes))
        for train, test in folds_by_class(y):
            source = Moments.of(s[train], y[train], classes, self.few)
            heads = (
                gaussian_head(source.means, source.within, source.centre, self.shrinkage),
                fit_logistic(s[train], y[train], classes),
            )
            for k, (w, b) in enumerate(heads):
                logits[k, test] = s[test] @ w.T + b
        rows = np.arange(len(y))
        temperatures = [best_temperature(z, y, weight) for z in logits]
        both = zip(logits, temperatures, strict=True)
        right = [softmax_rows(z / t)[rows, y] + 1e-9 for z, t in both]
        p, share = np.stack(right, axis=1), np.full(2, 0.5)
        for _ in range(100):
            q = p * share
            share = (weight[:, None] * q / q.sum(axis=1, keepdims=True)).sum(axis=0)
            share = share / share.sum()
        by_class = [np.mean(logits[1].argmax(axis=1)[y == k] == k) for k in np.unique(y)]
        return share, temperatures, 100 * float(np.mean(by_class))


class Stacked(NamedTuple):
    """A stacked head on plain rows."""

    weight: Tensor
    """(c, d)"""
    bias: Tensor
    """(c,)"""
    shares: Tensor
    """The target's estimated class shares. (c,)"""
    offset: Tensor
    """How far the class means moved together. (d,)"""
    votes: Tensor
    """How much each head counts: a moved one for each anchor, and logistic regression."""
    temperatures: Tensor
    """What each head's logits are divided by."""


class Moved(NamedTuple):
    """Gaussians that moved to the target, as a head."""

    weight: Floats
    bias: Floats
    shares: Floats
    offset: Floats


class Moments(NamedTuple):
    """What EM needs to know of the source."""

    centre: Floats
    """The mean of the class means. (d,)"""
    means: Floats
    """Class means less the centre; those of few rows are drawn to it. (c, d)"""
    within: Floats
    """Pooled covariance within classes, every class counting alike. (d, d)"""

    @classmethod
    def of(cls, s: Floats, y: Labels, classes: int, few: float) -> Moments:
        """Compute them; a class without rows has the centre for its mean."""
        n = np.bincount(y, minlength=classes).astype(np.float64)
        some = n > 0
        means = np.zeros((classes, s.shape[1]))
        np.add.at(means, y, s)
        means[some] /= n[some, None]
        centre = means[some].mean(axis=0)
        means[~some] = centre
        apart = s - means[y]
        within = (apart / (n[y] * some.sum())[:, None]).T @ apart
        return cls(centre, (means - centre) * (n / (n + few))[:, None], within)


def gaussian_head(
    mu: Floats, within: Floats, centre: Floats, shrinkage: float
) -> tuple[Floats, Floats]:
    """Give the logits of Gaussians with one covariance and equal shares. (c, d), (c,)"""
    ridge = shrinkage * np.trace(within) / len(within) + 1e-12
    weight = np.linalg.solve(within + ridge * np.eye(len(within)), mu.T).T
    return weight, -(weight * mu).sum(axis=1) / 2 - weight @ centre


def _basis(s: Floats, y: Labels, t: Floats, classes: int, most: int) -> Floats:
    """Principal components of both domains where columns are many. (d, k)"""
    if s.shape[1] <= most:
        return np.eye(s.shape[1])
    sizes = np.bincount(y, minlength=classes)
    weights = torch.from_numpy(1 / sizes[y] / (sizes > 0).sum())[:, None]
    centre = s.mean(axis=0)
    both = (torch.from_numpy(s - centre), torch.from_numpy(t - centre))
    return np.asarray(principal_components(both[0], weights, both[1], most).numpy())


def _shares(
    t: Floats, moved: list[Moved], regression: tuple[Floats, Floats], votes: Floats
) -> Floats:
    """Average the shares that each head estimates; those of the regression are by EM on its
    posteriors."""
    p = softmax_rows(t @ regression[0].T + regression[1])
    shares = np.full(p.shape[1], 1 / p.shape[1])
    for _ in range(100):
        r = p * shares
        shares = ((r / r.sum(axis=1, keepdims=True)).sum(axis=0) + 1) / (len(p) + p.shape[1])
    every = [*(one.shares for one in moved), shares]
    return np.asarray(sum(v * own for v, own in zip(votes, every, strict=True)))


def _accuracy(y: Labels, x: Floats, head: Moved, classes: int) -> float:
    """Per-class mean accuracy of a head, in points."""
    right = (x @ head.weight.T + head.bias).argmax(axis=1) == y
    return 100 * float(np.mean([right[y == k].mean() for k in range(classes) if (y == k).any()]))
