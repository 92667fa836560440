"""How steps are timed, and the least time that a machine could take for one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from askew.training.loop import Loop
from askew.training.trainer import Trainer


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def advance(loop: Loop[Any], steps: int) -> None:
    """Take that many steps in the trainer's own chunks, from batches that are drawn already."""
    loop.clock.zero_()
    for first in range(0, steps, loop.chunk):
        loop.advance(first, min(loop.chunk, steps - first))


def ceilings(device: torch.device) -> tuple[float, float]:
    """FLOP/s of a large float32 product and byte/s of a large copy, both as reached here."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    size = 2**30 if device.type == "cuda" else 2**26
    block = torch.zeros(size // 4, device=device)
    product = min(seconds(lambda: a @ b, device) for _ in range(5))
    copy = min(seconds(lambda: block.clone(), device) for _ in range(5))
    return 2 * n**3 / product, 2 * size / copy


def counted(loop: Trainer) -> tuple[float, float]:
    """FLOPs of one step, and the least bytes that it has to move: weights, layers' outputs,
    pictures."""
    outputs = 0

    def note(module: nn.Module, args: object, output: object) -> None:
        """An output is written and read; so is its gradient, which a teacher's outputs do not
        have."""
        nonlocal outputs
        if isinstance(output, Tensor) and not list(module.children()):
            outputs += (4 if output.requires_grad else 2) * _size(output)

    hooks = [module.register_forward_hook(note) for module in loop.net.modules()]
    with FlopCounterMode(display=False) as counter:
        loop.step()
    for hook in hooks:
        hook.remove()
    return counter.get_total_flops(), outputs + _weight_bytes(loop) + _picture_bytes(loop)


def _size(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _weight_bytes(loop: Trainer) -> int:
    """A pass reads a weight; one that trains it reads it once more and writes its gradient, then
    SGD reads three numbers and writes two, Adam four and three. A teacher's weight is read by its
    pass; its average reads two numbers and writes one."""
    update = 5 if loop.stage.optim.optimiser == "sgd" else 7
    moved = 4 * sum(_size(own) for own, _ in loop.averaged.values())
    for phase in loop.phases:
        for name, weight in loop.params.items():
            trained = phase.trains is None or name.partition(".")[0] in phase.trains
            moved += phase.repeat * _size(weight) * (3 + update if trained else 1)
    return moved


def _picture_bytes(loop: Trainer) -> int:
    """A view reads uint8 pixels and writes floats, which the network reads; without views, three
    times uint8."""
    method = loop.method
    views = len(method.source_views) + (len(method.target_views) if method.sees_target else 0)
    pixels = loop.run.batch * math.prod(loop.feed.source.x.shape[1:])
    return views * pixels * (3 if loop.views.views == "none" else 9)
