"""One forward pass over any number of inputs, in chunks that fit the device; backbones in its fastest arithmetic."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.device import LANE_ROWS, PREDICT_NUMBERS, PREDICT_ROWS
from askew.nets.adabn import TwoNorms
from askew.nets.backbones import Backbone

Forward = Callable[[Tensor], Tensor]

_ALIKE = 0.05  # relative distance of two computations in bfloat16 that are the same


class Inputs(Protocol):
    """An array, or anything else that has its shape and whose slices are arrays."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


def chunk_rows(shape: Sequence[int], lanes: int = 1) -> int:
    """How many inputs of a shape are forwarded together, by each of the networks that compute side by side."""
    most = PREDICT_ROWS if lanes == 1 else LANE_ROWS // lanes
    return max(16, min(most, PREDICT_NUMBERS // math.prod(shape) // lanes))


def forward_in_chunks(forward: Forward, x: Inputs, device: torch.device, rows: int = 0) -> NDArray[np.float32]:
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


# --- backbones that are not trained ---


def channels_last(network: nn.Module) -> None:
    """Lay out the weights of backbones channels last in memory, where convolutions of pictures are fastest.

    A network of somebody's own stays as it is: whoever wrote it may count on the usual order.
    """
    for module in network.modules():
        if isinstance(module, Backbone):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextlib.contextmanager
def fast_backbones(network: nn.Module, shape: tuple[int, ...], rows: int = 0) -> Iterator[None]:
    """Meanwhile backbones compute in bfloat16, where the device multiplies in it natively.

    On a CPU, batches of exactly `rows` images of the shape are computed by a graph of fused layers, which takes seconds
    to make.
    """
    found = [module for module in network.modules() if isinstance(module, Backbone) and module.fast is None]
    twice = [module for module in network.modules() if isinstance(module, TwoNorms) and module.body in found]
    try:
        if found and fast_bfloat16(next(network.parameters()).device):
            for module in found:
                _quicken(module, rows, shape)
            for both in twice:
                with both.kept():  # fused layers hold the statistics that they were made with
                    _quicken(both.body, rows, shape)
        yield
    finally:
        for module in found:
            module.fast = None
        for both in twice:
            both.kept_fast = None


def _quicken(module: Backbone, rows: int, shape: tuple[int, ...]) -> None:
    on_cpu = next(module.parameters()).device.type == "cpu"
    fused = _fused(module, (rows, *shape)) if rows and on_cpu else None
    module.fast = functools.partial(_in_bfloat16, module.body, fused, rows)


@functools.cache
def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies in bfloat16 natively; others would only imitate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # which older versions of torch do not have
    return device.type == "cpu" and any(getattr(torch.cpu, name, bool)() for name in asked)


def _in_bfloat16(body: nn.Module, fused: Forward | None, rows: int, x: Tensor) -> Tensor:
    if fused is not None and len(x) == rows:
        return fused(x)
    with torch.autocast(x.device.type, torch.bfloat16):
        f: Tensor = body(x)
    return f.float()


def _fused(backbone: Backbone, shape: tuple[int, ...]) -> Forward | None:
    """The body as a frozen graph whose convolutions, norms and activations oneDNN fuses; None where it has none.

    It is kept only if it says the same as the body.
    """
    x = torch.rand(shape[0], 3, *backbone.size).contiguous(memory_format=torch.channels_last)
    jit: Any = torch.jit  # whose functions have no types
    was_on = jit.onednn_fusion_enabled()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # on tracing: what the graph says is compared below
            jit.enable_onednn_fusion(True)
            body: Any = copy.deepcopy(backbone.body).eval().bfloat16()
            body = body.to(memory_format=torch.channels_last)
            graph = jit.freeze(jit.trace(body, x.bfloat16(), check_trace=False))

            def forward(x: Tensor) -> Tensor:
                f: Tensor = graph(x.contiguous(memory_format=torch.channels_last).bfloat16())
                return f.float()

            forward(x)
            forward(x)  # the second pass compiles it
            wanted = _in_bfloat16(backbone.body, None, 0, x)
            sound = (forward(x) - wanted).norm() <= _ALIKE * wanted.norm()
    except Exception:  # a model that cannot be traced is computed as it is
        return None
    finally:
        jit.enable_onednn_fusion(was_on)
    return forward if sound else None
