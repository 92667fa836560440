"""Random views of images and rows, made on the device, each a pure function of one hashed key per row.

A key is a hash of (seed, step, position in the batch, number of the view), so a view is the same in eager execution, a
CUDA graph, a lane, another process and after a resume. Images come out as floats on the scale 0 … 255, not clipped, so
that a network's own normalisation of pixels stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core.errors import UserError
from askew.core.options import Between
from askew.nets.kernels import draws
from askew.nets.lanes.trust import tried, usable

HALF_RANGE = 127.5
"""Strengths are relative to pixels in −1 … 1."""
GAIN = (0.25, 1.5)
OFFSET = 0.5
RATIO = 4 / 3
"""Of a picture view's sides, at most."""
GREY, SHARPER, NEGATIVE = 0.25, 0.3, 0.15
"""Shares of picture views that are grey, sharper or blurred, and negatives."""
CONTRAST, COLOUR = 0.5, 0.2
"""How far picture views' contrast and colour are from 1 at most."""


@dataclass(frozen=True, kw_only=True)
class Views:
    """How random views of an image (or of a row of features) are drawn."""

    views: Literal["none", "affine", "affine+intensity", "picture", "rows"] = "none"
    """What every network sees in training: images as they are, or random views of them (see docs/views.md)."""
    rotation: Annotated[float, Between(0, 180)] = 20.0
    """Affine views turn an image by up to so many degrees."""
    stretch: Annotated[float, Between(0, 0.9)] = 0.25
    """Affine views scale each axis by 1 ± so much."""
    shear: Annotated[float, Between(0, 1)] = 0.25
    """Affine views shear by up to so much."""
    shift: Annotated[float, Between(0)] = 2.0
    """Affine views shift by up to so many pixels along each axis."""
    noise: Annotated[float, Between(0, 10)] = 0.1
    """Standard deviation of the noise on each pixel in −1 … 1, or on each feature relative to its row's size."""
    inversion: Annotated[float, Between(0, 1)] = 0.5
    """Share of intensity views that are negatives."""
    area: Annotated[float, Between(0.01, 1)] = 0.08
    """Smallest share of a picture that a crop keeps."""
    style: Annotated[float, Between(0, 1)] = 1.0
    """How much picture views change grey, contrast, sharpness and polarity; 0: crops and flips alone."""
    feature_dropout: Annotated[float, Between(0, 0.99)] = 0.1
    """Share of a row's features that a row view sets to zero."""

    def describe(self) -> dict[str, object]:
        """The settings that matter for this kind of views."""
        return {name: getattr(self, name) for name in ("views", *_OF_KIND[self.views])}


NO_VIEWS = Views()
_AFFINE = ("rotation", "stretch", "shear", "shift", "noise")
_OF_KIND = {
    "none": (),
    "affine": _AFFINE,
    "affine+intensity": (*_AFFINE, "inversion"),
    "picture": ("area", "style"),
    "rows": ("noise", "feature_dropout"),
}


def check_views(how: Views, shape: tuple[int, ...]) -> None:
    """UserError if inputs of that shape have no such views."""
    if how.views != "none" and (how.views == "rows") != (len(shape) == 1):
        of, hint = ("images", "rows") if len(shape) == 1 else ("rows of features", "affine or picture")
        raise UserError(
            f"Views of the kind {how.views} are for {of}, found inputs of shape {' x '.join(map(str, shape))}.",
            f"-t views={hint}, or none.",
        )


def make_view(x: Tensor, keys: Tensor, how: Views, strength: float = 1.0, side: int = 0) -> Tensor:
    """One view per row; `strength` scales all changes, and 0 leaves the rows as they are.

    A picture view has `side` x `side` pixels, if that is not 0: at strength 0 the centre, as a network that predicts
    sees it. (n, …), (n,) → (n, …)
    """
    if how.views == "none":
        return x
    with torch.no_grad():
        if how.views == "rows":
            return x if strength == 0 else _rows(x, keys, how, strength)
        if how.views == "picture" and strength:
            return _picture(x, keys, how, strength, side or x.shape[-1])
        if strength == 0:
            return _centre(x, side) if how.views == "picture" and side else x
        x = _affine(x.float(), keys, how, strength)
        if how.views == "affine+intensity":
            x = _intensity(x, keys, how, strength)
        return _noisy(x, keys, HALF_RANGE * how.noise * strength)


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _noisy(x: Tensor, keys: Tensor, scale: float) -> Tensor:
    return x + scale * draws.normal(keys, "view noise", *x.shape[1:]) if scale else x


def _along(values: Tensor) -> Tensor:
    """One number per image, for all of its pixels. (n,) → (n, 1, 1, 1)"""
    return values[:, None, None, None]


def _sampled(x: Tensor, theta: Tensor, side: tuple[int, int]) -> Tensor:
    """Bilinear samples at θ·(column, row, 1), coordinates in −1 … 1, borders repeated. (n, k, h, w), (n, 2, 3)

    The grid is written out: F.affine_grid multiplies matrices, which a GPU may do in TF32.
    """
    height, width = side
    rows = (2 * torch.arange(height, device=x.device) + 1).float()[:, None] / height - 1
    columns = (2 * torch.arange(width, device=x.device) + 1).float() / width - 1
    t = theta[:, :, :, None, None]
    grid = t[:, :, 0] * columns + t[:, :, 1] * rows + t[:, :, 2]  # (n, 2, height, width)
    return F.grid_sample(x, grid.permute(0, 2, 3, 1), padding_mode="border", align_corners=False)


def _affine(x: Tensor, keys: Tensor, how: Views, strength: float) -> Tensor:
    """θ = R(φ)·[[1, s], [0, 1]]·diag(a, b), then a shift; all drawn uniformly."""
    u = strength * _between(draws.uniform(keys, "view affine", 6), -1, 1)
    angle = u[:, 0] * (how.rotation * math.pi / 180)
    a, b, s = 1 + how.stretch * u[:, 1], 1 + how.stretch * u[:, 2], how.shear * u[:, 3]
    across, down = (u[:, 4 + i] * (2 * how.shift / x.shape[3 - i]) for i in (0, 1))
    cos, sin = angle.cos(), angle.sin()
    theta = torch.stack([cos * a, (cos * s - sin) * b, across, sin * a, (sin * s + cos) * b, down], dim=1)
    return _sampled(x, theta.view(-1, 2, 3), (x.shape[2], x.shape[3]))


def _intensity(x: Tensor, keys: Tensor, how: Views, strength: float) -> Tensor:
    """v ← ±g·v + o of pixels v in −1 … 1."""
    u = draws.uniform(keys, "view intensity", 3)
    gain = 1 + strength * (_between(u[:, 0], *GAIN) - 1)
    sign = torch.where(u[:, 1] < how.inversion * strength, -1.0, 1.0)
    offset = strength * OFFSET * _between(u[:, 2], -1, 1)
    v = x / HALF_RANGE - 1
    return HALF_RANGE * (_along(sign * gain) * v + _along(offset) + 1)


def _rows(x: Tensor, keys: Tensor, how: Views, strength: float) -> Tensor:
    """Noise relative to a row's root mean square, then features set to zero."""
    size = x.square().mean(dim=1, keepdim=True).sqrt()
    noisy = x + strength * how.noise * size * draws.normal(keys, "view noise", x.shape[1])
    rate = how.feature_dropout * strength
    keep = draws.uniform(keys, "view dropout", x.shape[1]) >= rate
    return torch.where(keep, noisy / (1 - rate), 0.0)


def _centre(x: Tensor, side: int) -> Tensor:
    top, left = (x.shape[2] - side) // 2, (x.shape[3] - side) // 2
    return x[:, :, top : top + side, left : left + side]


def _picture(x: Tensor, keys: Tensor, how: Views, strength: float, side: int) -> Tensor:
    """By kernels, wherever they may be used."""
    style = how.style * strength
    view = picture_view
    if _by_kernels(x, keys, 1.0 if style else 0.0, side):
        from askew.nets.kernels.picture_kernel import picture_view as view
    crops = draws.uniform(keys, "view crop", 5)
    styles = draws.uniform(keys, "view style", 12) if style else None
    return view(x, crops, styles, (1 - how.area) * strength, math.log(RATIO) * strength, style, side)


def _by_kernels(x: Tensor, keys: Tensor, style: float, side: int) -> bool:
    if not usable(x, keys) or x.shape[1] > 3:
        return False
    some = 32  # enough for every change to occur among them
    return tried("picture view", ((some, *x.shape[1:]), (some, 5), (some, 12)), (x.dtype, style, side), x.device)


def picture_view(
    x: Tensor, crops: Tensor, styles: Tensor | None, shrink: float, stretch: float, style: float, side: int
) -> Tensor:
    """A random resized crop, flipped half the time, then style: from numbers in 0 … 1 that are drawn.

    A crop keeps 1 − `shrink` of the area at least, and the logarithm of its sides' ratio is ± `stretch` at most.
    (n, k, h, w), (n, 5), (n, 12) → (n, k, side, side)
    """
    area = 1 - shrink * crops[:, 0]
    ratio = torch.exp(stretch * _between(crops[:, 1], -1, 1))
    wide, high = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    across, down = (1 - wide) * _between(crops[:, 2], -1, 1), (1 - high) * _between(crops[:, 3], -1, 1)
    flip = torch.where(crops[:, 4] < 0.5, -1.0, 1.0)
    nothing = torch.zeros_like(wide)
    theta = torch.stack([flip * wide, nothing, across, nothing, high, down], dim=1).view(-1, 2, 3)
    x = _sampled(x.float(), theta, (side, side))
    return x if styles is None else _styled(x, styles, style)


def _styled(x: Tensor, u: Tensor, style: float) -> Tensor:
    """Grey, contrast, sharper or blurred, colour, inverted; `style` scales all.

    All but the blur are linear in a pixel, so that they are one product and one sum: passes over the pixels take time.
    """
    x = torch.lerp(x, x.mean(dim=1, keepdim=True), _along((u[:, 0] < GREY * style).float()))
    contrast = _along(1 + style * _between(u[:, 1], -CONTRAST, CONTRAST))
    sharp = _along(torch.where(u[:, 2] < SHARPER * style, _between(u[:, 3], -1, 1), 0.0))
    gain = _along(1 + style * _between(u[:, 4], -COLOUR, COLOUR))
    offset = style * COLOUR * (HALF_RANGE / 2) * _between(u[:, 5 : 5 + x.shape[1]], -1, 1)
    sign = _along(torch.where(u[:, 11] < NEGATIVE * style, -1.0, 1.0))
    base = gain * (1 - contrast) * x.mean(dim=(1, 2, 3), keepdim=True) + offset[:, :, None, None]
    base = sign * base + (1 - sign) * HALF_RANGE
    scale = sign * gain * contrast
    blurred = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return torch.addcmul(torch.addcmul(base, x, scale * (1 + sharp)), blurred, -scale * sharp)
