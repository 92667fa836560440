"""BSP: batch spectral penalisation (Chen, Wang, Long, Wang, ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, join_domains
from askew.methods.cdan import conditional_domain_loss
from askew.methods.losses import cross_entropy, domain_loss, ramp, reverse_grad, top_singular_square
from askew.nets.heads import ConditionalCritic, Critic
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class BSP(Method):
    """An adversarial method whose features may not put all their weight on the one direction that
    transfers best.

    Assumes: p(y) = q(y); aligning makes features lose the smaller directions that tell classes
        apart.
    Minimises: E_s CE(h(x), y) ± λ·L_D + β·(σ₁²(F(source)) + σ₁²(F(target))) with σ₁ the largest
        singular value of a batch's features and L_D, which the critic minimises and the features
        maximise by r(t), that of cdan: a critic on features ⊗ probabilities, images weighed by 1 +
        e^(−entropy), probabilities and weights being constants to the gradient, or dann: a critic
        on features
    Cites: X. Chen, S. Wang, M. Long, J. Wang, Transferability vs. Discriminability: Batch Spectral
        Penalization for Adversarial Domain Adaptation, ICML 2019; M. Long, Z. Cao, J. Wang, M.
        Jordan, Conditional Adversarial Domain Adaptation, NeurIPS 2018.
    Use when: as cdan, where alignment costs accuracy on the source.
    """

    id = "bsp"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    penalty: Annotated[float, Between(0), Search(1e-5, 1e-2, log=True)] = 1e-4
    """Weight β of the singular values."""
    base: Literal["cdan", "dann"] = "cdan"
    """The adversarial method that the penalty is added to."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        if self.base == "dann":
            return {"critic": Critic(shape.width, self.hidden)}
        return {"critic": ConditionalCritic(shape.width, shape.classes, self.hidden)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["head"](fs), net["head"](ft)
        return {
            "label": cross_entropy(zs, batch.ys),
            "domain": self.weight * self.domain(net, fs, ft, zs, zt, ramp(t)),
            "spectral": self.penalty * (top_singular_square(fs) + top_singular_square(ft)),
        }

    def domain(
        self, net: Net, fs: Tensor, ft: Tensor, zs: Tensor, zt: Tensor, strength: Tensor
    ) -> Tensor:
        if self.base == "cdan":
            return conditional_domain_loss(net["critic"], fs, ft, zs, zt, strength)
        fs, ft = reverse_grad(fs, strength), reverse_grad(ft, strength)
        return domain_loss(net["critic"](fs), net["critic"](ft))
