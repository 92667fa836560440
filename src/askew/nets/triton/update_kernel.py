"""A step of SGD or Adam along a gradient that is a product, as one Triton kernel: the product is
never in memory."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BE, BD, BN, WARPS = 32, 64, 32, 2
"""What moved most bytes per second on an H200, of twenty sizes and numbers of warps (3.8 TB/s with
SGD)."""


@triton.jit
def _product(
    left, right, e, d, E, D, N, LE, LN, RN, RD, BE: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr
):
    """Rows e and columns d of left (E, N) · right (N, D) in TF32."""
    g = tl.zeros((BE, BD), dtype=tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        a = tl.load(
            left + e[:, None] * LE + n[None, :] * LN,
            mask=(e < E)[:, None] & (n < N)[None, :],
            other=0.0,
        )
        b = tl.load(
            right + n[:, None] * RN + d[None, :] * RD,
            mask=(n < N)[:, None] & (d < D)[None, :],
            other=0.0,
        )
        g = tl.dot(a, b, g, input_precision="tf32")
    return g


@triton.jit
def _adam(w, m, s, g, rate, first, second, beta1, beta2, decay, eps, APART: tl.constexpr):
    if APART:
        w = w - rate * decay * w
    else:
        g += decay * w
    m = beta1 * m + (1 - beta1) * g
    s = beta2 * s + (1 - beta2) * g * g
    return w - rate / first * m / (tl.sqrt(s) / tl.sqrt(second) + eps), m, s


@triton.jit
def _update(
    weight,
    first,
    second,
    average,
    left,
    right,
    numbers,
    share,
    E,
    D,
    N,
    LL,
    LE,
    LN,
    RL,
    RN,
    RD,
    beta1,
    beta2,
    decay,
    eps,
    ADAM: tl.constexpr,
    VARIANT: tl.constexpr,
    AVERAGED: tl.constexpr,
    BE: tl.constexpr,
    BD: tl.constexpr,
    BN: tl.constexpr,
):
    """`askew.training.optim.sgd_` or `adam_` of weight (l, E, D) by left (l, E, N) · right (l, N,
    D).

    VARIANT: Nesterov's momentum, or a decay apart from the gradient. `numbers`: the rate; Adam's 1
    − β₁ⁿ and 1 − β₂ⁿ. AVERAGED: and then average ← average + share·(weight − average).
    """
    lane = tl.program_id(2).to(tl.int64)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    d = tl.program_id(0) * BD + tl.arange(0, BD)
    here = (e < E)[:, None] & (d < D)[None, :]
    place = lane * E * D + e[:, None] * D + d[None, :]
    # asked for first: they come from afar, the factors from the cache
    w = tl.load(weight + place, mask=here, other=0.0)
    m = tl.load(first + place, mask=here, other=0.0)
    if ADAM:
        s = tl.load(second + place, mask=here, other=0.0)
    g = _product(left + lane * LL, right + lane * RL, e, d, E, D, N, LE, LN, RN, RD, BE, BD, BN)
    rate = tl.load(numbers)
    if ADAM:
        w, m, s = _adam(
            w,
            m,
            s,
            g,
            rate,
            tl.load(numbers + 1),
            tl.load(numbers + 2),
            beta1,
            beta2,
            decay,
            eps,
            VARIANT,
        )
        tl.store(second + place, s, mask=here)
    else:
        g += decay * w
        m = beta1 * m + g
        w -= rate * (g + beta1 * m if VARIANT else m)
    tl.store(first + place, m, mask=here)
    tl.store(weight + place, w, mask=here)
    if AVERAGED:
        before = tl.load(average + place, mask=here, other=0.0)
        tl.store(average + place, before + tl.load(share) * (w - before), mask=here)


def update(
    weight: Tensor,
    slots: list[Tensor],
    average: Tensor | None,
    left: Tensor,
    right: Tensor,
    numbers: Tensor,
    share: Tensor | None,
    beta1: float,
    decay: float,
    variant: bool,
    beta2: float = 0.0,
    eps: float = 0.0,
) -> None:
    """In place: SGD's with one slot, Adam's with two. (l, e, d), (l, e, n), (l, n, d), (1,) or
    (3,), ()"""
    lanes, e, d = weight.shape
    grid = triton.cdiv(d, BD), triton.cdiv(e, BE), lanes
    _update[grid](
        weight,
        slots[0],
        slots[-1],
        average,
        left,
        right,
        numbers,
        share,
        e,
        d,
        left.shape[2],
        *left.stride(),
        *right.stride(),
        beta1,
        beta2,
        decay,
        eps,
        ADAM=len(slots) == 2,
        VARIANT=variant,
        AVERAGED=average is not None,
        BE=BE,
        BD=BD,
        BN=BN,
        num_warps=WARPS,
    )
