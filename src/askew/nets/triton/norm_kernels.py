"""Triton kernels for stacked norms on a GPU, with the ReLU and the pool that follow.

An activation of a lane is pixels (all images') times channels, in memory channels last (what
convolutions like) or channels first (what dense layers make): two strides say which. Sides of
images are not `constexpr`, though that is faster: Triton 3.6 then makes code for some of them (16
pixels, pools of 3 and 2; 32 → 48 channels) that computes wrong gradients.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_part(parts, value, here, M, row, known, ROWS, BM: tl.constexpr, AXIS: tl.constexpr):
    """parts[t, 0 and 1, row]: mean, and sum of squares around it, of the t-th block of BM pixels,
    which lie along AXIS.

    A value that is not here is 0.
    """
    t = tl.program_id(0)
    mean = tl.sum(value, axis=AXIS) / tl.minimum(M - t * BM, BM)
    apart = tl.where(here, value - tl.expand_dims(mean, AXIS), 0.0)
    place = t * 2 * ROWS + row
    tl.store(parts + place, mean, mask=known)
    tl.store(parts + place + ROWS, tl.sum(apart * apart, axis=AXIS), mask=known)


@triton.jit
def statistics(x, parts, M, C, ROWS, SM, SC, BM: tl.constexpr, BC: tl.constexpr):
    """Parts of an activation, for `merge`."""
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    here = (m < M)[:, None] & (c < C)[None, :]
    value = tl.load(x + lane * M * C + m[:, None] * SM + c[None, :] * SC, mask=here, other=0.0).to(
        tl.float32
    )
    store_part(parts, value, here, M, lane * C + c, c < C, ROWS, BM, 0)


@triton.jit
def merge(
    parts,
    bias,
    mean,
    rstd,
    running_mean,
    running_var,
    M,
    ROWS,
    PARTS,
    PART,
    momentum,
    eps,
    BIAS: tl.constexpr,
    BT: tl.constexpr,
    BR: tl.constexpr,
):
    """Mean and 1/σ of each row (a channel of a lane) from its parts, of PART pixels each but for
    the last.

    And the running statistics; those of a convolution are of its outcome with the bias, which
    `parts` and `mean` lack.
    """
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    here = row < ROWS
    total = tl.zeros((BT, BR), dtype=tl.float32)
    for start in range(0, PARTS, BT):
        t = start + tl.arange(0, BT)
        mask = (t < PARTS)[:, None] & here[None, :]
        size = tl.minimum(M - t * PART, PART).to(tl.float32)
        total += (
            tl.load(parts + t[:, None] * 2 * ROWS + row[None, :], mask=mask, other=0.0)
            * size[:, None]
        )
    mu = tl.sum(total, axis=0) / M
    spread = tl.zeros((BT, BR), dtype=tl.float32)
    for start in range(0, PARTS, BT):
        t = start + tl.arange(0, BT)
        mask = (t < PARTS)[:, None] & here[None, :]
        size = tl.minimum(M - t * PART, PART).to(tl.float32)
        own = tl.load(parts + t[:, None] * 2 * ROWS + row[None, :], mask=mask, other=0.0)
        within = tl.load(parts + (t[:, None] * 2 + 1) * ROWS + row[None, :], mask=mask, other=0.0)
        apart = own - mu[None, :]
        spread += tl.where(mask, within + size[:, None] * apart * apart, 0.0)
    squares = tl.sum(spread, axis=0)
    tl.store(mean + row, mu, mask=here)
    tl.store(rstd + row, 1 / tl.sqrt(squares / M + eps), mask=here)
    if BIAS:
        mu += tl.load(bias + row, mask=here, other=0.0)
    before = tl.load(running_mean + row, mask=here, other=0.0)
    tl.store(running_mean + row, (1 - momentum) * before + momentum * mu, mask=here)
    before = tl.load(running_var + row, mask=here, other=0.0)
    tl.store(running_var + row, (1 - momentum) * before + momentum * squares / (M - 1), mask=here)


@triton.jit
def norm_relu_pool(
    x,
    mean,
    rstd,
    weight,
    bias,
    out,
    where,
    picked,
    M,
    MO,
    C,
    H,
    W,
    HO,
    WO,
    SM,
    SC,
    OM,
    OC,
    P: tl.constexpr,
    S: tl.constexpr,
    Q: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """out = max(0, max over the window of (x − μ)/σ·γ + β); `where` says which pixel it was, −1 for
    none above 0.

    `picked` is x there.
    """
    lane = tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    n, r = at // (HO * WO), at % (HO * WO)
    y0, z0 = (r // WO) * S - Q, (r % WO) * S - Q
    row = lane * C + c
    a = tl.load(weight + row, mask=c < C, other=0.0) * tl.load(rstd + row, mask=c < C, other=0.0)
    b = tl.load(bias + row, mask=c < C, other=0.0) - tl.load(mean + row, mask=c < C, other=0.0) * a
    best = tl.zeros((BM, BC), dtype=tl.float32)
    pick = tl.zeros((BM, BC), dtype=tl.float32)
    which = tl.full((BM, BC), -1, dtype=tl.int32)
    x += lane * M * C
    for i in tl.static_range(P):
        for j in tl.static_range(P):
            y, z = y0 + i, z0 + j
            inside = ((at < MO) & (y >= 0) & (y < H) & (z >= 0) & (z < W))[:, None] & (c < C)[
                None, :
            ]
            place = ((n * H + y) * W + z)[:, None] * SM + c[None, :] * SC
            own = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
            value = own * a[None, :] + b[None, :]
            better = inside & (value > best)
            best = tl.where(better, value, best)
            pick = tl.where(better, own, pick)
            which = tl.where(better, i * P + j, which)
    place = lane * MO * C + at[:, None] * OM + c[None, :] * OC
    here = (at < MO)[:, None] & (c < C)[None, :]
    tl.store(out + place, best.to(out.dtype.element_ty), mask=here)
    tl.store(where + place, which.to(tl.int8), mask=here)
    tl.store(picked + place, pick.to(picked.dtype.element_ty), mask=here)


@triton.jit
def norm_sums(
    picked,
    mean,
    rstd,
    g,
    where,
    sums,
    MO,
    C,
    ROWS,
    OM,
    OC,
    CHUNK,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """sums[s, 0 to 2, (lane, channel)]: Σ g·x̂, Σ g and max |g| over a chunk's pixels that the pool
    let through."""
    split, lane = tl.program_id(0), tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    row = lane * C + c
    mu, scale = (
        tl.load(mean + row, mask=c < C, other=0.0),
        tl.load(rstd + row, mask=c < C, other=0.0),
    )
    plain = tl.zeros((BM, BC), dtype=tl.float32)
    along = tl.zeros((BM, BC), dtype=tl.float32)
    most = tl.zeros((BM, BC), dtype=tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, MO), BM):
        at = start + tl.arange(0, BM)
        here = (at < MO)[:, None] & (c < C)[None, :]
        place = lane * MO * C + at[:, None] * OM + c[None, :] * OC
        which = tl.load(where + place, mask=here, other=-1)
        value = tl.load(picked + place, mask=here, other=0.0).to(tl.float32)
        d = tl.load(g + place, mask=here, other=0.0).to(tl.float32)
        d = tl.where(which >= 0, d, 0.0)
        plain += d
        along += d * (value - mu[None, :])
        most = tl.maximum(most, tl.abs(d))
    place = split * 3 * ROWS + row
    tl.store(sums + place, tl.sum(along, axis=0) * scale, mask=c < C)
    tl.store(sums + place + ROWS, tl.sum(plain, axis=0), mask=c < C)
    tl.store(sums + place + 2 * ROWS, tl.max(most, axis=0), mask=c < C)


@triton.jit
def merge_sums(
    sums,
    weight,
    rstd,
    dweight,
    dbias,
    unit,
    M,
    C,
    ROWS,
    CHUNKS,
    WINDOWS,
    HALF: tl.constexpr,
    BS: tl.constexpr,
    BC: tl.constexpr,
):
    """dweight = Σ g·x̂ and dbias = Σ g of a lane; where gradients are kept in float16, also the
    unit they are kept in.

    It is a power of two, so that the largest of them is a few thousand: |x̂| ≤ √M bounds dx
    beforehand.
    """
    lane = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    row = lane * C + c
    plain = tl.zeros((BS, BC), dtype=tl.float32)
    along = tl.zeros((BS, BC), dtype=tl.float32)
    most = tl.zeros((BS, BC), dtype=tl.float32)
    for start in range(0, CHUNKS, BS):
        s = start + tl.arange(0, BS)
        mask = (s < CHUNKS)[:, None] & (c < C)[None, :]
        place = s[:, None] * 3 * ROWS + row[None, :]
        along += tl.load(sums + place, mask=mask, other=0.0)
        plain += tl.load(sums + place + ROWS, mask=mask, other=0.0)
        most = tl.maximum(most, tl.load(sums + place + 2 * ROWS, mask=mask, other=0.0))
    dw, db = tl.sum(along, axis=0), tl.sum(plain, axis=0)
    tl.store(dweight + row, dw, mask=c < C)
    tl.store(dbias + row, db, mask=c < C)
    if HALF:  # then BC is all channels
        factor = tl.abs(tl.load(weight + row, mask=c < C, other=0.0)) * tl.load(
            rstd + row, mask=c < C, other=0.0
        )
        m = M.to(tl.float32)
        bound = factor * (WINDOWS * tl.max(most, axis=0) + tl.abs(db) / m + tl.abs(dw) / tl.sqrt(m))
        exponent = tl.floor(tl.log2(tl.maximum(tl.max(bound), 1e-30)))
        tl.store(unit + lane, tl.exp2(exponent - 13))


@triton.jit
def _window(g, where, n, y, z, c, C, HO, WO, OM, OC, here):
    """The gradient of a window, and which pixel it goes to."""
    inside = here & ((y < HO) & (z < WO))[:, None] & (c < C)[None, :]
    place = ((n * HO + y) * WO + z)[:, None] * OM + c[None, :] * OC
    which = tl.load(where + place, mask=inside, other=-1).to(tl.int32)
    return tl.load(g + place, mask=inside, other=0.0).to(tl.float32), which


@triton.jit
def _affine(mean, rstd, weight, dweight, dbias, unit, lane, row, known, M, HALF: tl.constexpr):
    """μ, a, b, s of dx = a·d − b − (x − μ)·s, for each channel; in units of the lane, with HALF."""
    scale = tl.load(rstd + row, mask=known, other=0.0)
    mu = tl.load(mean + row, mask=known, other=0.0)
    factor = tl.load(weight + row, mask=known, other=0.0) * scale
    if HALF:
        factor = factor / tl.load(unit + lane)
    shift = factor * tl.load(dbias + row, mask=known, other=0.0) / M
    slope = factor * scale * tl.load(dweight + row, mask=known, other=0.0) / M
    return mu, factor, shift, slope


@triton.jit
def _passed(
    g0,
    w0,
    g1,
    w1,
    g2,
    w2,
    g3,
    w3,
    U: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    S: tl.constexpr,
    Q: tl.constexpr,
):
    """What pixel (U, V) of a cell gets from its own window and the three next: to the right, below,
    and below that."""
    own: tl.constexpr = (U + Q) * P + V + Q
    d = tl.where(w0 == own, g0, 0.0) if U + Q < P and V + Q < P else tl.zeros_like(g0)
    if U + Q < P and V + Q >= S:
        d += tl.where(w1 == own - S, g1, 0.0)
    if U + Q >= S and V + Q < P:
        d += tl.where(w2 == own - S * P, g2, 0.0)
    if U + Q >= S and V + Q >= S:
        d += tl.where(w3 == own - S * P - S, g3, 0.0)
    return d


@triton.jit
def norm_backward(
    x,
    mean,
    rstd,
    weight,
    g,
    where,
    dweight,
    dbias,
    unit,
    dx,
    M,
    MO,
    C,
    N,
    H,
    W,
    HO,
    WO,
    SM,
    SC,
    OM,
    OC,
    P: tl.constexpr,
    S: tl.constexpr,
    Q: tl.constexpr,
    HALF: tl.constexpr,
    BM: tl.constexpr,
    BC: tl.constexpr,
):
    """dx = γ/σ·(d − mean(d) − x̂·mean(d·x̂)), where d is g of the windows that let this pixel
    through.

    A program computes cells of S x S pixels: pixel (S·a + u, S·b + v) can only be in window (a, b),
    as its pixel (u + Q, v + Q), and where windows overlap in the next ones, as a pixel S less. (So
    P ≤ S + Q and Q ≤ S.)
    """
    lane = tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    CH, CW = (H + S - 1) // S, (W + S - 1) // S
    n, r = at // (CH * CW), at % (CH * CW)
    a, b = r // CW, r % CW
    here = (n < N)[:, None]
    mu, factor, shift, slope = _affine(
        mean, rstd, weight, dweight, dbias, unit, lane, lane * C + c, c < C, M, HALF
    )
    g += lane * MO * C
    where += lane * MO * C
    x += lane * M * C
    dx += lane * M * C
    g0, w0 = _window(g, where, n, a, b, c, C, HO, WO, OM, OC, here)
    g1, w1, g2, w2, g3, w3 = g0, w0, g0, w0, g0, w0  # no pixel is in another
    if Q > 0:
        g1, w1 = _window(g, where, n, a, b + 1, c, C, HO, WO, OM, OC, here)
        g2, w2 = _window(g, where, n, a + 1, b, c, C, HO, WO, OM, OC, here)
        g3, w3 = _window(g, where, n, a + 1, b + 1, c, C, HO, WO, OM, OC, here)
    for u in tl.static_range(S):
        for v in tl.static_range(S):
            d = _passed(g0, w0, g1, w1, g2, w2, g3, w3, u, v, P, S, Q)
            y, z = a * S + u, b * S + v
            inside = here & ((y < H) & (z < W))[:, None] & (c < C)[None, :]
            place = ((n * H + y) * W + z)[:, None] * SM + c[None, :] * SC
            apart = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mu[None, :]
            value = factor[None, :] * d - shift[None, :] - apart * slope[None, :]
            tl.store(dx + place, value.to(dx.dtype.element_ty), mask=inside)
