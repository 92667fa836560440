"""`uniform` and `normal` of askew.core.random, by one kernel on a GPU: views draw a number for every pixel."""

from __future__ import annotations

from torch import Tensor

from askew.core import random
from askew.nets.lanes.trust import tried, usable


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
    """The views of lanes are made outside of vmap."""
    return usable(keys) and tried("random draw", ((64,),), (shape, normal), keys.device)
