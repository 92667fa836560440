"""Picture views by Triton kernels: what torch's functions make of the same random numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from askew.core import random
from askew.nets import augment
from askew.nets.augment import Views, make_view

PROGRAM = Path(__file__).parents[1] / "support" / "interpreted_pictures.py"
ON = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def keys(n: int, device: str) -> Tensor:
    return random.hash64(random.key("pictures"), torch.arange(n, device=device))


def pictures(n: int, channels: int, sides: tuple[int, int], device: str) -> Tensor:
    """Smooth ones: neighbours that differ by 255 show the rounding of places."""
    rng = torch.Generator().manual_seed(0)
    coarse = 255 * torch.rand(n, channels, 5, 5, generator=rng)
    return torch.nn.functional.interpolate(coarse, sides, mode="bilinear").byte().to(device)


def test_interpreted_kernels_make_the_views_that_torch_makes() -> None:
    """Of one and three channels, odd sides, uint8 and floats, at all styles and strengths."""
    pytest.importorskip("triton", reason="Triton is missing")
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    apart = [float(line) for line in done.stdout.split()]
    assert len(apart) == 7 + 2
    assert max(apart) < 1e-5


@pytest.mark.parametrize("device", ON)
def test_under_vmap_and_in_odd_forms_views_are_those_of_plain_images(device: str) -> None:
    x, k, how = pictures(6, 3, (20, 24), device), keys(6, device), Views(views="picture")
    wanted = make_view(x, k, how, side=16)
    lanes = vmap(lambda x, k: make_view(x, k, how, side=16))(
        x.view(2, 3, *x.shape[1:]), k.view(2, 3)
    )
    last = x.contiguous(memory_format=torch.channels_last)
    wide = torch.cat([x, x], dim=3)[..., :24]
    for found in (
        lanes.flatten(0, 1),
        *(make_view(odd, k, how, side=16) for odd in (last, wide, x.float(), x.double(), x.long())),
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-2)
    assert make_view(x[:0], k[:0], how, side=16).shape == (0, 3, 16, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("style", [0.0, 1.0])
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
@pytest.mark.parametrize(
    ("channels", "sides", "side"), [(3, (256, 256), 224), (1, (45, 61), 37), (3, (33, 32), 32)]
)
def test_a_gpu_makes_them_by_kernels_channels_last(
    channels: int,
    sides: tuple[int, int],
    side: int,
    kind: torch.dtype,
    style: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton", reason="Triton is missing")
    x, k, how = (
        pictures(48, channels, sides, "cuda").to(kind),
        keys(48, "cuda"),
        Views(views="picture", style=style),
    )
    assert augment._by_kernels(x, k, style, side), "the kernels were refused"
    found = [make_view(x, k, how, strength, side) for strength in (1.0, 0.4)]
    assert all(view.is_contiguous(memory_format=torch.channels_last) for view in found)
    monkeypatch.setattr(augment, "_by_kernels", lambda *_: False)
    for view, strength in zip(found, (1.0, 0.4), strict=True):
        wanted = make_view(x, k, how, strength, side)
        assert (view - wanted).norm() < 1e-5 * wanted.norm()
        assert (view - wanted).abs().max() < 0.01


@pytest.mark.gpu
def test_views_by_kernels_can_be_captured_in_a_graph() -> None:
    x, k, how = pictures(8, 3, (40, 40), "cuda"), keys(8, "cuda"), Views(views="picture")
    make_view(x, k, how, side=32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = make_view(x, k, how, side=32)
    k.copy_(random.hash64(7, k))
    graph.replay()
    torch.testing.assert_close(view, make_view(x, k, how, side=32))
