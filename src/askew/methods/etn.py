"""ETN: example transfer network (Cao, You, Long, Wang, Yang, CVPR 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, critic_outputs, join_domains
from askew.methods.losses import (
    cross_entropy,
    domain_loss,
    entropy,
    leaky_logit,
    leaky_softmax,
    mean_one,
    one_vs_rest,
    ramp,
)
from askew.nets.heads import Critic, LinearHead
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class ETN(Method):
    """DANN in which each source image counts by how much it looks like the target to a classifier
    of its own.

    Assumes: the target has some of the source's classes; source images that look like no target
        image harm.
    Minimises: E_s w·CE(h(x), y) ± λ·L_D(w) + ε·E_t H(h(x)), with w weighing the source side of the
        critic too, and for an auxiliary head on detached features, G = leaky softmax e^(z_k)/(Σ e^z
        + c) and D = Σ_k G_k: μ·E_s one-vs-rest(G, y) + ν·(½ E_s −log D + ½ E_t −log(1 − D))
        w = 1 − D, divided by its batch mean, a constant to the gradient
    Cites: Z. Cao, K. You, M. Long, J. Wang, Q. Yang, Learning to Transfer Examples for Partial
        Domain Adaptation, CVPR 2019.
    Use when: as pada, with weights per image instead of per class.
    """

    id = "etn"
    revision = "2"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    entropy_weight: Annotated[float, Between(0), Search(0.02, 1, log=True)] = 0.2
    """Weight ε of the target's entropy."""
    auxiliary_label: Annotated[float, Between(0)] = 1.0
    """Weight μ of the auxiliary head's one-vs-rest loss."""
    auxiliary_domain: Annotated[float, Between(0)] = 10.0
    """Weight ν of the auxiliary head's domain loss."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {
            "critic": Critic(shape.width, self.hidden),
            "auxiliary": LinearHead(shape.width, shape.classes),
        }

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["auxiliary"](fs.detach()), net["auxiliary"](ft.detach())
        w = mean_one((-leaky_logit(zs)).sigmoid())  # 1 − D, to all digits
        ds, dt = critic_outputs(net["critic"], fs, ft, ramp(t))
        return {
            "label": cross_entropy(net["head"](fs), batch.ys, weight=w),
            "domain": self.weight * domain_loss(ds, dt, source_weight=w),
            "entropy": self.entropy_weight * entropy(net["head"](ft)),
            "auxiliary_label": self.auxiliary_label * one_vs_rest(leaky_softmax(zs), batch.ys),
            "auxiliary_domain": self.auxiliary_domain
            * domain_loss(leaky_logit(zs), leaky_logit(zt)),
        }
