"""DANN: domain-adversarial neural network (Ganin et al., JMLR 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, critic_outputs, join_domains
from askew.methods.losses import cross_entropy, domain_loss, ramp
from askew.nets.heads import Critic
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class DANN(Method):
    """Learns features from which a critic cannot tell the domain.

    Assumes: p(y) = q(y); what differs is how images look, and features exist in which that is gone.
    Minimises: E_s CE(h(x), y) + λ·L_D for the critic, − r(t)·λ·L_D for the features, with
        L_D = ½ E_s −log σ(d(F(x))) + ½ E_t −log(1 − σ(d(F(x)))), and the ramp r(t) = 2/(1 +
        e^(−10t)) − 1
    Cites: Y. Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016.
    Use when: images look different and label distributions are equal: the usual adversarial
        baseline.
    """

    id = "dann"
    revision = "2"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"critic": Critic(shape.width, self.hidden)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        ds, dt = critic_outputs(net["critic"], fs, ft, ramp(t))
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "domain": self.weight * domain_loss(ds, dt),
        }
