"""`bits`, `uniform` and `normal` of askew.core.random, by one kernel on a GPU: views draw a number
for every pixel."""

from __future__ import annotations

from torch import Tensor

from askew.core import random
from askew.nets.triton.trust import tried, usable


def bits(keys: Tensor, stream: str, *shape: int) -> Tensor:
    """The same hashes. (…,) → (…, *shape) int64"""
    return _drawn("bits", keys, stream, shape)


def uniform(keys: Tensor, stream: str, *shape: int) -> Tensor:
    """The same numbers from [0, 1). (…,) → (…, *shape)"""
    return _drawn("uniform", keys, stream, shape)


def normal(keys: Tensor, stream: str, *shape: int) -> Tensor:
    """The same standard normal numbers, to rounding. (…,) → (…, *shape)"""
    return _drawn("normal", keys, stream, shape)


def _drawn(kind: str, keys: Tensor, stream: str, shape: tuple[int, ...]) -> Tensor:
    if not _trusted(kind, keys, shape):
        return random.DRAWS[kind](keys, stream, *shape)
    from askew.nets.triton.draw_kernel import draw

    return draw(kind, keys, stream, shape)


def _trusted(kind: str, keys: Tensor, shape: tuple[int, ...]) -> bool:
    """The views of lanes are made outside of vmap."""
    return usable(keys) and tried("random draw", ((64,),), (kind, shape), keys.device)
