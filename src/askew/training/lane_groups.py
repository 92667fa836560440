"""Which runs can be trained as lanes of one step, how many of them pay, and how their tensors lie
together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from askew.core.options import options
from askew.methods.base import ClosedForm, Method, State
from askew.nets.network import Net
from askew.training.batches import DomainTensor, Feed
from askew.training.run import Run

DIFFERENT = ("task", "shift", "draw", "origin", "seed")
"""What may differ from lane to lane, beside the method's float hyper-parameters."""


def float_options(method: Method) -> list[str]:
    """The hyper-parameters that are numbers to compute with, so that each lane may have its own."""
    return [name for name, option in options(type(method)).items() if option.type is float]


def lane_shape(run: Run) -> str:
    """Equal for runs that can share a step, given data of the same kind."""
    values = {name: value for name, value in run.describe().items() if name not in DIFFERENT}
    last = values["plan"][-1]["method"]["options"]
    for name in float_options(run.method):
        del last[name]
    return json.dumps(values, sort_keys=True)


def lanes_that_pay(run: Run, device: torch.device) -> int:
    """How many runs to train in one step: small networks leave most of a GPU idle, large ones and
    CPUs gain nothing."""
    large = run.net.embedding is not None
    alone = bool(run.method.runner) or isinstance(run.method, ClosedForm)
    if device.type != "cuda" or large or alone:
        return 1
    return 16 if run.net.layers == "digits-32" else 64


class Call(nn.Module):
    """A network whose forward pass is any function of it, for `functional_call`."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(self.net, *args)


@dataclass(frozen=True)
class Block:
    """Neighbouring lanes that learn from the same training data."""

    feed: Feed
    lanes: slice
    source_offset: int
    target_offset: int


def stacked(named: Sequence[dict[str, Tensor]], device: torch.device) -> dict[str, Tensor]:
    """The lanes' tensors of each name as one, lanes first."""
    return {
        name: torch.stack([own[name].detach() for own in named]).to(device) for name in named[0]
    }


def inside(params: State, buffers: State) -> dict[str, Tensor]:
    """A network's tensors by the names that `Call` has for them."""
    return {f"net.{name}": value for named in (params, buffers) for name, value in named.items()}


def blocks(feeds: Sequence[Feed]) -> list[Block]:
    blocks: list[Block] = []
    lane = source = target = 0
    for _, same in groupby(feeds, key=id):
        members = list(same)
        feed = members[0]
        blocks.append(Block(feed, slice(lane, lane + len(members)), source, target))
        lane, source, target = (
            lane + len(members),
            source + len(feed.source),
            target + len(feed.target),
        )
    return blocks


def joined(domains: Sequence[DomainTensor]) -> DomainTensor:
    return domains[0] if len(domains) == 1 else DomainTensor.joined(domains)
