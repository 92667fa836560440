"""Which runs can be trained as lanes of one step, and how many of them pay."""

from __future__ import annotations

import json

import torch

from askew.core.options import options
from askew.methods.base import ClosedForm, Method
from askew.nets.small import OWN
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
    """How many runs to train in one step: small networks leave most of a GPU idle, large ones and CPUs gain nothing."""
    if device.type != "cuda" or run.net.name not in OWN or isinstance(run.method, ClosedForm):
        return 1
    return 16 if run.net.name == "digits-32" else 64
