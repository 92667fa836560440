"""Methods of a user's own: one that learns, one that fails, and a file with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from askew.methods import Batch, Between, Losses, Net, SourceOnly, State


@dataclass(frozen=True, kw_only=True)
class Louder(SourceOnly):
    """Trains on the source with a weight."""

    id = "louder"
    weight: Annotated[float, Between(0)] = 2.0
    """Weight of the loss."""

    def losses(self, net: Net, batch: Batch, state: State, t: torch.Tensor) -> Losses:
        return {
            name: self.weight * value
            for name, value in super().losses(net, batch, state, t).items()
        }


@dataclass(frozen=True, kw_only=True)
class Broken(SourceOnly):
    """Has a loss that is not finite."""

    id = "broken"

    def losses(self, net: Net, batch: Batch, state: State, t: torch.Tensor) -> Losses:
        return {name: value / 0 for name, value in super().losses(net, batch, state, t).items()}


FILE = """
from dataclasses import dataclass

import askew
from askew.methods.source import SourceOnly


@dataclass(frozen=True, kw_only=True)
class Mine(SourceOnly):
    id = "mine"
"""
"""A file with a method."""
