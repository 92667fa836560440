"""UAN: universal adaptation network (You, Long, Cao, Wang, Jordan, CVPR 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, critic_outputs, join_domains
from askew.methods.losses import cross_entropy, domain_loss, mean_one, ramp, row_entropy, unit_range
from askew.nets.heads import Critic
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class UAN(Method):
    """DANN in which images of either domain count by how likely their class is one that both have.

    Assumes: each domain may have classes of its own; there, domains are easy to tell and
        predictions unsure.
    Minimises: E_s CE(h(x), y) ± λ·L_D, the critic minimising and the features maximising by r(t),
        with L_D = ½ E_s −w_s log σ(d) + ½ E_t −w_t log(1 − σ(d)), and for a second critic d′ on
        detached features ½ E_s −log σ(d′) + ½ E_t −log(1 − σ(d′))
        w_s = H(softmax(z/T))/log c − σ(d′), w_t = σ(d′) − H(softmax(z))/log c, each brought to [0,
        1] in its batch, then to mean one, constants to the gradient. Every target class is known
        here, so nothing is rejected.
    Cites: K. You, M. Long, Z. Cao, J. Wang, M. Jordan, Universal Domain Adaptation, CVPR 2019.
    Use when: which classes the domains share is unknown.
    """

    id = "uan"
    revision = "2"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    source_temperature: Annotated[float, Between(1e-3), Search(1, 30, log=True)] = 10.0
    """T, which flattens the predictions on source before their entropy is taken; the authors'
    value."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critics' two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {
            "critic": Critic(shape.width, self.hidden),
            "similarity": Critic(shape.width, self.hidden, number=1),
        }

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["head"](fs), net["head"](ft)
        own_s, own_t = net["similarity"](torch.cat([fs, ft]).detach()).split([len(fs), len(ft)])
        most = math.log(zs.shape[-1])
        ws = row_entropy(zs / self.source_temperature) / most - own_s.sigmoid()
        wt = own_t.sigmoid() - row_entropy(zt) / most
        ds, dt = critic_outputs(net["critic"], fs, ft, ramp(t))
        return {
            "label": cross_entropy(zs, batch.ys),
            "domain": self.weight
            * domain_loss(ds, dt, mean_one(unit_range(ws)), mean_one(unit_range(wt))),
            "similarity": domain_loss(own_s, own_t),
        }
