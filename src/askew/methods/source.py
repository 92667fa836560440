"""Source only: no adaptation, the line that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from askew.methods.base import Batch, Losses, Method, State
from askew.methods.losses import cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class SourceOnly(Method):
    """Trains on the labelled source alone.

    Assumes: nothing about the target.
    Minimises: cross-entropy on source, E_s −log h(x)[y].
    Use when: always, as what every other method has to beat.
    """

    id = "source"
    sees_target = False

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": cross_entropy(net["head"](net["features"](batch.xs)), batch.ys)}
