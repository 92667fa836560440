"""MCC: minimum class confusion (Jin, Wang, Long, Wang, ECCV 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, State, join_domains
from askew.methods.losses import confusion, cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class MCC(Method):
    """No two classes may be probable together in the predictions of a target batch.

    Assumes: a network that is often right on the target, where what it confuses is what it has to
        learn. Nothing is aligned; every class counts alike, however rare, so a batch should show
        them all (`-t target_sampler=even` draws target images evenly by pseudo-label).
    Minimises: E_s CE(h(x), y) + μ·(1/c) Σ_j Σ_(k≠j) C_jk/Σ_l C_jl, with, over the target batch,
        C = Σ_i w_i p_i p_iᵀ, p = softmax(h(x)/T), w_i ∝ 1 + e^(−H(p_i)) of mean one, a constant to
        the gradient
    Cites: Y. Jin, X. Wang, M. Long, J. Wang, Minimum Class Confusion for Versatile Domain
        Adaptation, ECCV 2020.
    Use when: images and pre-trained networks: no alignment, no adversary, one weight; best with
        -t target_sampler=even.
    """

    id = "mcc"

    weight: Annotated[float, Between(0), Search(0.1, 10, log=True)] = 1.0
    """Weight μ of the confusion."""
    temperature: Annotated[float, Between(0.01), Search(1, 5)] = 2.5
    """T, which flattens the predictions, so that sure ones still show what they are nearly confused
    with."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        apart = confusion(net["head"](ft) / self.temperature)
        return {"label": cross_entropy(net["head"](fs), batch.ys), "confusion": self.weight * apart}
