"""Triton kernels for stacked layers on a GPU: norm, ReLU and pool in one; with `Conv`, all that lanes use.

Activations are (lanes, channels, images, height, width), contiguous but for a convolution's input. `lanes.layers`
computes the same with torch's own functions, and is what these are tested against: by the tests, and once per shape on
the machine they run on. Sides of images are not `constexpr`, though that is faster: Triton 3.6 then makes code for some
of them (16 pixels, pools of 3 and 2; 32 → 48 channels) that computes wrong gradients.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from askew.nets.lanes.conv_kernels import Conv

__all__ = ["Conv", "NormReluPool"]


@triton.jit
def _statistics(x, mean, rstd, running_mean, running_var, M, momentum, eps, BLOCK: tl.constexpr):
    """Mean and 1/σ of each row (a channel of a lane), and the running statistics.

    In one pass, from sums of x − x₀ and of its square: a value of the row itself is near enough to the mean.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * M
    first = tl.load(x)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, M, BLOCK):
        at = start + tl.arange(0, BLOCK)
        apart = tl.where(at < M, tl.load(x + at, mask=at < M, other=0.0) - first, 0.0)
        total += apart
        squares += apart * apart
    shift = tl.sum(total) / M
    spread = tl.maximum(tl.sum(squares) - shift * shift * M, 0.0)
    mu = first + shift
    tl.store(mean + row, mu)
    tl.store(rstd + row, 1 / tl.sqrt(spread / M + eps))
    tl.store(running_mean + row, (1 - momentum) * tl.load(running_mean + row) + momentum * mu)
    tl.store(running_var + row, (1 - momentum) * tl.load(running_var + row) + momentum * spread / (M - 1))


@triton.jit
def _norm_relu_pool(
    x, mean, rstd, weight, bias, out, where, N, H, W, HO, WO,
    P: tl.constexpr, S: tl.constexpr, Q: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = max(0, max over the window of (x − μ)/σ·γ + β); `where` says which pixel it was, −1 for none above 0."""
    row = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    n, r = at // (HO * WO), at % (HO * WO)
    y0, z0 = (r // WO) * S - Q, (r % WO) * S - Q
    a = tl.load(weight + row) * tl.load(rstd + row)
    b = tl.load(bias + row) - tl.load(mean + row) * a
    best = tl.zeros((BLOCK,), dtype=tl.float32)
    which = tl.full((BLOCK,), -1, dtype=tl.int32)
    for i in tl.static_range(P):
        for j in tl.static_range(P):
            y, z = y0 + i, z0 + j
            inside = (at < N * HO * WO) & (y >= 0) & (y < H) & (z >= 0) & (z < W)
            value = tl.load(x + (row * N + n) * (H * W) + y * W + z, mask=inside, other=0.0) * a + b
            better = inside & (value > best)
            best = tl.where(better, value, best)
            which = tl.where(better, i * P + j, which)
    place = row * (N * HO * WO) + at
    tl.store(out + place, best, mask=at < N * HO * WO)
    tl.store(where + place, which.to(tl.int8), mask=at < N * HO * WO)


@triton.jit
def _norm_sums(
    x, mean, rstd, g, where, dweight, dbias, N, H, W, HO, WO,
    P: tl.constexpr, S: tl.constexpr, Q: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dbias = Σ g and dweight = Σ g·x̂ of each row, over the pixels that the pool let through."""
    row = tl.program_id(0).to(tl.int64)
    mu, scale = tl.load(mean + row), tl.load(rstd + row)
    plain = tl.zeros((BLOCK,), dtype=tl.float32)
    along = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, N * HO * WO, BLOCK):
        at = start + tl.arange(0, BLOCK)
        here = at < N * HO * WO
        which = tl.load(where + row * (N * HO * WO) + at, mask=here, other=-1).to(tl.int32)
        through = here & (which >= 0)
        n, r = at // (HO * WO), at % (HO * WO)
        y, z = (r // WO) * S - Q + which // P, (r % WO) * S - Q + which % P
        value = tl.load(x + (row * N + n) * (H * W) + y * W + z, mask=through, other=0.0)
        d = tl.load(g + row * (N * HO * WO) + at, mask=through, other=0.0)
        plain += d
        along += tl.where(through, d * (value - mu) * scale, 0.0)
    tl.store(dbias + row, tl.sum(plain))
    tl.store(dweight + row, tl.sum(along))


@triton.jit
def _norm_backward(
    x, mean, rstd, weight, g, where, dweight, dbias, dx, N, H, W, HO, WO,
    P: tl.constexpr, S: tl.constexpr, Q: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx = γ/σ·(d − mean(d) − x̂·mean(d·x̂)), where d is g of the windows that let this pixel through."""
    row = tl.program_id(1).to(tl.int64)
    M = N * H * W
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < M
    n, r = at // (H * W), at % (H * W)
    y, z = r // W, r % W
    scale = tl.load(rstd + row)
    d = tl.zeros((BLOCK,), dtype=tl.float32)
    for a in tl.static_range((P + S - 1) // S):
        for b in tl.static_range((P + S - 1) // S):
            py, pz = (y + Q) // S - a, (z + Q) // S - b
            i, j = y + Q - py * S, z + Q - pz * S
            inside = here & (py >= 0) & (py < HO) & (pz >= 0) & (pz < WO) & (i < P) & (j < P)
            place = row * (N * HO * WO) + n * (HO * WO) + py * WO + pz
            which = tl.load(where + place, mask=inside, other=-1).to(tl.int32)
            d += tl.load(g + place, mask=inside & (which == i * P + j), other=0.0)
    hat = (tl.load(x + row * M + at, mask=here, other=0.0) - tl.load(mean + row)) * scale
    rest = d - tl.load(dbias + row) / M - hat * tl.load(dweight + row) / M
    tl.store(dx + row * M + at, tl.load(weight + row) * scale * rest, mask=here)


def _block(n: int, most: int = 1024) -> int:
    return max(32, min(most, triton.next_power_of_2(n)))


ROW = 4096
"""Numbers that a program which sums up a row has in flight."""


class NormReluPool(torch.autograd.Function):
    """max pool (size, stride, padding) of the ReLU of a batch norm in training; running statistics change in place.

    (lanes, c, n, h, w), four of (lanes, c) → (lanes, c, n, h', w')
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
        momentum: float, eps: float, pool: tuple[int, int, int], training: bool,
    ) -> Tensor:  # fmt: skip
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        n, h, w = x.shape[2:]
        rows, m = weight.numel(), n * h * w
        p, s, q = pool
        ho, wo = (h + 2 * q - p) // s + 1, (w + 2 * q - p) // s + 1
        if training:
            own_mean, rstd = torch.empty(rows, device=x.device), torch.empty(rows, device=x.device)
            _statistics[(rows,)](x, own_mean, rstd, mean, var, m, momentum, eps, BLOCK=_block(m, ROW), num_warps=8)
        else:
            own_mean, rstd = mean.flatten(), (var.flatten() + eps).rsqrt()
        out = torch.empty(*x.shape[:3], ho, wo, device=x.device)
        where = torch.empty(out.shape, device=x.device, dtype=torch.int8)
        size = n * ho * wo
        _norm_relu_pool[(triton.cdiv(size, _block(size)), rows)](
            x, own_mean, rstd, weight, bias, out, where, n, h, w, ho, wo, P=p, S=s, Q=q, BLOCK=_block(size)
        )
        ctx.save_for_backward(x, weight, own_mean, rstd, where)
        ctx.pool = pool
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd, where = ctx.saved_tensors
        g = g.contiguous()
        n, h, w = x.shape[2:]
        ho, wo = g.shape[3:]
        rows, m, size = weight.numel(), n * h * w, n * ho * wo
        p, s, q = ctx.pool
        dweight, dbias, dx = torch.empty_like(weight), torch.empty_like(weight), torch.empty_like(x)
        _norm_sums[(rows,)](x, mean, rstd, g, where, dweight, dbias, n, h, w, ho, wo, P=p, S=s, Q=q, BLOCK=_block(size))
        _norm_backward[(triton.cdiv(m, _block(m)), rows)](
            x, mean, rstd, weight, g, where, dweight, dbias, dx, n, h, w, ho, wo, P=p, S=s, Q=q, BLOCK=_block(m)
        )
        return dx, dweight, dbias, *[None] * 6
