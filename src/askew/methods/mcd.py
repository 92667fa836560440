"""MCD: maximum classifier discrepancy (Saito, Watanabe, Ushiku, Harada, CVPR 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Phase, Shape, State, join_domains
from askew.methods.losses import cross_entropy
from askew.nets.layers import dense_stack
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class MCD(Method):
    """Two heads look for target images that they disagree on, and the features move to where they
    agree.

    Assumes: p(y) = q(y); target images near a class boundary are those that the source does not
        support.
    Minimises, in turn, with D = E_t mean_k |softmax₁(x)_k − softmax₂(x)_k|:
        A  features and heads: L = E_s CE(h₁(x), y) + E_s CE(h₂(x), y)
        B  heads alone:        L − λ·D
        C  features alone:     λ·D, several times
    Cites: K. Saito, K. Watanabe, Y. Ushiku, T. Harada, Maximum Classifier Discrepancy for
        Unsupervised Domain Adaptation, CVPR 2018.
    Use when: as dann, where target images lie near the boundary between classes.
    """

    id = "mcd"

    weight: Annotated[float, Between(0), Search(0.1, 10, log=True)] = 1.0
    """Weight λ of the discrepancy."""
    feature_steps: Annotated[int, Between(1, 20), Search(1, 4)] = 4
    """How often C is done in a step; what the COAL paper tuned."""
    depth: Annotated[int, Between(0, 3)] = 0
    """Layers of each head before its last; 0 gives MCD the same network as every other method, the
    authors' is 2."""

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        necks = {f"neck{i}": dense_stack(shape.width, self.depth) for i in (1, 2) if self.depth}
        return {"head2": shape.new_head(), **necks}

    def phases(self) -> tuple[Phase, ...]:
        heads = ("head", "head2", *(("neck1", "neck2") if self.depth else ()))
        return (
            Phase(self.losses),
            Phase(self.disagree, trains=heads),
            Phase(self.agree, trains=("features",), repeat=self.feature_steps),
        )

    def heads(self, net: Net, f: Tensor) -> tuple[Tensor, Tensor]:
        if self.depth:
            return net["head"](net["neck1"](f)), net["head2"](net["neck2"](f))
        return net["head"](f), net["head2"](f)

    def label(self, net: Net, fs: Tensor, ys: Tensor) -> Tensor:
        z1, z2 = self.heads(net, fs)
        return cross_entropy(z1, ys) + cross_entropy(z2, ys)

    def discrepancy(self, net: Net, ft: Tensor) -> Tensor:
        z1, z2 = self.heads(net, ft)
        return (z1.softmax(dim=-1) - z2.softmax(dim=-1)).abs().mean()

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """A."""
        fs, _ = join_domains(net, batch)
        return {"label": self.label(net, fs, batch.ys)}

    def disagree(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """B."""
        fs, ft = join_domains(net, batch)
        return {
            "hold": self.label(net, fs, batch.ys),
            "disagree": -self.weight * self.discrepancy(net, ft),
        }

    def agree(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """C."""
        _, ft = join_domains(net, batch)
        return {"agree": self.weight * self.discrepancy(net, ft)}

    def predict(self, net: Net, x: Tensor) -> Tensor:
        """Both heads together; halved, so that it is as sure as one of them."""
        z1, z2 = self.heads(net, net["features"](x))
        return (z1 + z2) / 2
