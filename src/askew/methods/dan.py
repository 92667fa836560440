"""DAN: deep adaptation network (Long, Cao, Wang, Jordan, ICML 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, State, join_domains
from askew.methods.losses import cross_entropy, gaussian_kernels, mmd
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class DAN(Method):
    """Brings the features of both domains together in the mean of several Gaussian kernels.

    Assumes: p(y) = q(y); what differs is how images look, and features exist in which that is gone.
    Minimises: E_s CE(h(x), y) + λ·MMD²(F(source), F(target))
        MMD² = mean k(s, s′) + mean k(t, t′) − 2 mean k(s, t), k a sum of Gaussians of bandwidths a
        factor 2 apart
    Cites: M. Long, Y. Cao, J. Wang, M. Jordan, Learning Transferable Features with Deep Adaptation
        Networks, ICML 2015.
    Use when: images look different, label distributions are equal, and a loss without an adversary
        is wanted.
    """

    id = "dan"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the discrepancy."""
    kernels: Annotated[int, Between(1, 15)] = 5
    """How many Gaussians, around the mean squared distance."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        kernel = gaussian_kernels(torch.cat([fs, ft]), self.kernels)
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "mmd": self.weight * mmd(kernel, len(fs)),
        }
