"""LDA: Gaussian classes of the source that move to the target by EM; nothing is trained by
gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit


@dataclass(frozen=True, kw_only=True)
class DiscriminantAnalysis(ClosedForm):
    """Linear discriminant analysis whose class means and covariance are fitted to both domains.

    Assumes: in either domain, features less the domain's centre are Gaussian around their class's
        mean, with one covariance for all classes. Nothing about q(y): posteriors are for equally
        frequent classes.
    Minimises: nothing by gradients; EM for the target's means μ_k, with r_ik = P(k | f_i) under
        equal priors: μ_k = (Σ_i r_ik g_i + a (μ⁰_k + o))/(Σ_i r_ik + a), Σ = (Σ_s + Σ_t)/2 +
        s·tr/d·I, in principal components of both domains, with g = f − t, t the target's mean, μ⁰_k
        = n_k/(n_k + b)·(m_k − m̄) the mean of n_k source images from that of all classes, and o how
        far the target's means are from these on average.
    Cites: T. Hastie, R. Tibshirani, Discriminant analysis by Gaussian mixtures, JRSS B 1996; A.
        Dempster, N. Laird, D. Rubin, Maximum likelihood from incomplete data via the EM algorithm,
        JRSS B 1977.
    Use when: rows of a large pre-trained network's features, with few labelled images per class or
        many classes: it takes seconds, and no rate or length has to be chosen.
    """

    id = "lda"

    components: Annotated[int, Between(1, 4096)] = 256
    """Most principal components that are kept."""
    shrinkage: Annotated[float, Between(0.001, 100), Search(0.03, 3, log=True)] = 0.3
    """Weight s of the mean variance, added to every component's."""
    anchor: Annotated[float, Between(0), Search(1, 100, log=True)] = 10.0
    """Images a that a class's mean in the source counts for beside those of the target."""
    few: Annotated[float, Between(0), Search(0.5, 20, log=True)] = 5.0
    """Images b that draw a class's mean in the source to the centre of all: with three images it is
    a rough guess."""
    steps: Annotated[int, Between(0, 1000)] = 20
    """How often posteriors and means are computed; 0: the source's discriminant analysis, centred
    on the target."""

    def fit(
        self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int, soft_labels: Tensor | None = None
    ) -> LinearFit:
        """By EM; or, given soft labels r of other networks, by one step from them."""
        s, y, t = (
            fs.cpu().double(),
            ys.cpu(),
            ft.cpu().double(),
        )  # float64, which not every device has
        means, sizes = class_means(s, y, classes)
        source_centre, target_centre = means[sizes > 0].mean(dim=0), t.mean(dim=0)
        sizes = sizes[:, None]
        weights = 1 / sizes[y] / classes  # every class counts alike
        basis = principal_components(s - source_centre, weights, t - target_centre, self.components)
        s, g, means = (
            (s - source_centre) @ basis,
            (t - target_centre) @ basis,
            (means - source_centre) @ basis,
        )
        apart = s - means[y]
        within = source_within = (apart * weights).T @ apart
        start = means * sizes / (sizes + self.few)
        mu, offset = start, torch.zeros_like(start[0])
        for _ in range(self.steps if soft_labels is None else 1):
            matrix, bias = self._linear(mu, within)
            if soft_labels is None:
                r = (g @ matrix.T + bias).softmax(dim=1)
            else:
                r = soft_labels.cpu().double()
            n = r.sum(dim=0)[:, None]
            found, share = r.T @ g / n.clamp(min=1e-9), n / (n + self.anchor)
            offset = (share * (found - start)).sum(dim=0) / share.sum()
            mu = share * found + (1 - share) * (start + offset)
            # Σ_i r_ik (g_i − μ_k)(g_i − μ_k)ᵀ without a tensor of (images, classes, components).
            scatter = g.T @ g - (mu * n).T @ found - (found * n).T @ mu + (mu * n).T @ mu
            within = (source_within + scatter / len(g)) / 2
        matrix, bias = self._linear(mu, within)
        # A source image lies beside its class's mean, which has moved by the offset.
        return LinearFit(matrix @ basis.T, bias, source_centre - basis @ offset, target_centre)

    def _linear(self, mu: Tensor, within: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of Gaussians with these means and one covariance, as a matrix and an offset. (c,
        d), (c,)"""
        ridge = self.shrinkage * within.diagonal().mean() + 1e-12
        matrix = torch.linalg.solve(
            within + ridge * torch.eye(len(within), dtype=within.dtype), mu.T
        ).T
        return matrix, -(matrix * mu).sum(dim=1) / 2


def class_means(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The mean of each class's rows, 0 without any, and how many they are. (n, d), (n,) → (c, d),
    (c,)"""
    of_class = F.one_hot(y, classes).to(x.dtype)
    sizes = of_class.sum(dim=0)
    return of_class.T @ x / sizes[:, None].clamp(min=1), sizes


def principal_components(s: Tensor, weights: Tensor, t: Tensor, most: int) -> Tensor:
    """The directions in which two centred domains vary most, both counting alike. (n_s, d), (n_s,
    1), (n_t, d) → (d, k)

    >>> s, t = torch.randn(9, 4) * torch.tensor([9.0, 1, 1, 1]), torch.randn(8, 4)
    >>> principal_components(s, torch.full((9, 1), 1 / 9), t, 2).shape
    torch.Size([4, 2])
    """
    rows = torch.cat([s * weights.sqrt(), t / len(t) ** 0.5])
    if len(rows) >= rows.shape[1]:
        _, directions = torch.linalg.eigh(rows.T @ rows)
    else:
        values, vectors = torch.linalg.eigh(rows @ rows.T)
        directions = F.normalize(rows.T @ vectors[:, values > values[-1] * 1e-10], dim=0)
    found: Tensor = directions.flip(1)[:, :most]
    return found
