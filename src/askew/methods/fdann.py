"""FDANN: adversarial adaptation with asymmetrically relaxed alignment (Wu et al., ICML 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, critic_outputs, join_domains
from askew.methods.losses import cross_entropy, ramp, relaxed_divergence
from askew.nets.heads import Critic
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class FDANN(Method):
    """Like DANN, but lets the target be denser than the source somewhere, up to 1 + β times, as
    label shift makes it.

    Assumes: the target's feature density is at most 1 + β times the source's everywhere, so
        q(y)/p(y) ≤ 1 + β.
    Minimises: E_s CE(h(x), y) + r(t)·λ·L_β for the features, − λ·L_β for the critic, with
        L_β = E_s log σ(d) + E_t log(2 + β − σ(d)) − log(1 + β), and the ramp r(t) = 2/(1 +
        e^(−10t)) − 1
    Cites: Y. Wu, E. Winston, D. Kaushik, Z. Lipton, Domain Adaptation with Asymmetrically-Relaxed
        Distribution Alignment, ICML 2019.
    Use when: as dann, with label distributions that differ up to a known factor.
    """

    id = "fdann"
    revision = "2"

    weight: Annotated[float, Between(0), Search(0.01, 3, log=True)] = 1.0
    """Weight λ of the domain term."""
    beta: Annotated[float, Between(0), Search(1, 8, log=True)] = 4.0
    """How much denser the target may be, less one; the paper's are 2 and 4."""
    hidden: Annotated[int, Between(1)] = 500
    """Width of the critic's two hidden layers."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"critic": Critic(shape.width, self.hidden)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        ds, dt = critic_outputs(net["critic"], fs, ft, ramp(t))
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "domain": -self.weight * relaxed_divergence(ds, dt, self.beta),
        }
