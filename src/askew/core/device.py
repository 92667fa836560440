"""Which device to compute on, and how much it is asked to do at a time."""

from __future__ import annotations

import torch

from askew.core.errors import UserError

PREDICT_ROWS, PREDICT_NUMBERS = 1024, 2**24
"""Most rows, and most pixels or features in them, that are predicted at a time."""
LANE_ROWS = 4096
"""The same over all lanes."""


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device '{name}'.", "auto, cpu, cuda, or cuda:N.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"The device '{name}' cannot be used here.", "auto, cpu, cuda, or cuda:N.")
    return device
