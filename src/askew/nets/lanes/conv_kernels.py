"""Triton kernels for stacked layers on a GPU: convolutions without patches in memory.

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

SPLITS = 8 * 132
"""Programs that a sum over all pixels is spread over, so that a few lanes fill a large GPU too."""


@triton.jit
def _patches(x, k, m, M, C, H, W, HO, WO, PAD, sc, sn, sh, sw, KS: tl.constexpr):
    """X[k, m]: pixel k = (channel, row, column of the kernel) of the patch m = (image, row, column of the output)."""
    c, i, j = k // (KS * KS), (k // KS) % KS, k % KS
    n, r = m // (HO * WO), m % (HO * WO)
    y = (r // WO)[None, :] + i[:, None] - PAD
    z = (r % WO)[None, :] + j[:, None] - PAD
    inside = (c < C)[:, None] & (m < M)[None, :] & (y >= 0) & (y < H) & (z >= 0) & (z < W)
    return tl.load(x + (c * sc)[:, None] + (n * sn)[None, :] + y * sh + z * sw, mask=inside, other=0.0)


@triton.jit
def _convolve(
    x, weight, bias, out, M, C, CO, H, W, HO, WO, PAD, sl, sc, sn, sh, sw,
    KS: tl.constexpr, BIAS: tl.constexpr, BC: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """out[l, co, m] = bias[l, co] + Σ_k weight[l, co, k]·X[l, k, m]"""
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    K = C * KS * KS
    acc = tl.zeros((BC, BM), dtype=tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        w = tl.load(
            weight + lane * CO * K + co[:, None] * K + k[None, :], mask=(co < CO)[:, None] & (k < K)[None, :], other=0.0
        )
        p = _patches(x + lane * sl, k, m, M, C, H, W, HO, WO, PAD, sc, sn, sh, sw, KS)
        acc = tl.dot(w, p, acc, input_precision=HOW)
    if BIAS:
        acc += tl.load(bias + lane * CO + co, mask=co < CO, other=0.0)[:, None]
    tl.store(out + lane * CO * M + co[:, None] * M + m[None, :], acc, mask=(co < CO)[:, None] & (m < M)[None, :])


@triton.jit
def _weigh(
    x, g, dweight, dbias, M, C, CO, H, W, HO, WO, PAD, sl, sc, sn, sh, sw, LANES, CHUNK,
    KS: tl.constexpr, BC: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, HOW: tl.constexpr,
):  # fmt: skip
    """dweight[s, l, co, k] = Σ_m g[l, co, m]·X[l, k, m] and dbias[s, l, co] = Σ_m g[l, co, m], over the s-th chunk."""
    lane = (tl.program_id(2) % LANES).to(tl.int64)
    split = tl.program_id(2) // LANES
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    K = C * KS * KS
    acc = tl.zeros((BC, BK), dtype=tl.float32)
    total = tl.zeros((BC,), dtype=tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, M), BM):
        m = start + tl.arange(0, BM)
        v = tl.load(
            g + lane * CO * M + co[:, None] * M + m[None, :], mask=(co < CO)[:, None] & (m < M)[None, :], other=0.0
        )
        p = _patches(x + lane * sl, k, m, M, C, H, W, HO, WO, PAD, sc, sn, sh, sw, KS)
        acc = tl.dot(v, tl.trans(p), acc, input_precision=HOW)
        total += tl.sum(v, axis=1)
    place = (split * LANES + lane) * CO
    tl.store(dweight + place * K + co[:, None] * K + k[None, :], acc, mask=(co < CO)[:, None] & (k < K)[None, :])
    if tl.program_id(0) == 0:
        tl.store(dbias + place + co, total, mask=co < CO)


def _how() -> str:
    """Convolutions multiply as cuDNN's do."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _rows(channels: int) -> int:
    """Output channels a program computes: all of a small layer."""
    return max(16, min(64, triton.next_power_of_2(channels)))


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    lanes, cin, n, h, w = x.shape
    cout, k = weight.shape[1], weight.shape[3]
    ho, wo = h + 2 * padding - k + 1, w + 2 * padding - k + 1
    m = n * ho * wo
    out = torch.empty(lanes, cout, n, ho, wo, device=x.device, dtype=x.dtype)
    bc = _rows(cout)
    bm, bk = (
        (128, 16) if 32 < cin * k * k <= 80 else (64, 32)
    )  # three channels fill five blocks of 16, but not three of 32
    _convolve[(triton.cdiv(m, bm), triton.cdiv(cout, bc), lanes)](
        x, weight, bias, out, m, cin, cout, h, w, ho, wo, padding, *x.stride(),
        KS=k, BIAS=bias is not None, BC=bc, BM=bm, BK=bk, HOW=_how(), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


class Conv(torch.autograd.Function):
    """(lanes, cin, n, h, w), (lanes, cout, cin, k, k), (lanes, cout) → (lanes, cout, n, h', w')"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        weight, bias = weight.contiguous(), bias.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return _convolved(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        g = g.contiguous()
        lanes, cout, cin, k, _ = weight.shape
        n, ho, wo = g.shape[2:]
        h, w = x.shape[3:]
        m, size = n * ho * wo, cin * k * k
        bc, bk, bm = _rows(cout), 32, 32
        tiles = lanes * triton.cdiv(size, bk) * triton.cdiv(cout, bc)
        splits = max(1, min(triton.cdiv(SPLITS, tiles), triton.cdiv(m, 8 * bm)))
        chunk = triton.cdiv(triton.cdiv(m, splits), bm) * bm
        splits = triton.cdiv(m, chunk)
        dweight = torch.empty(splits, *weight.shape, device=g.device)
        dbias = torch.empty(splits, lanes, cout, device=g.device)
        _weigh[(triton.cdiv(size, bk), triton.cdiv(cout, bc), lanes * splits)](
            x, g, dweight, dbias, m, cin, cout, h, w, ho, wo, ctx.padding, *x.stride(), lanes, chunk,
            KS=k, BC=bc, BK=bk, BM=bm, HOW=_how(), num_warps=4, num_stages=2,
        )  # fmt: skip
        dx = None
        if ctx.needs_input_grad[0]:  # a convolution of the gradient with the weights turned round
            turned = weight.flip(3, 4).transpose(1, 2).contiguous()
            dx = _convolved(g, turned, None, k - 1 - ctx.padding)
        return dx, dweight.sum(dim=0), dbias.sum(dim=0), None
