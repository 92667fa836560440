"""The prior-aware teacher, initialised with soft labels of other networks: for sources from which
alone a network starts badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Outputs, State
from askew.methods.losses import soft_cross_entropy
from askew.methods.teacher import PriorAwareTeacher
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class GuidedTeacher(PriorAwareTeacher):
    """The student first learns the soft labels of other networks, then its average's confident
    predictions.

    Assumes: as the teacher, but for its start: many of the given soft labels r(x) are right.
        `askew adapt` gives those of its candidates; without any, they are the network's own
        predictions at the beginning.
    Minimises: what the teacher minimises, but for its agreement, of which (1 − w) is left beside
        w·γ·E_t −Σ_k r_k(x) log h_k(x₁), with w = max(0, 1 − t/u), t being progress from 0 to 1. In
        the first round the even draw goes by the given soft labels too.
    Cites: G. Hinton, O. Vinyals, J. Dean, Distilling the knowledge in a neural network, 2015; what
        the teacher cites.
    Use when: a network is fine-tuned that is near chance on the target before it has seen it, and a
        frozen one is not.
    """

    id = "guided"
    takes_soft_labels = True

    guidance: Annotated[float, Between(0), Search(0.3, 3, log=True)] = 1.0
    """Weight γ of the given soft labels at the beginning."""
    until: Annotated[float, Between(0.01, 1), Search(0.2, 1)] = 0.5
    """Progress u at which nothing of that weight is left."""

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {} if round else {"soft": given_soft_labels(outputs)}

    def pseudo_labels(self, outputs: Outputs, round: int) -> Tensor:
        return (
            super().pseudo_labels(outputs, round)
            if round
            else given_soft_labels(outputs).argmax(dim=-1)
        )

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        losses, zt = self.terms(net, batch)
        w = (1 - t / self.until).clamp(min=0)
        guided = self.guidance * soft_cross_entropy(zt, state["soft"][batch.it])
        return losses | {"agree": (1 - w) * losses["agree"], "soft": w * guided}


def given_soft_labels(outputs: Outputs) -> Tensor:
    """Soft labels of other networks, else the network's own probabilities. (n_t, c)"""
    return outputs.target.softmax(dim=-1) if outputs.soft_labels is None else outputs.soft_labels
