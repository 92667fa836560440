"""Dropout of all lanes as one Triton kernel: torch takes a dozen passes, most of them over hashes
of 64 bits."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from askew.nets.triton.draw_kernel import M1, M2, hash64

BLOCK = 1024


@triton.jit
def _drop(
    x, out, keys, stream, least, scale, COUNT, SIZE, N, D, FIRST: tl.constexpr, BLOCK: tl.constexpr
):
    """out = x·scale where `askew.core.random.keep_mask` of a lane's key keeps place n·D + d, else
    0.

    In memory (l, N, D), or with FIRST (l, D, N); SIZE = N·D.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < COUNT
    within = place % SIZE
    position = (within % N) * D + within // N if FIRST else within
    z = (hash64(position, stream) ^ tl.load(keys + place // SIZE, mask=here, other=0)) * M1
    z = (z ^ (z >> 32)) * M2
    value = tl.load(x + place, mask=here, other=0.0)
    tl.store(
        out + place, tl.where(z >= least, value * scale, 0.0).to(out.dtype.element_ty), mask=here
    )


class Dropped(torch.autograd.Function):
    """`askew.nets.layers.Dropout` by a hashed stream and a hashed step a lane. (l, n, d), (l,) →
    (l, n, d)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, keys: Tensor, stream: int, p: float) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.how = stream, p
        return dropped(x, keys, stream, p)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return dropped(g, *ctx.saved_tensors, *ctx.how), None, None, None


def dropped(x: Tensor, keys: Tensor, stream: int, p: float) -> Tensor:
    first = x.mT.is_contiguous()  # as dense layers of lanes leave it
    x = x if first else x.contiguous()
    out = torch.empty_like(x)
    _, n, d = x.shape
    if x.numel():
        grid = (triton.cdiv(x.numel(), BLOCK),)
        least = int(p * 2**64) - 2**63
        _drop[grid](
            x,
            out,
            keys.contiguous(),
            stream,
            least,
            1 / (1 - p),
            x.numel(),
            n * d,
            n,
            d,
            first,
            BLOCK,
        )
    return out
