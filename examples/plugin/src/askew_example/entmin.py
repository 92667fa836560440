"""Entropy minimisation (Grandvalet and Bengio 2004) as a method of another package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from askew.methods import Batch, Between, Losses, Method, Net, Search, State, join_domains
from askew.methods.losses import cross_entropy, entropy


@dataclass(frozen=True, kw_only=True)
class EntropyMinimisation(Method):
    """Makes predictions on the target confident."""

    id = "entmin"

    weight: Annotated[float, Between(0), Search(0.01, 1, log=True)] = 0.1
    """Weight of the target's entropy."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, ft = join_domains(net, batch)
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "entropy": self.weight * entropy(net["head"](ft)),
        }
