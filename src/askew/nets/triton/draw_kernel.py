"""Hashed random numbers, as one Triton kernel: torch takes 25 passes over them."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from askew.core import random

GOLDEN, M1, M2 = tl.constexpr(random.GOLDEN), tl.constexpr(random.M1), tl.constexpr(random.M2)
TURN = tl.constexpr(2 * math.pi * 2**-24)
BLOCK = 1024


@triton.jit
def hash64(position, stream):
    """`askew.core.random.hash64`."""
    z = (position + 1) * GOLDEN + stream
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * M1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * M2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _draw(keys, out, stream, COUNT, SIZE, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """out[n, i] = `askew.core.random`'s draw of keys[n] at position i. (COUNT / SIZE, SIZE)"""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < COUNT
    key = tl.load(keys + place // SIZE, mask=here, other=0)
    both = hash64(hash64(place % SIZE, stream) ^ key, 0)
    high = (both >> 40) & 0xFFFFFF
    if KIND == "bits":
        value = both
    elif KIND == "uniform":
        value = high.to(tl.float32) * 2**-24
    else:
        radius = (high + 1).to(tl.float32) * 2**-24
        angle = ((both >> 16) & 0xFFFFFF).to(tl.float32) * TURN
        value = tl.sqrt(-2 * tl.log(radius)) * tl.cos(angle)
    tl.store(out + place, value, mask=here)


def draw(kind: str, keys: Tensor, stream: str, shape: tuple[int, ...]) -> Tensor:
    """(…,) → (…, *shape)"""
    dtype = torch.int64 if kind == "bits" else torch.float32
    out = torch.empty((*keys.shape, *shape), dtype=dtype, device=keys.device)
    count, size = out.numel(), math.prod(shape)
    if count:
        grid = (triton.cdiv(count, BLOCK),)
        _draw[grid](keys.contiguous(), out, random.stream_key(stream), count, size, kind, BLOCK)
    return out
