"""Random views, held against transforms written out in plain numpy, and against the distributions
that are stated."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from askew.core import random
from askew.core.errors import UserError
from askew.nets import augment
from askew.nets.augment import NO_VIEWS, Views, check_views, make_view
from askew.nets.triton.pictures import styled

STILL = Views(views="affine", rotation=0, stretch=0, shear=0, shift=0, noise=0)
"""Affine views that change nothing, but for what a test sets."""
KINDS = ("affine", "affine+intensity", "picture", "rows")


def keys(n: int, name: str = "views") -> Tensor:
    return random.hash64(random.key(name), torch.arange(n))


def inputs(views: str, n: int = 6) -> Tensor:
    """Images of 10 x 12 pixels, or rows, that suit views of that kind."""
    rng = torch.Generator().manual_seed(0)
    if views == "rows":
        return torch.randn(n, 20, generator=rng)
    side = (12, 12) if views == "picture" else (10, 12)
    return torch.randint(0, 256, (n, 3, *side), generator=rng, dtype=torch.uint8)


def spread(share: float, n: int) -> float:
    """Five standard deviations of a share that is counted in n draws."""
    return 5 * math.sqrt(share * (1 - share) / n)


# --- a function of the key ---


@pytest.mark.parametrize("views", KINDS)
def test_a_view_depends_on_its_image_and_key_alone(views: str) -> None:
    x, k, how = inputs(views), keys(6), Views(views=views)  # type: ignore[arg-type]
    all_of_them = make_view(x, k, how)
    turned = make_view(x.flip(0), k.flip(0), how).flip(0)
    alone = torch.cat([make_view(x[i : i + 1], k[i : i + 1], how) for i in range(6)])
    for other in (turned, alone):  # sums over a picture may be taken in another order
        torch.testing.assert_close(other, all_of_them, rtol=1e-5, atol=1e-3)
    assert torch.equal(make_view(x, k, how), all_of_them)


@pytest.mark.parametrize("views", KINDS)
def test_other_keys_give_other_views(views: str) -> None:
    x = inputs(views, 1).expand(8, *[-1] * (1 if views == "rows" else 3))
    seen = make_view(x, keys(8), Views(views=views)).flatten(1)  # type: ignore[arg-type]
    assert (torch.cdist(seen, seen) + 1e9 * torch.eye(8)).min() > 0.1


def test_row_views_are_the_same_under_vmap() -> None:
    x, k, how = inputs("rows"), keys(6), Views(views="rows")
    lanes = vmap(lambda x, k: make_view(x, k, how))(x.view(2, 3, -1), k.view(2, 3))
    torch.testing.assert_close(lanes.flatten(0, 1), make_view(x, k, how))


def test_views_have_no_gradient_and_leave_their_images_alone() -> None:
    x = inputs("affine").float().requires_grad_()
    before = x.detach().clone()
    assert not make_view(x, keys(6), Views(views="affine+intensity")).requires_grad
    assert torch.equal(x.detach(), before)


# --- views that are none ---


def test_no_views_and_strength_nought_leave_images_as_they_are() -> None:
    for views in ("affine", "affine+intensity", "picture", "rows"):
        x = inputs(views)
        assert make_view(x, keys(6), NO_VIEWS) is x
        # type: ignore[arg-type]
        assert torch.equal(make_view(x, keys(6), Views(views=views), 0.0), x)


def test_a_picture_at_strength_nought_is_its_centre() -> None:
    x = inputs("picture")
    assert torch.equal(
        make_view(x, keys(6), Views(views="picture"), 0.0, side=8), x[:, :, 2:10, 2:10]
    )


@pytest.mark.parametrize("views", KINDS)
def test_a_weak_view_is_near_its_image(views: str) -> None:
    x, how = inputs(views).float(), Views(views=views)  # type: ignore[arg-type]
    how = dataclasses.replace(
        how, inversion=0.0, feature_dropout=0.0, noise=0.01
    )  # all or nothing, not scaled
    if views == "picture":  # half of them are flipped, at any strength
        weak = torch.stack([make_view(v, keys(6), how, 1e-4) for v in (x, x.flip(-1))])
        apart = (weak - x).flatten(2).norm(dim=2).min(dim=0).values
    else:
        apart = (make_view(x, keys(6), how, 1e-4) - x).flatten(1).norm(dim=1)
    assert (apart < 0.01 * x.flatten(1).norm(dim=1)).all()


# --- affine ---


def sampled(image: np.ndarray[Any, Any], theta: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Bilinear samples at θ·(x, y, 1), pixel by pixel; beyond the border its pixels are repeated.
    (k, h, w)"""
    k, h, w = image.shape
    out = np.zeros((k, h, w))
    for r in range(h):
        for c in range(w):
            x, y = theta @ np.array([(2 * c + 1) / w - 1, (2 * r + 1) / h - 1, 1])
            column = min(max(((x + 1) * w - 1) / 2, 0), w - 1)
            row = min(max(((y + 1) * h - 1) / 2, 0), h - 1)
            c0, r0 = min(int(column), w - 2), min(int(row), h - 2)
            right, down = column - c0, row - r0
            top = (1 - right) * image[:, r0, c0] + right * image[:, r0, c0 + 1]
            bottom = (1 - right) * image[:, r0 + 1, c0] + right * image[:, r0 + 1, c0 + 1]
            out[:, r, c] = (1 - down) * top + down * bottom
    return out


@pytest.mark.parametrize("strength", [1.0, 0.4])
def test_an_affine_view_is_a_turn_of_a_shear_of_a_stretch_and_a_shift(strength: float) -> None:
    x, k = inputs("affine"), keys(6)
    how = Views(views="affine", rotation=30, stretch=0.2, shear=0.3, shift=3, noise=0)
    drawn = strength * (2 * random.uniform(k, "view affine", 6).double().numpy() - 1)
    for image, u, view in zip(
        x.numpy(), drawn, make_view(x, k, how, strength).numpy(), strict=True
    ):
        angle = np.radians(30 * u[0])
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        linear = (
            turn @ np.array([[1, 0.3 * u[3]], [0, 1]]) @ np.diag([1 + 0.2 * u[1], 1 + 0.2 * u[2]])
        )
        shift = np.array([[2 * 3 * u[4] / 12], [2 * 3 * u[5] / 10]])
        np.testing.assert_allclose(
            view, sampled(image.astype(float), np.hstack([linear, shift])), atol=0.02
        )


def drawing(monkeypatch: pytest.MonkeyPatch, *u: float) -> None:
    """All uniform numbers of a row are these from now on, in −1 … 1."""
    row = (torch.tensor(u) + 1) / 2
    monkeypatch.setattr(
        augment.draws, "uniform", lambda k, stream, *shape: row.expand(len(k), *shape)
    )


def test_the_middle_of_every_range_is_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 0, 0, 0, 0, 0, 0)
    x = inputs("affine").float()
    torch.testing.assert_close(
        make_view(x, keys(6), Views(views="affine", noise=0)), x, rtol=0, atol=0.01
    )


def test_a_quarter_turn_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 1, 0, 0, 0, 0, 0)
    x = inputs("picture").float()
    turned = make_view(x, keys(6), dataclasses.replace(STILL, rotation=90))
    torch.testing.assert_close(turned, torch.rot90(x, 1, (2, 3)), rtol=0, atol=0.01)


def test_a_shift_by_one_pixel_moves_columns_or_rows_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, how = inputs("affine").float(), dataclasses.replace(STILL, shift=1)
    drawing(monkeypatch, 0, 0, 0, 0, 1, 0)
    across = torch.cat([x[..., 1:], x[..., -1:]], dim=3)
    torch.testing.assert_close(make_view(x, keys(6), how), across, rtol=0, atol=0.01)
    drawing(monkeypatch, 0, 0, 0, 0, 0, -1)
    down = torch.cat([x[..., :1, :], x[..., :-1, :]], dim=2)
    torch.testing.assert_close(make_view(x, keys(6), how), down, rtol=0, atol=0.01)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_noise_has_the_stated_size(strength: float) -> None:
    grey = torch.full((200, 3, 10, 10), 100.0)
    noise = make_view(grey, keys(200), dataclasses.replace(STILL, noise=0.2), strength) - grey
    wanted, n = 0.2 * 127.5 * strength, noise.numel()
    assert noise.std().item() == pytest.approx(wanted, rel=5 / (2 * n) ** 0.5)
    assert abs(noise.mean().item()) < 5 * wanted / n**0.5
    assert noise.abs().max() > 3.5 * wanted, "it is not clipped"


# --- intensity ---


@pytest.mark.parametrize(("strength", "inversion"), [(1.0, 0.5), (1.0, 0.0), (0.4, 0.5)])
def test_intensity_views_keep_to_gain_offset_and_share_of_negatives(
    strength: float, inversion: float
) -> None:
    n = 4000
    x = torch.full((n, 1, 4, 8), 127.5 - 100)
    x[..., 4:] = 127.5 + 100
    how = dataclasses.replace(STILL, views="affine+intensity", inversion=inversion)
    v = make_view(x, keys(n), how, strength)[:, 0, 0] / 127.5 - 1
    gain, offset = (v[:, 7] - v[:, 0]) / 2 / (100 / 127.5), (v[:, 7] + v[:, 0]) / 2
    share = inversion * strength
    assert (gain < 0).double().mean().item() == pytest.approx(share, abs=spread(share, n))
    low, high = 1 - 0.75 * strength, 1 + 0.5 * strength
    for values, ends in ((gain.abs(), (low, high)), (offset, (-0.5 * strength, 0.5 * strength))):
        assert ends[0] - 1e-3 < values.min() < ends[0] + 0.01
        assert ends[1] - 0.01 < values.max() < ends[1] + 1e-3
        assert abs(values.mean().item() - sum(ends) / 2) < 5 * (ends[1] - ends[0]) / (12 * n) ** 0.5


# --- pictures ---


def places(n: int, how: Views, side: int) -> Tensor:
    """Where n crops of a picture of 40 x 40 pixels lie: middle and extent along each axis. (n,
    axis, 2)

    The picture's pixels hold their own column (channel 0) and row (channel 1), so a crop tells
    where it was taken.
    """
    ramp = torch.arange(40.0)
    picture = torch.stack([ramp.expand(40, 40), ramp[:, None].expand(40, 40), torch.zeros(40, 40)])
    view = make_view(picture.expand(n, 3, 40, 40), keys(n), how, side=side)
    assert view.shape == (n, 3, side, side)
    half = side // 2
    columns, rows = view[:, 0, half], view[:, 1, :, half]
    ends = torch.stack(
        [torch.stack([v[:, half - 1], v[:, half]], dim=1) for v in (columns, rows)], dim=1
    )
    return torch.stack([ends.mean(dim=2), side * (ends[..., 1] - ends[..., 0])], dim=2)


def test_crops_stay_inside_the_picture_and_keep_area_and_ratio() -> None:
    n = 1000
    middle, extent = places(n, Views(views="picture", area=0.2, style=0), 16).unbind(dim=2)
    extent = extent.abs()
    assert (middle - extent / 2 > -0.5 - 1e-2).all()
    assert (middle + extent / 2 < 39.5 + 1e-2).all()
    area, ratio = extent.prod(dim=1) / 40**2, extent[:, 0] / extent[:, 1]
    assert area.min() > 0.2 - 1e-2
    assert 0.9 < area.max() < 1 + 1e-2
    assert (ratio > 3 / 4 - 1e-2).all()
    assert (ratio < 4 / 3 + 1e-2).all()
    small = area < 0.7  # such a crop fits at any ratio, so its ratio and place are as drawn
    assert (
        abs(ratio[small].log().mean().item())
        < 5 * math.log(4 / 3) / (3 * small.sum().item()) ** 0.5
    )
    room = (40 - extent[small]) / 2
    place = (middle[small] - 19.5) / room
    assert place.min() < -0.95
    assert place.max() > 0.95


def test_half_of_the_pictures_are_flipped_left_to_right_and_none_upside_down() -> None:
    n = 1000
    extent = places(n, Views(views="picture", style=0), 20)[:, :, 1]
    assert (extent[:, 0] < 0).double().mean().item() == pytest.approx(0.5, abs=spread(0.5, n))
    assert (extent[:, 1] > 0).all()


@pytest.mark.parametrize(("style", "grey"), [(1.0, 0.25), (0.0, 0.0)])
def test_style_makes_a_quarter_of_the_pictures_grey(style: float, grey: float) -> None:
    n = 1000
    red = torch.zeros(n, 3, 12, 12)
    red[:, 0] = torch.linspace(50, 200, 12)
    view = make_view(red, keys(n), Views(views="picture", style=style))
    slope = (
        (view[..., -1] - view[..., 0]).abs().mean(dim=2)
    )  # an offset of each colour does not show in it
    is_grey = (slope[:, 0] - slope[:, 1]).abs() < 1e-2 * slope[:, 0]
    assert is_grey.double().mean().item() == pytest.approx(grey, abs=spread(grey, n))


def test_style_is_grey_contrast_sharpness_colour_and_polarity_one_after_the_other() -> None:
    """Each written out by itself; with 60 pictures, every change occurs."""
    x, of = inputs("picture", 60).double(), keys(60)
    drawn = random.uniform(of, "view style", 12)
    for picture, u, view in zip(x, drawn.double(), styled(x.float(), drawn, 1.0), strict=True):
        p = picture.mean(dim=0, keepdim=True).expand(3, -1, -1) if u[0] < 0.25 else picture
        p = p.mean() + (0.5 + u[1]) * (p - p.mean())
        if u[2] < 0.3:
            high, wide = p.shape[1:]
            around = [
                [p[:, max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2] for j in range(wide)]
                for i in range(high)
            ]
            blurred = torch.stack(
                [torch.stack([a.mean(dim=(1, 2)) for a in row], dim=1) for row in around], dim=1
            )
            p = p + (2 * u[3] - 1) * (p - blurred)
        p = (0.8 + 0.4 * u[4]) * p + 0.2 * 255 / 4 * (2 * u[5:8] - 1)[:, None, None]
        torch.testing.assert_close(view.double(), 255 - p if u[11] < 0.15 else p, rtol=0, atol=1e-3)


def test_without_style_colours_stay_as_they_are() -> None:
    x = torch.tensor([10.0, 100.0, 250.0])[:, None, None].expand(5, 3, 12, 12)
    torch.testing.assert_close(make_view(x, keys(5), Views(views="picture", style=0)), x)


# --- rows ---


def test_row_views_keep_the_expectation_and_drop_the_stated_share() -> None:
    n, how = 20_000, Views(views="rows", noise=0.3, feature_dropout=0.25)
    row = torch.tensor([4.0, -1.0, 0.5, 0.0])
    view = make_view(row.expand(n, 4), keys(n), how).double()
    size = row.square().mean().sqrt().item()
    dropped = view == 0
    assert dropped.double().mean().item() == pytest.approx(0.25, abs=spread(0.25, 4 * n))
    error = (((row.square() + (0.3 * size) ** 2) / 0.75 - row.square()) / n).sqrt()
    assert ((view.mean(dim=0) - row).abs() < 5 * error).all()
    kept = (0.75 * view - row)[~dropped]
    assert kept.std().item() == pytest.approx(0.3 * size, rel=0.02)
    assert make_view(row.expand(2, 4), keys(2), how).dtype == torch.float32


# --- what a user does wrong ---


@pytest.mark.parametrize(
    ("views", "shape", "found"),
    [("affine", (8,), "8"), ("picture", (8,), "8"), ("rows", (3, 32, 32), "3 x 32 x 32")],
)
def test_views_that_do_not_fit_the_inputs_are_refused(
    views: Any, shape: tuple[int, ...], found: str
) -> None:
    with pytest.raises(UserError, match=f"{views} are for .*, found inputs of shape {found}"):
        check_views(Views(views=views), shape)


def test_views_that_fit_are_not_refused() -> None:
    for views, shape in (
        ("none", (8,)),
        ("rows", (8,)),
        ("affine", (1, 28, 28)),
        ("picture", (3, 32, 32)),
    ):
        check_views(Views(views=views), shape)  # type: ignore[arg-type]
