"""Random views of images and rows, made on the device, each a pure function of one hashed key per
row.

A key is a hash of (seed, step, position in the batch, number of the view), so a view is the same in
eager execution, a CUDA graph, a lane, another process and after a resume. Images come out as floats
on the scale 0 … 255, not clipped, so that a network's own normalisation of pixels stays as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from askew.core.errors import UserError
from askew.core.options import Between
from askew.nets.triton import draws
from askew.nets.triton.pictures import HALF_RANGE, RATIO, along, between, picture_view, sampled
from askew.nets.triton.trust import tried, usable

GAIN = (0.25, 1.5)
OFFSET = 0.5


@dataclass(frozen=True, kw_only=True)
class Views:
    """How random views of an image (or of a row of features) are drawn."""

    views: Literal["none", "affine", "affine+intensity", "picture", "rows"] = "none"
    """What every network sees in training: images as they are, or random views of them (see
    docs/views.md)."""
    rotation: Annotated[float, Between(0, 180)] = 20.0
    """Affine views turn an image by up to so many degrees."""
    stretch: Annotated[float, Between(0, 0.9)] = 0.25
    """Affine views scale each axis by 1 ± so much."""
    shear: Annotated[float, Between(0, 1)] = 0.25
    """Affine views shear by up to so much."""
    shift: Annotated[float, Between(0)] = 2.0
    """Affine views shift by up to so many pixels along each axis."""
    noise: Annotated[float, Between(0, 10)] = 0.1
    """Standard deviation of the noise on each pixel in −1 … 1, or on each feature relative to its
    row's size."""
    inversion: Annotated[float, Between(0, 1)] = 0.5
    """Share of intensity views that are negatives."""
    area: Annotated[float, Between(0.01, 1)] = 0.08
    """Smallest share of a picture that a crop keeps."""
    style: Annotated[float, Between(0, 1)] = 1.0
    """How much picture views change grey, contrast, sharpness and polarity; 0: crops and flips
    alone."""
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
        of, hint = (
            ("images", "rows") if len(shape) == 1 else ("rows of features", "affine or picture")
        )
        raise UserError(
            f"Views of the kind {how.views} are for {of}, found inputs of shape "
            f"{' x '.join(map(str, shape))}.",
            f"-t views={hint}, or none.",
        )


def make_view(x: Tensor, keys: Tensor, how: Views, strength: float = 1.0, side: int = 0) -> Tensor:
    """One view per row; `strength` scales all changes, and 0 leaves the rows as they are.

    A picture view has `side` x `side` pixels, if that is not 0: at strength 0 the centre, as a
    network that predicts sees it. (n, …), (n,) → (n, …)
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


def _noisy(x: Tensor, keys: Tensor, scale: float) -> Tensor:
    return x + scale * draws.normal(keys, "view noise", *x.shape[1:]) if scale else x


def _affine(x: Tensor, keys: Tensor, how: Views, strength: float) -> Tensor:
    """θ = R(φ)·[[1, s], [0, 1]]·diag(a, b), then a shift; all drawn uniformly."""
    u = strength * between(draws.uniform(keys, "view affine", 6), -1, 1)
    angle = u[:, 0] * (how.rotation * math.pi / 180)
    a, b, s = 1 + how.stretch * u[:, 1], 1 + how.stretch * u[:, 2], how.shear * u[:, 3]
    across, down = (u[:, 4 + i] * (2 * how.shift / x.shape[3 - i]) for i in (0, 1))
    cos, sin = angle.cos(), angle.sin()
    theta = torch.stack(
        [cos * a, (cos * s - sin) * b, across, sin * a, (sin * s + cos) * b, down], dim=1
    )
    return sampled(x, theta.view(-1, 2, 3), (x.shape[2], x.shape[3]))


def _intensity(x: Tensor, keys: Tensor, how: Views, strength: float) -> Tensor:
    """v ← ±g·v + o of pixels v in −1 … 1."""
    u = draws.uniform(keys, "view intensity", 3)
    gain = 1 + strength * (between(u[:, 0], *GAIN) - 1)
    sign = torch.where(u[:, 1] < how.inversion * strength, -1.0, 1.0)
    offset = strength * OFFSET * between(u[:, 2], -1, 1)
    v = x / HALF_RANGE - 1
    return HALF_RANGE * (along(sign * gain) * v + along(offset) + 1)


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
        from askew.nets.triton.picture_kernel import picture_view as view
    crops = draws.uniform(keys, "view crop", 5)
    styles = draws.uniform(keys, "view style", 12) if style else None
    return view(
        x, crops, styles, (1 - how.area) * strength, math.log(RATIO) * strength, style, side
    )


def _by_kernels(x: Tensor, keys: Tensor, style: float, side: int) -> bool:
    if not usable(x, keys) or x.shape[1] > 3:
        return False
    some = 32  # enough for every change to occur among them
    return tried(
        "picture view",
        ((some, *x.shape[1:]), (some, 5), (some, 12)),
        (x.dtype, style, side),
        x.device,
    )
