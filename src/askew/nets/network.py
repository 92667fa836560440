"""Networks: features (uint8 images or float rows in, one vector out) and heads (vector in, logits out)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from askew.core import random
from askew.core.errors import UserError
from askew.nets.backbones import backbone
from askew.nets.layers import CosineHead, Crop, Dropout, LinearHead
from askew.nets.small import OWN
from askew.nets.spec import NetSpec


class Net(nn.ModuleDict):
    """`net["features"]`, `net["head"]` and whatever parts a method adds, each by its name."""

    def __init__(self, parts: Mapping[str, nn.Module], width: int, split_norm: bool) -> None:
        super().__init__(dict(parts))
        self.width = width
        self.split_norm = split_norm
        self._step_key = torch.zeros((), dtype=torch.int64)

    def share_step_key(self) -> None:
        """Give all dropouts and crops one clock on the device they are on, so that setting it is one copy."""
        self._step_key = torch.zeros((), dtype=torch.int64, device=next(self.parameters()).device)
        for module in self.modules():
            if isinstance(module, Dropout | Crop):
                module.step_key = self._step_key

    def set_step_key(self, step_key: Tensor) -> None:
        """Tell every dropout and crop which moment it is, without leaving the device."""
        self._step_key.copy_(step_key)


@functools.cache
def check(spec: NetSpec, shape: tuple[int, ...]) -> None:
    """UserError if there is no such network, or it does not take such inputs. Costs nothing: no weights are made."""
    if spec.norm == "kept" and (spec.name in OWN or spec.weights == "none"):
        raise UserError(
            f"The network {spec.name} starts from nothing, so it has no statistics to keep.",
            "-t norm=joint or split, or starting weights with -t weights=….",
        )
    with torch.device("meta"):
        build(dataclasses.replace(spec, weights="none" if spec.name not in OWN else spec.weights), shape, 2, 0)


def new_head(spec: NetSpec, width: int, classes: int) -> nn.Module:
    """A head as the spec names it, with fresh weights."""
    return CosineHead(width, classes, spec.temperature) if spec.head == "cosine" else LinearHead(width, classes)


def build(spec: NetSpec, shape: tuple[int, ...], classes: int, seed: int) -> tuple[dict[str, nn.Module], int]:
    """Features and head with weights drawn from the seed, and the width between them."""
    if spec.name in OWN and spec.weights != "none":
        raise UserError(f"The network {spec.name} has no starting weights to load.", "leave -t weights out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random.key("net", seed))
        features, width = OWN[spec.name](shape) if spec.name in OWN else backbone(spec, shape)
        head = new_head(spec, width, classes)
    return {"features": features, "head": head}, width
