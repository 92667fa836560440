"""Prototypes: class means of the source that move to the target's clusters; nothing is trained by
gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit
from askew.methods.lda import class_means

SCALINGS, TINY = 50, 1e-30
"""How often shares are scaled for one assignment, and what a class that no image is near has."""


@dataclass(frozen=True, kw_only=True)
class Prototypes(ClosedForm):
    """One prototype per class: the mean of its source features, moved with the domain; then
    anchored spherical k-means.

    Assumes: features that separate the classes in both domains, such as a large pre-trained
        network's, and domains that differ by an offset before all. Little about q(y): a class may
        have any share of the target, or none, when its prototype stays where it began.
    Minimises: Σ_i min_k (1 − cos(f_i, w_k)) over target images i, from w⁰_k ∝ m_k − m̄ + t, with
        m_k the mean of class k in the source, m̄ the mean of these and t that of the target:
        w_k ∝ a·w⁰_k + u_k, u_k ∝ Σ_i r_ik f_i, with r_ik = 1 for an image's nearest prototype, a
        few times. With `entropy` ε, r is the optimal transport of images to prototypes whose
        classes' shares r̄ = mean_i r_i are free, or, with `evenness` ρ, drawn to equal ones: Σ_k
        r_ik = 1, and least is mean_i Σ_k r_ik (ε log r_ik − cos(f_i, w_k)) + ρ Σ_k r̄_k
        log(c·r̄_k).
    Cites: I. Dhillon, D. Modha, Concept decompositions for large sparse text data using clustering,
        Machine Learning 2001; J. Liang, D. Hu, J. Feng, Do we really need to access the source
        data?, ICML 2020 (the initialisation); L. Chizat, G. Peyré, B. Schmitzer, F.-X. Vialard,
        Scaling algorithms for unbalanced optimal transport problems, Mathematics of Computation
        2018.
    Use when: rows of a large pre-trained network's features, and no time to train: one pass, no
        gradients.
    """

    id = "prototypes"
    revision = "2"
    head = "cosine"

    anchor: Annotated[float, Between(0), Search(0.1, 10, log=True)] = 1.0
    """Weight a of where a prototype began against the mean of its images, however many they are."""
    steps: Annotated[int, Between(0, 1000)] = 20
    """How often images are assigned; 0: the nearest mean of the source, moved."""
    entropy: Annotated[float, Between(0, 10), Search(0.005, 0.1, log=True)] = 0.0
    """Weight ε of the assignments' entropy; 0: every image goes to its nearest prototype."""
    evenness: Annotated[float, Between(0, 100)] = 0.0
    """Weight ρ of how far classes' shares of the target are from equal ones; 0: they are free."""

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        fs, ft = F.normalize(fs, dim=1), F.normalize(ft, dim=1)
        means, _ = class_means(fs, ys, classes)
        # Left in the source, prototypes with few images would lose theirs to the first one that
        # reaches the target.
        start = F.normalize(means - means.mean(dim=0) + ft.mean(dim=0), dim=1)
        w, v = start, torch.ones(classes, dtype=ft.dtype, device=ft.device)
        for _ in range(self.steps):
            r, v = self._assigned(ft @ w.T, v)
            w = F.normalize(self.anchor * start + F.normalize(r.T @ ft, dim=1), dim=1)
        return LinearFit(w)

    def _assigned(self, near: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Shares r_ik of images in classes by their cosines, r_ik ∝ v_k exp(cos/ε), and v, from
        where it was: where it stays, v_k = (c·r̄_k)^(−ρ/ε). (n, c), (c,) → (n, c), (c,)"""
        if not self.entropy:
            return F.one_hot(near.argmax(dim=1), len(v)).to(near.dtype), v
        kernel = ((near - near.amax(dim=1, keepdim=True)) / self.entropy).exp()
        for _ in range(SCALINGS if self.evenness else 0):
            # r̄_k = v_k·s_k, so v_k = (c·s_k)^(−ρ/(ρ + ε)) is where that holds for these s.
            s = (kernel / (kernel @ v)[:, None]).mean(dim=0)
            v = (len(v) * s.clamp(min=TINY)) ** (-self.evenness / (self.evenness + self.entropy))
        r = kernel * v
        return r / r.sum(dim=1, keepdim=True), v
