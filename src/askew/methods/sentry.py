"""SENTRY: selective entropy by the vote of several views (Prabhu, Khare, Kartik, Hoffman, ICCV
2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, features_of
from askew.methods.losses import cross_entropy, row_entropy
from askew.nets.network import Net

MEMORY = 256
"""How many of the last predicted labels the class shares are counted in; the authors' value."""


class RecentLabels(nn.Module):
    """Shares of the classes among the last 256 predicted labels; at first every class has the same.

    (n,) → (c,), of which none is less than 1/256
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("labels", torch.arange(MEMORY) % classes)

    labels: Tensor

    def forward(self, y: Tensor) -> Tensor:
        self.labels.copy_(torch.cat([y, self.labels])[:MEMORY])
        shares = F.one_hot(self.labels, self.classes).sum(dim=0) / MEMORY
        return shares.clamp(min=1 / MEMORY)


@dataclass(frozen=True, kw_only=True)
class SENTRY(Method):
    """Makes the network surer of target images whose views agree with the plain image, and less
    sure of the others.

    Assumes: an image keeps its class under the views, which the run has to turn on (`-t views=…`;
        without them all agree); a pre-trained network that is often right. Target images are to be
        drawn evenly by pseudo-label (`-t target_sampler=even`), which is what makes equal class
        shares right under label shift.
    Minimises: E_s CE(h(x), y) + λ·E_t s·H(p(x_a)) + β·E_t Σ_k p_k(x) log q̂_k, with the plain image
        x, strong views x₁, x₂, x₃, ŷ = argmax p(x), s = 1 if at least two views get ŷ, else −1, and
        x_a the first view that gets ŷ if s = 1, the first that does not if s = −1. q̂ are the
        shares of the classes among the last 256 ŷ, at least 1/256 each, constants to the gradient:
        the last term, in the paper too, keeps any class from taking over.
    Cites: V. Prabhu, S. Khare, D. Kartik, J. Hoffman, SENTRY: Selective Entropy Optimization via
        Committee Consistency for Unsupervised Domain Adaptation, ICCV 2021.
    Use when: as fixmatch, where sure predictions are often wrong: it unlearns those that the views
        contradict.
    """

    id = "sentry"
    head = "cosine"
    target_views = (0.0, 1.0, 1.0, 1.0)

    weight: Annotated[float, Between(0), Search(0.1, 3, log=True)] = 1.0
    """Weight λ of the selective entropy."""
    balance: Annotated[float, Between(0), Search(0.01, 1, log=True)] = 0.1
    """Weight β of the term that lowers the probability of classes predicted often."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"recent": RecentLabels(shape.classes)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, *ft = features_of(net, batch.xs, *batch.target_views)
        plain, *views = (net["head"](f) for f in ft)
        pseudo, p = plain.argmax(dim=-1), plain.softmax(dim=-1)
        shares = net["recent"](pseudo).to(p.dtype)
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "selective": self.weight * selective_entropy(torch.stack(views), pseudo),
            "balance": self.balance * (p * shares.log()).sum(dim=-1).mean(),
        }


def selective_entropy(views: Tensor, pseudo: Tensor) -> Tensor:
    """Mean entropy of one view per image: plus where most views get the pseudo-label, minus
    elsewhere.

    (v, n, c), (n,) → ()
    """
    agrees = views.argmax(dim=-1) == pseudo
    consistent = 2 * agrees.sum(dim=0) > len(views)
    fitting = agrees == consistent
    first = fitting & (
        fitting.cumsum(dim=0) == 1
    )  # views are drawn alike, so the first is as good as any
    chosen = torch.where(first, row_entropy(views), 0.0).sum(dim=0)
    return torch.where(consistent, chosen, -chosen).mean()
