"""Picture views by torch's own functions: what a processor uses, and what kernels are held to on a
GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_RANGE = 127.5
"""Strengths are relative to pixels in −1 … 1."""
RATIO = 4 / 3
"""Of a picture view's sides, at most."""
GREY, SHARPER, NEGATIVE = 0.25, 0.3, 0.15
"""Shares of picture views that are grey, sharper or blurred, and negatives."""
CONTRAST, COLOUR = 0.5, 0.2
"""How far picture views' contrast and colour are from 1 at most."""


def between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def along(values: Tensor) -> Tensor:
    """One number per image, for all of its pixels. (n,) → (n, 1, 1, 1)"""
    return values[:, None, None, None]


def sampled(x: Tensor, theta: Tensor, side: tuple[int, int]) -> Tensor:
    """Bilinear samples at θ·(column, row, 1), coordinates in −1 … 1, borders repeated. (n, k, h,
    w), (n, 2, 3)

    The grid is written out: F.affine_grid multiplies matrices, which a GPU may do in TF32.
    """
    height, width = side
    rows = (2 * torch.arange(height, device=x.device) + 1).float()[:, None] / height - 1
    columns = (2 * torch.arange(width, device=x.device) + 1).float() / width - 1
    t = theta[:, :, :, None, None]
    grid = t[:, :, 0] * columns + t[:, :, 1] * rows + t[:, :, 2]  # (n, 2, height, width)
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False)


def picture_view(
    x: Tensor,
    crops: Tensor,
    styles: Tensor | None,
    shrink: float,
    stretch: float,
    style: float,
    side: int,
) -> Tensor:
    """A random resized crop, flipped half the time, then style: from numbers in 0 … 1 that are
    drawn.

    A crop keeps 1 − `shrink` of the area at least, and the logarithm of its sides' ratio is ±
    `stretch` at most. (n, k, h, w), (n, 5), (n, 12) → (n, k, side, side)
    """
    area = 1 - shrink * crops[:, 0]
    ratio = torch.exp(stretch * between(crops[:, 1], -1, 1))
    wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    across, down = (
        (1 - wide) * between(crops[:, 2], -1, 1),
        (1 - high) * between(crops[:, 3], -1, 1),
    )
    flip = torch.where(crops[:, 4] < 0.5, -1.0, 1.0)
    nothing = torch.zeros_like(wide)
    theta = torch.stack([flip * wide, nothing, across, nothing, high, down], dim=1).view(-1, 2, 3)
    x = sampled(x.float(), theta, (side, side))
    return x if styles is None else styled(x, styles, style)


def styled(x: Tensor, u: Tensor, style: float) -> Tensor:
    """Grey, contrast, sharper or blurred, colour, inverted; `style` scales all.

    All but the blur are linear in a pixel, so that they are one product and one sum: passes over
    the pixels take time.
    """
    x = torch.lerp(x, x.mean(dim=1, keepdim=True), along((u[:, 0] < GREY * style).float()))
    contrast = along(1 + style * between(u[:, 1], -CONTRAST, CONTRAST))
    sharp = along(torch.where(u[:, 2] < SHARPER * style, between(u[:, 3], -1, 1), 0.0))
    gain = along(1 + style * between(u[:, 4], -COLOUR, COLOUR))
    offset = style * COLOUR * (HALF_RANGE / 2) * between(u[:, 5 : 5 + x.shape[1]], -1, 1)
    sign = along(torch.where(u[:, 11] < NEGATIVE * style, -1.0, 1.0))
    base = gain * (1 - contrast) * x.mean(dim=(1, 2, 3), keepdim=True) + offset[:, :, None, None]
    base = sign * base + (1 - sign) * HALF_RANGE
    scale = sign * gain * contrast
    blurred = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return torch.addcmul(torch.addcmul(base, x, scale * (1 + sharp)), blurred, -scale * sharp)
