"""One forward pass over any number of inputs, in chunks that fit the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.core.device import LANE_ROWS, PREDICT_NUMBERS, PREDICT_ROWS


class Inputs(Protocol):
    """An array, or anything else that has its shape and whose slices are arrays."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


def chunk_rows(shape: Sequence[int], lanes: int = 1) -> int:
    """How many inputs of a shape are forwarded together, by each of the networks that compute side by side."""
    most = PREDICT_ROWS if lanes == 1 else LANE_ROWS // lanes
    return max(16, min(most, PREDICT_NUMBERS // math.prod(shape) // lanes))


def forward_in_chunks(
    forward: Callable[[Tensor], Tensor], x: Inputs, device: torch.device, rows: int = 0
) -> NDArray[np.float32]:
    """What a network in evaluation mode returns for one input or more, without gradients. (n, …) → (n, …)

    A chunk has `rows` inputs, or as many as `chunk_rows` says.
    """
    n, size = x.shape[0], rows or chunk_rows(x.shape[1:])
    with torch.inference_mode():
        chunks = [forward(_tensor(x[i : i + size]).to(device)).float().cpu() for i in range(0, n, size)]
        y: NDArray[np.float32] = torch.cat(chunks).numpy()
    return y


def _tensor(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(x, requirements=["C", "W"]))  # torch has no read-only tensors
