"""Norms by their Triton kernels: how pixels and channels lie in memory, and how programs share them
out."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from askew.nets.triton import norm_kernels
from askew.nets.vmap.forms import Pool

SPLITS = 8 * 132
"""Programs that a sum over all pixels is spread over, so that a few lanes fill a large GPU too."""
ELEMENTS = 1024
"""Numbers that a program has in flight."""


class Plane(NamedTuple):
    """How a stacked activation's pixels and channels lie in memory, and are shared out among
    programs."""

    lanes: int
    channels: int
    images: int
    height: int
    width: int
    last: bool
    """Whether channels lie last."""

    @property
    def pixels(self) -> int:
        return self.images * self.height * self.width

    @property
    def rows(self) -> int:
        return self.lanes * self.channels

    @property
    def block(self) -> dict[str, int]:
        high = min(ELEMENTS, triton.next_power_of_2(self.pixels))
        if not self.last:
            return {"BM": high, "BC": max(1, min(16, ELEMENTS // high))}
        wide = max(16, min(64, self.channels & -self.channels))
        return {"BM": min(high, ELEMENTS // wide), "BC": wide}

    @property
    def strides(self) -> tuple[int, int]:
        return (self.channels, 1) if self.last else (1, self.pixels)

    def grid(self) -> tuple[int, int, int]:
        block = self.block
        return (
            triton.cdiv(self.pixels, block["BM"]),
            triton.cdiv(self.channels, block["BC"]),
            self.lanes,
        )

    def pooled(self, pool: Pool) -> Plane:
        size, stride, padding = pool
        height, width = (
            (side + 2 * padding - size) // stride + 1 for side in (self.height, self.width)
        )
        return self._replace(height=height, width=width)

    def empty(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """(lanes, n, h, w, c) or (lanes, c, n, h, w)"""
        lanes, c, n, h, w, last = self
        return torch.empty(
            (lanes, n, h, w, c) if last else (lanes, c, n, h, w), device=device, dtype=dtype
        )


def statistics(x: Tensor, plane: Plane) -> tuple[Tensor, int]:
    """Mean and squares of each block of pixels, for `merged`, and how many pixels a block has."""
    grid = plane.grid()
    parts = torch.empty(grid[0], 2, plane.rows, device=x.device)
    norm_kernels.statistics[grid](
        x, parts, plane.pixels, plane.channels, plane.rows, *plane.strides, **plane.block
    )
    return parts, plane.block["BM"]


def merged(
    parts: Tensor,
    part: int,
    plane: Plane,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Mean without the bias, and 1/σ; running statistics change in place. → two of (lanes, c)"""
    own, rstd = torch.empty(2, plane.lanes, plane.channels, device=parts.device)
    norm_kernels.merge[(triton.cdiv(plane.rows, 16),)](
        parts,
        bias,
        own,
        rstd,
        mean,
        var,
        plane.pixels,
        plane.rows,
        len(parts),
        part,
        momentum,
        eps,
        BIAS=bias is not None,
        BT=min(128, triton.next_power_of_2(len(parts))),
        BR=16,
    )
    return own, rstd


class Pooled(NamedTuple):
    """What came out of a norm, its ReLU and its pool, and what its gradient needs."""

    out: Tensor
    where: Tensor
    """Which pixel of its window it was, or −1."""
    picked: Tensor
    """That pixel before the norm."""


def norm_relu_pool(
    x: Tensor,
    plane: Plane,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    bias: Tensor,
    pool: Pool,
    dtype: torch.dtype,
) -> Pooled:
    after = plane.pooled(pool)
    found = Pooled(*(after.empty(x.device, kind) for kind in (dtype, torch.int8, x.dtype)))
    p, s, q = pool
    norm_kernels.norm_relu_pool[after.grid()](
        x,
        mean,
        rstd,
        weight,
        bias,
        *found,
        plane.pixels,
        after.pixels,
        plane.channels,
        plane.height,
        plane.width,
        after.height,
        after.width,
        *plane.strides,
        *after.strides,
        P=p,
        S=s,
        Q=q,
        **after.block,
    )
    return found


def norm_gradient(
    g: Tensor,
    x: Tensor,
    plane: Plane,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor,
    where: Tensor,
    picked: Tensor,
    pool: Pool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of x, as x is kept; of weight and bias; and the unit of the first, a number a lane, which
    float16 has alone."""
    after, rows, c = plane.pooled(pool), plane.rows, plane.channels
    p, s, q = pool
    _, columns, lanes = after.grid()
    high = after.block["BM"]
    chunk = (
        triton.cdiv(triton.cdiv(after.pixels, triton.cdiv(SPLITS, columns * lanes)), high) * high
    )
    chunks = triton.cdiv(after.pixels, chunk)
    sums = torch.empty(chunks, 3, rows, device=x.device)
    norm_kernels.norm_sums[(chunks, columns, lanes)](
        picked,
        mean,
        rstd,
        g,
        where,
        sums,
        after.pixels,
        c,
        rows,
        *after.strides,
        chunk,
        **after.block,
    )
    half = x.dtype == torch.float16
    dweight, dbias = torch.empty(2, lanes, c, device=x.device)
    unit = torch.empty(lanes, device=x.device)
    wide = triton.next_power_of_2(c) if half else min(64, triton.next_power_of_2(c))
    norm_kernels.merge_sums[(lanes, triton.cdiv(c, wide))](
        sums,
        weight,
        rstd,
        dweight,
        dbias,
        unit,
        plane.pixels,
        c,
        rows,
        chunks,
        triton.cdiv(p, s) ** 2,
        HALF=half,
        BS=min(16, triton.next_power_of_2(chunks)),
        BC=wide,
    )
    dx = torch.empty_like(x)
    cells = plane._replace(height=triton.cdiv(plane.height, s), width=triton.cdiv(plane.width, s))
    norm_kernels.norm_backward[cells.grid()](
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
        plane.pixels,
        after.pixels,
        c,
        plane.images,
        plane.height,
        plane.width,
        after.height,
        after.width,
        *plane.strides,
        *after.strides,
        P=p,
        S=s,
        Q=q,
        HALF=half,
        **cells.block,
    )
    return dx, dweight, dbias, unit
