"""Subspace: prototypes in a subspace that tells classes apart, found in rounds; nothing is trained
by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit
from askew.methods.lda import class_means, principal_components


@dataclass(frozen=True, kw_only=True)
class Subspace(ClosedForm):
    """Anchored spherical k-means on the target, in a discriminative subspace that its surest images
    help to find.

    Assumes: in either domain, features less the domain's centre lie in similar directions for one
        class, once those directions in which a class varies are shrunk. Little about q(y): all
        classes count alike, whatever their share.
    Minimises: nothing by gradients; T rounds, in principal components of both domains, each less
        its centre. In round t, W has the leading solutions of S w = λ (S_w + s·tr(S_w)/d·I) w,
        where S and S_w are the scatter in all and within classes, of labelled source images and of
        selected target images, classes and domains counting alike; in W, k-means of the directions
        g_i of target images, with p_k ∝ a·p⁰_k + n_k/(n_k + b)·u_k, p⁰_k that of the source, and
        u_k ∝ Σ_(i in k) g_i of n_k images. Then of each class the t/T that are nearest to p_k are
        selected.
    Cites: Q. Wang, T. Breckon, Unsupervised domain adaptation via structured prediction based
        selective pseudo-labeling, AAAI 2020: a projection, k-means and a selection in turns. Here
        all classes count alike, each domain is centred, and the means are anchored.
    Use when: rows of a large pre-trained network's features: it takes seconds, and no rate has to
        be chosen.
    """

    id = "subspace"

    components: Annotated[int, Between(1, 4096)] = 256
    """Most principal components that are kept."""
    dimensions: Annotated[int, Between(1, 4096)] = 128
    """Most dimensions of the subspace."""
    shrinkage: Annotated[float, Between(0.001, 100), Search(0.05, 5, log=True)] = 0.5
    """Weight s of the mean variance, added to every component's within classes."""
    anchor: Annotated[float, Between(0), Search(0.1, 10, log=True)] = 1.0
    """Weight a of a class's direction in the source against that of its target images, however many
    they are."""
    few: Annotated[float, Between(0), Search(0.5, 20, log=True)] = 3.0
    """Images b at which a class's target images count half: the mean of two or three is a rough
    guess."""
    rounds: Annotated[int, Between(1, 100)] = 10
    """How often subspace and prototypes are found."""
    steps: Annotated[int, Between(1, 100)] = 5
    """How often images are assigned in a round."""

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        s, y, t = (
            fs.cpu().double(),
            ys.cpu(),
            ft.cpu().double(),
        )  # float64, which not every device has
        means, sizes = class_means(s, y, classes)
        source_centre, target_centre = means[sizes > 0].mean(dim=0), t.mean(dim=0)
        s, t = s - source_centre, t - target_centre
        basis = principal_components(s, 1 / sizes[y, None] / (sizes > 0).sum(), t, self.components)
        s, t = s @ basis, t @ basis
        in_all, within = of_source = scatter(s, y, classes)
        labels, chosen = (
            torch.zeros(len(t), dtype=torch.int64),
            torch.zeros(len(t), dtype=torch.bool),
        )
        for number in range(1, self.rounds + 1):
            w = self._directions(in_all, within)
            start = F.normalize(class_means(F.normalize(s @ w, dim=1), y, classes)[0], dim=1)
            g = F.normalize(t @ w, dim=1)
            prototypes = self._moved(start, g[chosen], labels[chosen]) if chosen.any() else start
            for _ in range(self.steps):
                prototypes = self._moved(start, g, (g @ prototypes.T).argmax(dim=1))
            nearness, labels = (g @ prototypes.T).max(dim=1)
            chosen = nearest(nearness, labels, number, self.rounds)
            of_target = scatter(t[chosen], labels[chosen], classes)
            in_all, within = ((a + b) / 2 for a, b in zip(of_source, of_target, strict=True))
        # An offset of nought keeps it from a cosine head, which would scale each class by itself.
        return LinearFit(
            prototypes @ (basis @ w).T,
            torch.zeros(classes, dtype=w.dtype),
            source_centre,
            target_centre,
        )

    def _directions(self, in_all: Tensor, within: Tensor) -> Tensor:
        """The directions in which classes differ most for how much each varies. (d, d), (d, d) →
        (d, k)"""
        ridge = self.shrinkage * within.diagonal().mean() + 1e-12
        root = torch.linalg.cholesky(within + ridge * torch.eye(len(within), dtype=within.dtype))
        whitened = torch.linalg.solve_triangular(root, in_all, upper=False)
        _, vectors = torch.linalg.eigh(torch.linalg.solve_triangular(root, whitened.T, upper=False))
        leading = vectors.flip(1)[:, : self.dimensions]
        found: Tensor = torch.linalg.solve_triangular(root.T, leading, upper=True)
        return found

    def _moved(self, start: Tensor, g: Tensor, labels: Tensor) -> Tensor:
        """Prototypes that are drawn to their images; one without images stays at its start. (c, k),
        (n, k), (n,)"""
        means, sizes = class_means(g, labels, len(start))
        share = sizes / (sizes + self.few).clamp(min=1e-9)
        return F.normalize(self.anchor * start + share[:, None] * F.normalize(means, dim=1), dim=1)


def scatter(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How rows vary around 0, and around the mean of their class, all classes counting alike. (n,
    d) → 2 (d, d)"""
    means, sizes = class_means(x, y, classes)
    weights, apart = 1 / sizes[y, None] / (sizes > 0).sum(), x - means[y]
    return (x * weights).T @ x, (apart * weights).T @ apart


def nearest(nearness: Tensor, labels: Tensor, part: int, whole: int) -> Tensor:
    """Which rows are among the nearest part/whole of their class, rounded up. (n,), (n,) → (n,)"""
    chosen = torch.zeros_like(labels, dtype=torch.bool)
    for k in set(labels.tolist()):
        rows = torch.nonzero(labels == k)[:, 0]
        chosen[
            rows[
                nearness[rows].argsort(descending=True, stable=True)[
                    : -(-len(rows) * part // whole)
                ]
            ]
        ] = True
    return chosen
