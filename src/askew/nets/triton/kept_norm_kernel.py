"""The backward pass of a batch norm by kept statistics, as one Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

PROGRAMS = 1056
"""Eight for each of an H200's processors; enough for smaller GPUs."""
PIXELS, CHANNELS = 32, 64


@triton.jit
def backward(g, x, dx, parts, scale, mean, rstd, M, C, ROWS, BM: tl.constexpr, BC: tl.constexpr):
    """dx = g·scale of ROWS pixels, and their sums Σ g·x̂ and Σ g as parts[t, 0 and 1, c]. (M, C),
    channels last."""
    t = tl.program_id(0)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    known = c < C
    k = tl.load(scale + c, mask=known, other=0.0)[None, :]
    mu = tl.load(mean + c, mask=known, other=0.0)[None, :]
    r = tl.load(rstd + c, mask=known, other=0.0)[None, :]
    dweight = tl.zeros((BM, BC), dtype=tl.float32)
    dbias = tl.zeros((BM, BC), dtype=tl.float32)
    for start in range(0, ROWS, BM):
        m = (t * ROWS + start + tl.arange(0, BM)).to(tl.int64)
        here = (m < M)[:, None] & known[None, :]
        place = m[:, None] * C + c[None, :]
        gradient = tl.load(g + place, mask=here, other=0.0).to(tl.float32)
        value = tl.load(x + place, mask=here, other=0.0).to(tl.float32)
        tl.store(dx + place, gradient * k, mask=here)
        dweight += gradient * ((value - mu) * r)
        dbias += gradient
    tl.store(parts + 2 * t * C + c, tl.sum(dweight, axis=0), mask=known)
    tl.store(parts + (2 * t + 1) * C + c, tl.sum(dbias, axis=0), mask=known)


class KeptNorm(torch.autograd.Function):
    """y = (x − mean)/√(var + ε)·weight + bias of images that lie channels last in memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.eps = eps
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        rstd = torch.rsqrt(var + ctx.eps)
        n, channels, high, wide = x.shape
        pixels, dx = n * high * wide, torch.empty_like(x)
        across = triton.cdiv(channels, CHANNELS)
        rows = PIXELS * triton.cdiv(pixels, PIXELS * max(1, PROGRAMS // across))
        grid = triton.cdiv(pixels, rows), across
        parts = x.new_empty((grid[0], 2, channels), dtype=torch.float32)
        backward[grid](
            g, x, dx, parts, weight * rstd, mean, rstd, pixels, channels, rows, PIXELS, CHANNELS
        )
        dweight, dbias = parts.sum(dim=0)
        return dx, dweight, dbias, None, None, None
