"""The prior-aware teacher: two views, an averaged network, and class shares that nobody assumes to
be equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Shape, State, join_domains
from askew.methods.losses import confusion, cross_entropy
from askew.methods.mcc import MCC
from askew.nets.network import Net


class ClassShares(nn.Module):
    """Moving shares q̄ of the classes in a teacher's predictions q, and q made even by them.

    q̄ ← 0.95 q̄ + 0.05 mean(q);  q′ ∝ q/max(q̄, ε/c). (n, c), () → (n, c)
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("shares", torch.full((classes,), 1 / classes))

    shares: Tensor

    def forward(self, q: Tensor, floor: float) -> Tensor:
        self.shares.mul_(0.95).add_(0.05 * q.mean(dim=0))
        even = q / self.shares.clamp(min=floor / q.shape[-1])
        return even / even.sum(dim=-1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class PriorAwareTeacher(Method):
    """The student agrees, on one random view, with what its average over time is sure of on
    another.

    Assumes: an image keeps its class under the views; a pre-trained network that is often right.
        Nothing about q(y): target images are drawn so that every pseudo-class comes equally often
        (`target_sampler = "even"`), and the teacher's predictions are made equally frequent
        (distribution alignment), which is right under that draw alone.
    Minimises: E_s CE(h(x), y) + λ·E_t 1[max q′ > τ]·‖h(x₁) − q′(x₂)‖², with views x₁, x₂ of one
        image, q the teacher's probabilities, q′ ∝ q/q̄, q̄ their moving mean; teacher ← d·teacher +
        (1 − d)·student after every step. With `confusion`, plus the class confusion that MCC
        minimises.
    Cites: A. Tarvainen, H. Valpola, Mean teachers are better role models, NeurIPS 2017; G. French,
        M. Mackiewicz, M. Fisher, Self-ensembling for visual domain adaptation, ICLR 2018; D.
        Berthelot et al., ReMixMatch, ICLR 2020.
    Use when: random views exist and label distributions differ, unless the target lacks most of the
        classes.
    """

    id = "teacher"
    teacher = True

    weight: Annotated[float, Between(0), Search(0.3, 30, log=True)] = 3.0
    """Weight λ of the agreement."""
    threshold: Annotated[float, Between(0, 1), Search(0.8, 0.99)] = 0.968
    """How sure τ the teacher must be of an image for it to count."""
    aligned: bool = True
    """Whether the teacher's predictions are made equally frequent (off for the ablation)."""
    floor: Annotated[float, Between(0.001, 1)] = 0.01
    """Least share ε/c that a class is taken to have among the predictions: a rare one is raised 1/ε
    times at most."""
    memory: Annotated[int, Between(1)] = 100
    """How many steps the teacher averages over: d = 1 − 1/min(i + 1, this); 1: the student teaches
    itself."""

    calm: bool = False
    """Whether the teacher's view is half as strong as the student's."""
    confusion: bool = False
    """Whether the student also minimises MCC's class confusion on the target."""

    @property
    def target_views(self) -> tuple[float, ...]:  # type: ignore[override]
        return 1.0, 0.5 if self.calm else 1.0

    def teacher_memory(self) -> int:
        return self.memory

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"shares": ClassShares(shape.classes)} if self.aligned else {}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return self.terms(net, batch)[0]

    def terms(self, net: Net, batch: Batch) -> tuple[Losses, Tensor]:
        """The losses, and the student's logits of the target's first view. (n, c)"""
        fs, ft = join_domains(net, batch)
        q = net["teacher"](batch.target_views[1]).softmax(dim=-1).detach()
        if self.aligned:
            q = net["shares"](q, self.floor)
        sure = (q.max(dim=-1).values > self.threshold).to(q.dtype)
        zt = net["head"](ft)
        apart = (zt.softmax(dim=-1) - q).square().sum(dim=-1)
        losses = {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "agree": self.weight * (sure * apart).mean(),
        }
        if self.confusion:
            losses["confusion"] = confusion(zt / MCC.temperature)
        return losses, zt
