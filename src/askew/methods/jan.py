"""JAN: joint adaptation network (Long, Zhu, Wang, Jordan, ICML 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, State, join_domains
from askew.methods.losses import cross_entropy, gaussian_kernels, mmd, squared_distances
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class JAN(Method):
    """Brings features and predictions together jointly: an image is near another only if both are.

    Assumes: p(y) = q(y); the joint of features and labels differs, and predictions stand in for
        target labels.
    Minimises: E_s CE(h(x), y) + λ·JMMD², the MMD² of the kernel k(f, f′)·exp(−‖p − p′‖²/σ)
        with k the kernels of DAN on features f and p the softmax outputs
    Cites: M. Long, H. Zhu, J. Wang, M. Jordan, Deep Transfer Learning with Joint Adaptation
        Networks, ICML 2017.
    Use when: as dan, where aligning features alone would mix classes up.
    """

    id = "jan"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the discrepancy."""
    kernels: Annotated[int, Between(1, 15)] = 5
    """How many Gaussians on the features, around the mean squared distance."""
    bandwidth: Annotated[float, Between(1e-6)] = 1.68
    """σ of the Gaussian on the softmax outputs; the authors' value."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["head"](fs), net["head"](ft)
        p = torch.cat([zs, zt]).softmax(dim=-1)
        kernel = gaussian_kernels(torch.cat([fs, ft]), self.kernels) * torch.exp(
            -squared_distances(p) / self.bandwidth
        )
        return {"label": cross_entropy(zs, batch.ys), "jmmd": self.weight * mmd(kernel, len(fs))}
