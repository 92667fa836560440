"""Which device to compute on, and how many rows it is given at a time."""

from __future__ import annotations

import torch

from askew.core.errors import UserError
from askew.core.options import shown
from askew.core.processor import leave_hidden_tiles

leave_hidden_tiles()  # whoever computes imports this module first

PREDICT_ROWS, PREDICT_NUMBERS = 1024, 2**24
"""Most rows, and most pixels or features in them, that go through a network at a time."""
LANE_ROWS = 4096
"""Most rows at a time, over all lanes together."""

_DEVICES = "auto, cpu, cuda, cuda:N, or mps."


def pick_device(name: str | torch.device) -> torch.device:
    """The device of that name; `auto` is the first CUDA device if there is one, else the CPU."""
    if not isinstance(name, str | torch.device):
        raise UserError(f"The device must be text, found {shown(name)}.", _DEVICES)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device '{name}'.", _DEVICES) from None
    if not _available(device):
        raise UserError(f"The device '{name}' cannot be used here.", _DEVICES)
    return device


def wide(device: torch.device) -> torch.dtype:
    """float64 where the device has it: Apple's GPUs do not."""
    return torch.float32 if device.type == "mps" else torch.float64


def _available(device: torch.device) -> bool:
    match device.type:
        case "cpu":
            return True
        case "cuda":
            return torch.cuda.is_available()
        case "mps":
            return torch.backends.mps.is_available()
        case _:
            return False
