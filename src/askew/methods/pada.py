"""PADA: partial adversarial domain adaptation (Cao, Ma, Long, Wang, ECCV 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import (
    Batch,
    Losses,
    Method,
    Outputs,
    Shape,
    State,
    critic_outputs,
    join_domains,
)
from askew.methods.losses import cross_entropy, domain_loss, ramp
from askew.nets.heads import Critic
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class PADA(Method):
    """DANN in which source classes count by how often the network sees them in the target.

    Assumes: the target has some of the source's classes and not others; the mean prediction tells
        which.
    Minimises: E_s (γ_y/mean γ)·CE(h(x), y) ± λ·L_D, the critic minimising and the features
        maximising by r(t) L_D = ½ E_s (γ_y/max γ)·−log σ(d) + ½ E_t −log(1 − σ(d)), γ = E_t
        softmax(s·logits), refreshed every round
    Cites: Z. Cao, L. Ma, M. Long, J. Wang, Partial Adversarial Domain Adaptation, ECCV 2018.
    Use when: the target lacks some of the source's classes.
    """

    id = "pada"
    revision = "2"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    sharpness: Annotated[float, Between(0), Search(0.5, 10, log=True)] = 1.0
    """s, by which logits are multiplied before they are averaged into γ."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"critic": Critic(shape.width, self.hidden)}

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"gamma": (self.sharpness * outputs.target).softmax(dim=-1).mean(dim=0)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        gamma = state["gamma"]
        fs, ft = join_domains(net, batch)
        ds, dt = critic_outputs(net["critic"], fs, ft, ramp(t))
        return {
            "label": cross_entropy(
                net["head"](fs), batch.ys, weight=(gamma / gamma.mean())[batch.ys]
            ),
            "domain": self.weight
            * domain_loss(ds, dt, source_weight=(gamma / gamma.amax())[batch.ys]),
        }

    def training_prior(self, source_prior: Tensor, state: State) -> Tensor:
        seen = source_prior * state["gamma"]
        return seen / seen.sum()
