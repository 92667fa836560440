"""Triton kernels for stacked convolutions of many channels, whose activations lie in memory
channels last.

There a kernel's position is one product of pixels and weights, of rows that lie together: no
patches, few addresses.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from askew.nets.triton.conv_kernels import how
from askew.nets.triton.norm_kernels import store_part
from askew.nets.triton.planes import SPLITS


@triton.jit
def _convolve(
    x,
    weight,
    unit,
    out,
    parts,
    M,
    H,
    W,
    HO,
    WO,
    PAD,
    ROWS,
    C: tl.constexpr,
    CO: tl.constexpr,
    KS: tl.constexpr,
    PARTS: tl.constexpr,
    HALF: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HOW: tl.constexpr,
):
    """out[l, m, co] = Σ_(k, c) x[l, pixel k of the patch m, c]·weight[l, k, co, c]; with HALF,
    times the unit of x.

    With PARTS, of each block of pixels also what `planes.merged` needs.
    """
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    c = tl.arange(0, BK)
    n, r = m // (HO * WO), m % (HO * WO)
    y, z = r // WO - PAD, r % WO - PAD
    x += lane * (M // (HO * WO)) * H * W * C
    weight += lane * KS * KS * CO * C
    place = ((n * H + y) * W + z) * C
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    TURNS: tl.constexpr = (C + BK - 1) // BK
    for t in range(KS * KS * TURNS):
        k, c0 = t // TURNS, (t % TURNS) * BK
        i, j = k // KS, k % KS
        inside = (m < M) & (y + i >= 0) & (y + i < H) & (z + j >= 0) & (z + j < W)
        a = tl.load(
            x + (place + (i * W + j) * C)[:, None] + (c0 + c)[None, :],
            mask=inside[:, None] & (c0 + c < C)[None, :],
            other=0.0,
        )
        b = tl.load(
            weight + (k * CO + co)[None, :] * C + (c0 + c)[:, None],
            mask=(co < CO)[None, :] & (c0 + c < C)[:, None],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision=HOW)
    if HALF:
        acc *= tl.load(unit + lane)
    here = (m < M)[:, None] & (co < CO)[None, :]
    tl.store(
        out + lane * M * CO + m[:, None] * CO + co[None, :], acc.to(out.dtype.element_ty), mask=here
    )
    if PARTS:
        store_part(parts, acc, here, M, lane * CO + co, co < CO, ROWS, BM, 0)


@triton.jit
def _weigh(
    x,
    g,
    unit,
    dweight,
    M,
    H,
    W,
    HO,
    WO,
    PAD,
    LANES,
    CHUNK,
    C: tl.constexpr,
    CO: tl.constexpr,
    KS: tl.constexpr,
    HALF: tl.constexpr,
    WHOLE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
    HOW: tl.constexpr,
):
    """dweight[s, l, co, (k, c)] = Σ_m g[l, m, co]·x[l, pixel k of the patch m, c] over the s-th
    chunk.

    WHOLE: a block of pixels is whole rows of one image.
    """
    lane = (tl.program_id(2) % LANES).to(tl.int64)
    split = tl.program_id(2) // LANES
    q = tl.program_id(0) * BN + tl.arange(0, BN)
    k, c = q // C, q % C
    i, j = k // KS - PAD, k % KS - PAD
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    x += lane * (M // (HO * WO)) * H * W * C
    g += lane * M * CO
    rows = tl.arange(0, BM)
    acc = tl.zeros((BC, BN), dtype=tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, M), BM):
        m = start + rows
        if WHOLE:
            n = start // (HO * WO)
            y, z = (start % (HO * WO)) // WO + rows // WO, rows % WO
        else:
            n = m // (HO * WO)
            y, z = (m % (HO * WO)) // WO, m % WO
        v = tl.load(
            g + m[:, None] * CO + co[None, :], mask=(m < M)[:, None] & (co < CO)[None, :], other=0.0
        )
        sy, sz = y[:, None] + i[None, :], z[:, None] + j[None, :]
        inside = (
            (m < M)[:, None] & (k < KS * KS)[None, :] & (sy >= 0) & (sy < H) & (sz >= 0) & (sz < W)
        )
        place = ((n * H + y) * W + z)[:, None] * C + ((i * W + j) * C + c)[None, :]
        p = tl.load(x + place, mask=inside, other=0.0)
        acc = tl.dot(tl.trans(v), p, acc, input_precision=HOW)
    if HALF:
        acc *= tl.load(unit + lane)
    K = C * KS * KS
    here = (split * LANES + lane) * CO
    tl.store(
        dweight + here * K + co[:, None] * K + q[None, :],
        acc,
        mask=(co < CO)[:, None] & (q < K)[None, :],
    )


class Tile(NamedTuple):
    """Sizes of the blocks that one program multiplies: pixels, outcomes, and what is summed
    over."""

    pixels: int
    wide: int
    deep: int
    warps: int = 4
    stages: int = 3


def convolved(
    x: Tensor,
    weight: Tensor,
    padding: int,
    tile: Tile,
    dtype: torch.dtype,
    unit: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(lanes, n, h, w, c) in units of (lanes,), (lanes, k·k, co, c) → (lanes, n, h', w', co),
    statistics of blocks"""
    lanes, n, h, w, c = x.shape
    size, co = weight.shape[1:3]
    k = round(size**0.5)
    ho, wo = h + 2 * padding - k + 1, w + 2 * padding - k + 1
    m = n * ho * wo
    blocks = triton.cdiv(m, tile.pixels)
    out = torch.empty(lanes, n, ho, wo, co, device=x.device, dtype=dtype)
    parts = torch.empty(blocks, 2, lanes * co, device=x.device)
    _convolve[(blocks, triton.cdiv(co, tile.wide), lanes)](
        x,
        weight,
        unit,
        out,
        parts,
        m,
        h,
        w,
        ho,
        wo,
        padding,
        lanes * co,
        C=c,
        CO=co,
        KS=k,
        PARTS=unit is None,
        HALF=unit is not None and x.dtype == torch.float16,
        BM=tile.pixels,
        BN=tile.wide,
        BK=tile.deep,
        HOW=how(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out, parts


def weighed(x: Tensor, g: Tensor, unit: Tensor, k: int, padding: int, tile: Tile) -> Tensor:
    """(lanes, n, h, w, c), (lanes, n, h', w', co) in units of (lanes,) → (splits, lanes, co, k·k,
    c)"""
    lanes, n, h, w, c = x.shape
    ho, wo, co = g.shape[2:]
    m = n * ho * wo
    tiles = triton.cdiv(c * k * k, tile.wide), triton.cdiv(co, tile.deep)
    splits = max(
        1, min(triton.cdiv(SPLITS, lanes * tiles[0] * tiles[1]), triton.cdiv(m, 8 * tile.pixels))
    )
    chunk = triton.cdiv(triton.cdiv(m, splits), tile.pixels) * tile.pixels
    splits = triton.cdiv(m, chunk)
    dweight = torch.empty(splits, lanes, co, k * k, c, device=x.device)
    whole = (ho * wo) % tile.pixels == 0 and tile.pixels % wo == 0
    _weigh[(*tiles, lanes * splits)](
        x,
        g,
        unit,
        dweight,
        m,
        h,
        w,
        ho,
        wo,
        padding,
        lanes,
        chunk,
        C=c,
        CO=co,
        KS=k,
        HALF=g.dtype == torch.float16,
        WHOLE=whole,
        BM=tile.pixels,
        BN=tile.wide,
        BC=tile.deep,
        HOW=how(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return dweight


TILES = {
    "forward": {torch.float32: Tile(128, 64, 32), torch.bfloat16: Tile(128, 64, 64)},
    "images": {torch.float32: Tile(128, 64, 32), torch.bfloat16: Tile(128, 64, 64)},
    "weights": {torch.float32: Tile(64, 64, 64, 2, 2), torch.bfloat16: Tile(64, 128, 64)},
}
"""For float16 as for bfloat16.

On an H200 within a fifth of the fastest of benchmarks/speed/deep_conv.py for every layer of the
digits (the weights of 64 → 128 channels in float16 were not tried with this one), and small enough
for GPUs with 100 KB of shared memory.
"""


def tile(op: str, deep: int, wide: int, dtype: torch.dtype) -> Tile:
    """For that many channels to sum over and to compute; a block of them is a power of two."""
    chosen = TILES[op][torch.bfloat16 if dtype == torch.float16 else dtype]
    if op == "weights":
        return chosen
    return chosen._replace(
        wide=min(128, triton.next_power_of_2(wide)), deep=min(chosen.deep, deep & -deep)
    )


def arranged(weight: Tensor, *order: int, dtype: torch.dtype) -> Tensor:
    """(lanes, co, c, k, k) in another order, the kernel's positions in one dimension, in one
    pass."""
    turned = weight.permute(0, *order)
    room = torch.empty(turned.shape, device=weight.device, dtype=dtype)
    return room.copy_(turned).flatten(1, 2)
