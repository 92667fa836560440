"""One forward pass over any number of inputs, in chunks that fit the device; backbones in its
fastest arithmetic."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.device import LANE_ROWS, PREDICT_NUMBERS, PREDICT_ROWS
from askew.core.processor import processor
from askew.nets.adabn import DomainNorms
from askew.nets.backbones import FAST, Backbone

Forward = Callable[[Tensor], Tensor]

_ALIKE = {
    torch.bfloat16: 0.05,
    torch.float32: 1e-4,
}  # relative distance of two computations that are the same


class Inputs(Protocol):
    """An array, or anything else that has its shape and whose slices are arrays."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> NDArray[Any]: ...


def chunk_rows(shape: Sequence[int], lanes: int = 1) -> int:
    """How many inputs of a shape are forwarded together, by each of the networks that compute side
    by side."""
    most = PREDICT_ROWS if lanes == 1 else LANE_ROWS // lanes
    return max(16, min(most, PREDICT_NUMBERS // math.prod(shape) // lanes))


def forward_in_chunks(
    forward: Forward, x: Inputs, device: torch.device, rows: int = 0
) -> NDArray[np.float32]:
    """What a network in evaluation mode returns for one input or more, without gradients. (n, …) →
    (n, …)

    A chunk has `rows` inputs, or as many as `chunk_rows` says.
    """
    n, size = x.shape[0], rows or chunk_rows(x.shape[1:])
    with torch.inference_mode():
        chunks = [
            forward(_tensor(x[i : i + size]).to(device)).float().cpu() for i in range(0, n, size)
        ]
        y: NDArray[np.float32] = torch.cat(chunks).numpy()
    return y


def _tensor(x: NDArray[Any]) -> Tensor:
    return torch.from_numpy(
        np.require(x, requirements=["C", "W"])
    )  # torch has no read-only tensors


# --- backbones that are not trained ---


def channels_last(network: nn.Module) -> None:
    """Lay out the weights of backbones channels last in memory, where convolutions of pictures are
    fastest.

    A network of somebody's own stays as it is: whoever wrote it may count on the usual order.
    """
    for module in network.modules():
        if isinstance(module, Backbone):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextlib.contextmanager
def fast_backbones(network: nn.Module, rows: int = 0) -> Iterator[None]:
    """Meanwhile backbones compute in bfloat16 in this thread, where the device multiplies in it
    natively.

    On a CPU, batches of exactly `rows` images are computed by a graph of fused layers, in bfloat16
    or not, which takes seconds to make, and computes in about 60 % of the time (ResNet-50, float32,
    AVX-512: 41 ms for 67).
    """
    ways = [
        (module.body, True)
        for module in network.modules()
        if isinstance(module, DomainNorms) and module.both
    ]
    ways += [(module, False) for module in network.modules() if isinstance(module, Backbone)]
    known = FAST.get()
    made = {way: _quickened(*way, rows) for way in ways if way not in known}
    FAST.set({**known, **{way: fast for way, fast in made.items() if fast is not None}})
    try:
        yield
    finally:
        FAST.set({way: fast for way, fast in FAST.get().items() if way not in made})


def _quickened(module: Backbone, original: bool, rows: int) -> Forward | None:
    """What computes a backbone under one set of statistics; None where nothing is faster."""
    device = next(module.parameters()).device
    body = module.by_statistics(original)
    precision = torch.bfloat16 if fast_bfloat16(device) else torch.float32
    on_cpu = rows and device.type == "cpu"
    fused = None
    if on_cpu:
        with _FUSING:
            fused = _fused(body, module.size, rows, precision)
    if fused is None and precision is not torch.bfloat16:
        return None
    return functools.partial(_compute, body, fused, rows, precision)


@functools.cache
def fast_bfloat16(device: torch.device) -> bool:
    """Whether a device is faster in bfloat16; others would only imitate it."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and processor().multiplies_bfloat16


_FUSING = threading.Lock()  # fusion is a switch of the whole process


def _compute(
    body: nn.Module, fused: Forward | None, rows: int, precision: torch.dtype, x: Tensor
) -> Tensor:
    if fused is not None and len(x) == rows:
        return fused(x)
    with torch.autocast(x.device.type, torch.bfloat16, enabled=precision is torch.bfloat16):
        f: Tensor = body(x)
    return f.float()


def _fused(
    body: nn.Module, size: tuple[int, int], rows: int, precision: torch.dtype
) -> Forward | None:
    """The body as a frozen graph whose convolutions, norms and activations oneDNN fuses; None where
    it has none.

    It is kept only if it says the same as the body.
    """
    x = torch.rand(rows, 3, *size).contiguous(memory_format=torch.channels_last)
    jit: Any = torch.jit  # whose functions have no types
    was_on = jit.onednn_fusion_enabled()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # on tracing: what the graph says is compared below
            jit.enable_onednn_fusion(True)
            copied: Any = copy.deepcopy(body).eval().to(precision)
            copied = copied.to(memory_format=torch.channels_last)
            graph = jit.freeze(jit.trace(copied, x.to(precision), check_trace=False))

            def forward(x: Tensor) -> Tensor:
                f: Tensor = graph(x.contiguous(memory_format=torch.channels_last).to(precision))
                return f.float()

            forward(x)
            forward(x)  # the second pass compiles it
            wanted = _compute(body, None, 0, precision, x)
            sound = (forward(x) - wanted).norm() <= _ALIKE[precision] * wanted.norm()
    except Exception:  # a model that cannot be traced is computed as it is
        return None
    finally:
        jit.enable_onednn_fusion(was_on)
    return forward if sound else None
