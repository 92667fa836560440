"""Prototypes: class means of the source that move to the target's clusters; nothing is trained by
gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit
from askew.methods.lda import class_means


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
        few times.
    Cites: I. Dhillon, D. Modha, Concept decompositions for large sparse text data using clustering,
        Machine Learning 2001; J. Liang, D. Hu, J. Feng, Do we really need to access the source
        data?, ICML 2020 (the initialisation).
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

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        fs, ft = F.normalize(fs, dim=1), F.normalize(ft, dim=1)
        means, _ = class_means(fs, ys, classes)
        # Left in the source, prototypes with few images would lose theirs to the first one that
        # reaches the target.
        start = F.normalize(means - means.mean(dim=0) + ft.mean(dim=0), dim=1)
        w = start
        for _ in range(self.steps):
            nearest = F.one_hot((ft @ w.T).argmax(dim=1), classes).to(ft.dtype)
            w = F.normalize(self.anchor * start + F.normalize(nearest.T @ ft, dim=1), dim=1)
        return LinearFit(w)
