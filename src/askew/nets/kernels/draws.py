"""`uniform` and `normal` of askew.core.random, by one kernel on a GPU: views draw a number for every pixel."""

from __future__ import annotations

import torch
from torch import Tensor

from askew.core import random
from askew.nets.lanes.trust import has_triton, tried


def uniform(keys: Tensor, stream: str, *shape: int) -> Tensor:
    """The same numbers from [0, 1). (…,) → (…, *shape)"""
    return _drawn(keys, stream, shape, normal=False)


def normal(keys: Tensor, stream: str, *shape: int) -> Tensor:
    """The same standard normal numbers, to rounding. (…,) → (…, *shape)"""
    return _drawn(keys, stream, shape, normal=True)


def _drawn(keys: Tensor, stream: str, shape: tuple[int, ...], normal: bool) -> Tensor:
    if not _trusted(keys, shape, normal):
        return (random.normal if normal else random.uniform)(keys, stream, *shape)
    from askew.nets.kernels.draw_kernel import draw

    return draw(keys, stream, shape, normal)


def _trusted(keys: Tensor, shape: tuple[int, ...], normal: bool) -> bool:
    if not keys.is_cuda or not has_triton() or torch._C._functorch.is_functorch_wrapped_tensor(keys):
        return False  # under vmap torch's own; the views of lanes are made outside of it
    return tried("random draw", ((64,),), (shape, normal), keys.device)
