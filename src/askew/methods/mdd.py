"""MDD: margin disparity discrepancy (Zhang et al., ICML 2019), with implicit alignment (Jiang et
al., ICML 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, critic_outputs, join_domains
from askew.methods.losses import cross_entropy, log_other, ramp
from askew.nets.layers import dense_stack
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class MDD(Method):
    """A second head agrees with the first on source and disagrees on target; the features make it
    fail.

    Assumes: p(y) = q(y), which implicit alignment brings about by the draw: source images evenly by
        label (the default) and target images evenly by pseudo-label (`-t target_sampler=balanced`),
        so that both batches show the same classes.
    Minimises: E_s CE(h(x), y) + L for the second head h′, − η·r(t)·L for the features, with ŷ =
        argmax h(x), L = γ·E_s −log p′(x)[ŷ] + E_t −log(1 − p′(x)[ŷ]), p′ = softmax(h′), r(t) = 2/(1
        + e^(−10t)) − 1 If masked, ŷ and p′ are over the classes of the source batch alone (all
        where it shows just one), as in implicit alignment: the two domains are compared on classes
        that they both show.
    Cites: Y. Zhang, T. Liu, M. Long, M. Jordan, Bridging Theory and Algorithm for Domain
        Adaptation, ICML 2019; X. Jiang, Q. Lao, S. Matwin, M. Havaei, Implicit Class-Conditioned
        Domain Alignment for Unsupervised Domain Adaptation, ICML 2020.
    Use when: as mcd, with one optimiser step instead of several; with -t target_sampler=balanced if
        labels shift.
    """

    id = "mdd"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 0.1
    """Weight η of the disparity that the features lower."""
    margin: Annotated[float, Between(0), Search(1, 8)] = 4.0
    """γ, how much more the second head is to agree on source than to disagree on target; log γ is
    the margin."""
    masked: bool = True
    """Whether classes that the source batch does not show are left out of the disparity."""

    depth: Annotated[int, Between(0, 3)] = 1
    """Hidden layers of the second head, which is an adversary and predicts nothing; the authors'
    has one."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"head2": nn.Sequential(dense_stack(shape.width, self.depth), shape.new_head())}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["head"](fs), net["head"](ft)
        others = critic_outputs(net["head2"], fs, ft, self.weight * ramp(t))
        absent = (
            absent_classes(batch.ys, zs.shape[-1])
            if self.masked
            else torch.zeros_like(zs[0], dtype=torch.bool)
        )
        ys, yt = (z.masked_fill(absent, -math.inf).argmax(dim=-1) for z in (zs, zt))
        own_s, own_t = (z.masked_fill(absent, -math.inf) for z in others)
        disparity = self.margin * cross_entropy(own_s, ys) - log_other(own_t, yt).mean()
        return {"label": cross_entropy(zs, batch.ys), "disparity": disparity}


def absent_classes(y: Tensor, classes: int) -> Tensor:
    """Which classes no label names; none where the labels name just one class. (n,) → (c,)"""
    present = F.one_hot(y, classes).amax(dim=0).bool()
    return ~present & (present.sum() > 1)
