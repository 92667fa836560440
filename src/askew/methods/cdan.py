"""CDAN: conditional domain-adversarial network (Long, Cao, Wang, Jordan, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, join_domains
from askew.methods.losses import certainty, cross_entropy, domain_loss, mean_one, ramp, reverse_grad
from askew.nets.heads import ConditionalCritic
from askew.nets.network import Net


def conditional_domain_loss(
    critic: nn.Module,
    fs: Tensor,
    ft: Tensor,
    zs: Tensor,
    zt: Tensor,
    strength: Tensor,
    entropy: bool = True,
) -> Tensor:
    """A critic's cross-entropy on features f and probabilities softmax(z), the features' gradient
    reversed.

    Probabilities are constants to the gradient, and so are the weights 1 + e^(−H), brought to mean
    one per domain. (n, d), (m, d), (n, c), (m, c) → ()
    """
    zs, zt = zs.detach(), zt.detach()
    ds = critic(reverse_grad(fs, strength), zs.softmax(dim=-1))
    dt = critic(reverse_grad(ft, strength), zt.softmax(dim=-1))
    if not entropy:
        return domain_loss(ds, dt)
    return domain_loss(ds, dt, mean_one(certainty(zs)), mean_one(certainty(zt)))


@dataclass(frozen=True, kw_only=True)
class CDAN(Method):
    """Learns features from which, together with the prediction, a critic cannot tell the domain.

    Assumes: p(y) = q(y). A critic that knows the prediction compares like with like, so that a
        class is less often aligned with another one than in DANN; where label distributions differ,
        the joint one differs as well.
    Minimises: E_s CE(h(x), y) + λ·L_D for the critic, − r(t)·λ·L_D for the features, with g(x) =
        F(x) ⊗ softmax(h(x)), L_D = ½ E_s −w log σ(d(g(x))) + ½ E_t −w log(1 − σ(d(g(x)))), r(t) =
        2/(1 + e^(−10t)) − 1, and w = 1, or w ∝ 1 + e^(−H(softmax(h(x)))) of mean one in each domain
        (CDAN+E). Softmax and w are constants to the gradient; where F ⊗ softmax is wider than
        4,096, the critic sees a random projection of it.
    Cites: M. Long, Z. Cao, J. Wang, M. Jordan, Conditional Adversarial Domain Adaptation, NeurIPS
        2018.
    Use when: as dann, where a class must not be aligned with another one; still with equal label
        distributions.
    """

    id = "cdan"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    entropy: bool = True
    """Whether images that the classifier is sure of count more (CDAN+E)."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"critic": ConditionalCritic(shape.width, shape.classes, self.hidden)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        zs, zt = net["head"](fs), net["head"](ft)
        apart = conditional_domain_loss(net["critic"], fs, ft, zs, zt, ramp(t), self.entropy)
        return {"label": cross_entropy(zs, batch.ys), "domain": self.weight * apart}
