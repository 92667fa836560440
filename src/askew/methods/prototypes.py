"""Prototypes: class means of the source that move to the target's clusters; nothing is trained by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm


@dataclass(frozen=True, kw_only=True)
class Prototypes(ClosedForm):
    """One prototype per class: the mean of its source features, then spherical k-means on the target, anchored.

    Assumes: features that separate the classes in both domains, such as a large pre-trained network's. Nothing about
        q(y): a class may have any share of the target, or none, when its prototype stays at the source's mean.
    Minimises: Σ_i min_k (1 − cos(f_i, w_k)) over target images i + a·Σ_k (1 − cos(w_k, w⁰_k)), w⁰ the source's means:
        w_k ← (a·w⁰_k + Σ_(i in k) f_i)/‖·‖, images going to their nearest prototype, a few times.
    Cites: I. Dhillon, D. Modha, Concept decompositions for large sparse text data using clustering, Machine Learning
        2001; J. Liang, D. Hu, J. Feng, Do we really need to access the source data?, ICML 2020 (the initialisation).
    Use when: rows of a large pre-trained network's features, and no time to train: one pass, no gradients.
    """

    id = "prototypes"
    head = "cosine"

    anchor: Annotated[float, Between(0), Search(1, 100, log=True)] = 20.0
    """How many images a the source's mean of a class counts for."""
    steps: Annotated[int, Between(0, 1000)] = 20
    """How often images are assigned; 0: the nearest mean of the source."""

    def fit_head(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> Tensor:
        fs, ft = F.normalize(fs, dim=1), F.normalize(ft, dim=1)
        anchor = F.normalize(F.one_hot(ys, classes).to(fs.dtype).T @ fs, dim=1)
        w = anchor
        for _ in range(self.steps):
            near = F.one_hot((ft @ w.T).argmax(dim=1), classes).to(ft.dtype)
            w = F.normalize(self.anchor * anchor + near.T @ ft, dim=1)
        return w
