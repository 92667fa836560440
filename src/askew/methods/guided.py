"""The prior-aware teacher that begins with answers of others: a good start where the source alone
is a poor one."""

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
    """The student first learns what others answered for the target's images, then what its average
    is sure of.

    Assumes: as the teacher, but for its start: of the given answers r(x), many are right. `askew
        adapt` gives those of its networks on embeddings, then fine-tuned ones' too; without any,
        they are those of the network as it begins.
    Minimises: what the teacher minimises, but for its agreement, of which (1 − w) is left beside
        w·γ·E_t −Σ_k r_k(x) log h_k(x₁), with w = max(0, 1 − t/u), t being progress from 0 to 1. In
        the first round the even draw goes by the given answers too.
    Cites: G. Hinton, O. Vinyals, J. Dean, Distilling the knowledge in a neural network, 2015; what
        the teacher cites.
    Use when: a network is fine-tuned that is near chance on the target before it has seen it, and a
        frozen one is not.
    """

    id = "guided"
    takes_answers = True

    guidance: Annotated[float, Between(0), Search(0.3, 3, log=True)] = 1.0
    """Weight γ of the given answers to begin with."""
    until: Annotated[float, Between(0.01, 1), Search(0.2, 1)] = 0.5
    """Progress u at which nothing of that weight is left."""

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {} if round else {"answers": given_answers(outputs)}

    def pseudo_labels(self, outputs: Outputs, round: int) -> Tensor:
        return (
            super().pseudo_labels(outputs, round)
            if round
            else given_answers(outputs).argmax(dim=-1)
        )

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        losses, zt = self.terms(net, batch)
        w = (1 - t / self.until).clamp(min=0)
        guided = self.guidance * soft_cross_entropy(zt, state["answers"][batch.it])
        return losses | {"agree": (1 - w) * losses["agree"], "answers": w * guided}


def given_answers(outputs: Outputs) -> Tensor:
    """Those of others, or those of the network itself. (n_t, c)"""
    return outputs.target.softmax(dim=-1) if outputs.answers is None else outputs.answers
