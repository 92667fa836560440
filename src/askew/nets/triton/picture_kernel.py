"""Picture views, as two Triton kernels that read and write every pixel once: torch takes some 25
passes over them.

Sides of images are not `constexpr`, for the reason that `askew.nets.triton.norm_kernels` gives.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from askew.nets.triton import pictures

HALF_RANGE = tl.constexpr(pictures.HALF_RANGE)
CONTRAST, COLOUR = tl.constexpr(pictures.CONTRAST), tl.constexpr(pictures.COLOUR)
BLOCK = 256


@triton.jit
def _around(u):
    """From 0 … 1 to −1 … 1."""
    return 2 * u - 1


@triton.jit
def _place(index, scale, shift, S, SIDE):
    """Where the index-th of S samples lies among SIDE pixels; beyond the border its pixels are
    repeated."""
    at = scale * (tl.div_rn((2 * index + 1).to(tl.float32), S * 1.0) - 1) + shift
    return tl.minimum(tl.maximum(((at + 1) * SIDE - 1) * 0.5, 0.0), SIDE - 1.0)


@triton.jit
def _sample(x, column, row, H, W):
    """Between the four pixels around a place, in proportion."""
    left, top = column.to(tl.int32), row.to(tl.int32)
    right, bottom = tl.minimum(left + 1, W - 1), tl.minimum(top + 1, H - 1)
    across, down = column - left, row - top
    value = tl.load(x + top * W + left).to(tl.float32) * ((1 - across) * (1 - down))
    value += tl.load(x + top * W + right).to(tl.float32) * (across * (1 - down))
    value += tl.load(x + bottom * W + left).to(tl.float32) * ((1 - across) * down)
    value += tl.load(x + bottom * W + right).to(tl.float32) * (across * down)
    return value


@triton.jit
def _crop(
    x,
    crops,
    styles,
    out,
    sums,
    H,
    W,
    S,
    TILES,
    shrink,
    stretch,
    grey,
    STYLED: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = the crop, grey or not; sums[i, t] over the t-th tile of image i. (n, C, H, W) → (n, S,
    S, C), (n, TILES)"""
    program = tl.program_id(0)
    i = (program // TILES).to(tl.int64)
    crops += 5 * i
    area = 1 - shrink * tl.load(crops)
    ratio = tl.exp(stretch * _around(tl.load(crops + 1)))
    wide = tl.minimum(tl.sqrt_rn(area * ratio), 1.0)
    high = tl.minimum(tl.sqrt_rn(tl.div_rn(area, ratio)), 1.0)
    across = (1 - wide) * _around(tl.load(crops + 2))
    down = (1 - high) * _around(tl.load(crops + 3))
    wide = tl.where(tl.load(crops + 4) < 0.5, -wide, wide)

    pixel = program % TILES * BLOCK + tl.arange(0, BLOCK)
    here = pixel < S * S
    column, row = _place(pixel % S, wide, across, S, W), _place(pixel // S, high, down, S, H)
    x += i * C * H * W
    out += i * C * S * S + pixel * C
    is_grey = False
    if STYLED:
        is_grey = tl.load(styles + 12 * i) < grey
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    if is_grey:
        for c in tl.static_range(C):
            total += _sample(x + c * H * W, column, row, H, W)
        for c in tl.static_range(C):
            tl.store(out + c, total / C, mask=here)
    else:
        for c in tl.static_range(C):
            value = _sample(x + c * H * W, column, row, H, W)
            tl.store(out + c, value, mask=here)
            total += value
    if STYLED:
        tl.store(sums + program, tl.sum(tl.where(here, total, 0.0)))


@triton.jit
def _style(
    x,
    styles,
    sums,
    out,
    S,
    TILES,
    BLOCKS,
    style,
    sharper,
    negative,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """`pictures.styled`, but for grey. (n, S, S, C), (n, TILES) → (n, S, S, C)"""
    program = tl.program_id(0)
    i = (program // BLOCKS).to(tl.int64)
    styles += 12 * i
    contrast = 1 + style * CONTRAST * _around(tl.load(styles + 1))
    sharp = tl.where(tl.load(styles + 2) < sharper, _around(tl.load(styles + 3)), 0.0)
    gain = 1 + style * COLOUR * _around(tl.load(styles + 4))
    sign = tl.where(tl.load(styles + 11) < negative, -1.0, 1.0)
    scale = sign * gain * contrast
    part = tl.arange(0, PARTS)
    mean = tl.sum(tl.load(sums + i * TILES + part, mask=part < TILES, other=0.0)) / (C * S * S)

    at = program % BLOCKS * BLOCK + tl.arange(0, BLOCK)
    here = at < C * S * S
    offset = style * COLOUR * (HALF_RANGE / 2) * _around(tl.load(styles + 5 + at % C))
    base = sign * (gain * (1 - contrast) * mean + offset) + (1 - sign) * HALF_RANGE
    x += i * C * S * S + at
    value = base + tl.load(x, mask=here, other=0.0) * (scale * (1 + sharp))
    if sharp != 0:  # most images are neither sharpened nor blurred
        column, row = at // C % S, at // C // S
        around = tl.zeros((BLOCK,), dtype=tl.float32)
        count = tl.zeros((BLOCK,), dtype=tl.float32)
        for down in tl.static_range(-1, 2):
            for across in tl.static_range(-1, 2):
                inside = (
                    (row + down >= 0)
                    & (row + down < S)
                    & (column + across >= 0)
                    & (column + across < S)
                )
                around += tl.load(x + (down * S + across) * C, mask=inside, other=0.0)
                count += inside.to(tl.float32)
        value -= around / count * (scale * sharp)
    tl.store(out + i * C * S * S + at, value, mask=here)


def picture_view(
    x: Tensor,
    crops: Tensor,
    styles: Tensor | None,
    shrink: float,
    stretch: float,
    style: float,
    side: int,
) -> Tensor:
    """`askew.nets.triton.pictures.picture_view`, channels last in memory."""
    n, c, height, width = x.shape
    x = (x if x.dtype == torch.uint8 else x.float()).contiguous()
    out = torch.empty((n, side, side, c), device=x.device)
    tiles, blocks = triton.cdiv(side * side, BLOCK), triton.cdiv(c * side * side, BLOCK)
    sums = torch.empty((n, tiles), device=x.device)
    # Shares are multiplied here, as torch's form does: a number that is drawn must be on the same
    # side of them.
    if n:
        _crop[(n * tiles,)](
            x,
            crops,
            styles,
            out,
            sums,
            height,
            width,
            side,
            tiles,
            shrink,
            stretch,
            pictures.GREY * style,
            STYLED=styles is not None,
            C=c,
            BLOCK=BLOCK,
        )
    if n and styles is not None:
        cropped, out = out, torch.empty_like(out)
        _style[(n * blocks,)](
            cropped,
            styles,
            sums,
            out,
            side,
            tiles,
            blocks,
            style,
            pictures.SHARPER * style,
            pictures.NEGATIVE * style,
            C=c,
            BLOCK=BLOCK,
            PARTS=triton.next_power_of_2(tiles),
        )
    return out.permute(0, 3, 1, 2)
