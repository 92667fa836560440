"""Triton kernels for stacked convolutions of few channels on a GPU, without patches in memory.

Images may lie in memory as they like; what is computed of them lies there channels last. Biases are
left to the norm that follows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from askew.nets.triton.norm_kernels import store_part
from askew.nets.triton.planes import SPLITS


@triton.jit
def _patches(x, k, m, M, HO, WO, sc, sn, sh, sw, C: tl.constexpr, KS: tl.constexpr):
    """X[k, m]: pixel k = (channel, row, column of the kernel) of the patch m = (image, row, column
    of the output)."""
    c, i, j = k // (KS * KS), (k // KS) % KS, k % KS
    n, r = m // (HO * WO), m % (HO * WO)
    place = (c * sc + i * sh + j * sw)[:, None] + (n * sn + (r // WO) * sh + (r % WO) * sw)[None, :]
    return tl.load(x + place, mask=(c < C)[:, None] & (m < M)[None, :], other=0.0)


@triton.jit
def _convolve(
    x,
    weight,
    out,
    parts,
    M,
    CO,
    HO,
    WO,
    ROWS,
    sl,
    sc,
    sn,
    sh,
    sw,
    C: tl.constexpr,
    KS: tl.constexpr,
    BC: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    HOW: tl.constexpr,
):
    """out[l, m, co] = Σ_k weight[l, co, k]·X[l, k, m], and of each block of pixels what
    `planes.merged` needs."""
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    K: tl.constexpr = C * KS * KS
    dtype = out.dtype.element_ty
    acc = tl.zeros((BC, BM), dtype=tl.float32)
    for start in tl.static_range(0, K, BK):
        k = start + tl.arange(0, BK)
        w = tl.load(
            weight + lane * CO * K + co[:, None] * K + k[None, :],
            mask=(co < CO)[:, None] & (k < K)[None, :],
            other=0.0,
        )
        p = _patches(x + lane * sl, k, m, M, HO, WO, sc, sn, sh, sw, C, KS)
        acc = tl.dot(w.to(dtype), p.to(dtype), acc, input_precision=HOW)
    here = (co < CO)[:, None] & (m < M)[None, :]
    tl.store(out + lane * CO * M + co[:, None] + m[None, :] * CO, acc.to(dtype), mask=here)
    store_part(parts, acc, here, M, lane * CO + co, co < CO, ROWS, BM, 1)


@triton.jit
def _weigh(
    x,
    g,
    unit,
    dweight,
    M,
    CO,
    HO,
    WO,
    sl,
    sc,
    sn,
    sh,
    sw,
    LANES,
    CHUNK,
    C: tl.constexpr,
    KS: tl.constexpr,
    HALF: tl.constexpr,
    BC: tl.constexpr,
    BK: tl.constexpr,
    BM: tl.constexpr,
    HOW: tl.constexpr,
):
    """dweight[s, l, co, k] = Σ_m g[l, m, co]·X[l, k, m] over the s-th chunk."""
    lane = (tl.program_id(2) % LANES).to(tl.int64)
    split = tl.program_id(2) // LANES
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    co = tl.program_id(1) * BC + tl.arange(0, BC)
    K: tl.constexpr = C * KS * KS
    acc = tl.zeros((BC, BK), dtype=tl.float32)
    x += lane * sl
    g += lane * CO * M
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, M), BM):
        m = start + tl.arange(0, BM)
        v = tl.load(
            g + co[:, None] + m[None, :] * CO, mask=(co < CO)[:, None] & (m < M)[None, :], other=0.0
        )
        p = _patches(x, k, m, M, HO, WO, sc, sn, sh, sw, C, KS)
        acc = tl.dot(v, tl.trans(p.to(v.dtype)), acc, input_precision=HOW)
    if HALF:
        acc *= tl.load(unit + lane)
    place = (split * LANES + lane) * CO * K + co[:, None] * K + k[None, :]
    tl.store(dweight + place, acc, mask=(co < CO)[:, None] & (k < K)[None, :])


def how() -> str:
    """Convolutions multiply as cuDNN's do."""
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"


def _rows(channels: int) -> int:
    """Output channels a program computes: all of a small layer."""
    return max(16, min(64, triton.next_power_of_2(channels)))


def convolved(x: Tensor, weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, int]:
    """(lanes, cin, n, h, w), (lanes, cout, cin, k, k) → (lanes, n, h', w', cout), statistics of
    blocks, their pixels"""
    lanes, cin, n, h, w = x.shape
    cout, k = weight.shape[1], weight.shape[3]
    ho, wo = h - k + 1, w - k + 1
    m = n * ho * wo
    bm, bk = (
        (256, 32) if cin * k * k <= 32 else (128, 16)
    )  # three channels fill five blocks of 16, not three of 32
    blocks = triton.cdiv(m, bm)
    out = torch.empty(lanes, n, ho, wo, cout, device=x.device, dtype=dtype)
    parts = torch.empty(blocks, 2, lanes * cout, device=x.device)
    bc = _rows(cout)
    _convolve[(blocks, triton.cdiv(cout, bc), lanes)](
        x,
        weight,
        out,
        parts,
        m,
        cout,
        ho,
        wo,
        lanes * cout,
        *x.stride(),
        C=cin,
        KS=k,
        BC=bc,
        BM=bm,
        BK=bk,
        HOW=how(),
        num_warps=4,
        num_stages=1,
    )
    return out, parts, bm


def weighed(x: Tensor, g: Tensor, unit: Tensor, k: int) -> Tensor:
    """(lanes, cin, n, h, w), (lanes, n, h', w', cout) in units of (lanes,) → (lanes, cout, cin, k,
    k)"""
    lanes, cin = x.shape[:2]
    n, ho, wo, cout = g.shape[1:]
    m, size = n * ho * wo, cin * k * k
    bc, bm, bk = _rows(cout), 128, 32
    tiles = lanes * triton.cdiv(size, bk) * triton.cdiv(cout, bc)
    splits = max(1, min(triton.cdiv(SPLITS, tiles), triton.cdiv(m, 8 * bm)))
    chunk = triton.cdiv(triton.cdiv(m, splits), bm) * bm
    splits = triton.cdiv(m, chunk)
    dweight = torch.empty(splits, lanes, cout, cin, k, k, device=g.device)
    _weigh[(triton.cdiv(size, bk), triton.cdiv(cout, bc), lanes * splits)](
        x,
        g,
        unit,
        dweight,
        m,
        cout,
        ho,
        wo,
        *x.stride(),
        lanes,
        chunk,
        C=cin,
        KS=k,
        HALF=g.dtype == torch.float16,
        BC=bc,
        BK=bk,
        BM=bm,
        HOW=how(),
        num_warps=4,
        num_stages=1 if g.dtype == torch.float32 else 2,
    )
    return dweight.sum(dim=0)
