"""One forward pass over any number of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from askew.core.device import LANE_ROWS, PREDICT_NUMBERS, PREDICT_ROWS
from askew.data.domains import RowSubset
from askew.nets import forward
from askew.nets.backbones import FAST
from askew.nets.forward import channels_last, chunk_rows, fast_backbones, forward_in_chunks
from askew.nets.modules import backbone_name
from askew.nets.network import build
from askew.nets.spec import parse_network

CPU = torch.device("cpu")
X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 3, 10, 11])
def test_chunks_of_any_size_give_every_row_once_and_in_order(rows: int) -> None:
    assert (forward_in_chunks(lambda x: 2 * x, X, CPU, rows) == 2 * X).all()


def test_no_chunk_has_more_rows_than_asked_for() -> None:
    sizes: list[int] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x

    forward_in_chunks(forward, X, CPU, 4)
    assert sizes == [4, 4, 2]


def test_rows_that_are_read_only_or_picked_from_an_array_pass_without_a_warning() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    assert (forward_in_chunks(nn.Identity(), fixed, CPU) == X).all()
    assert (
        forward_in_chunks(nn.Identity(), RowSubset(fixed, np.array([7, 2])), CPU) == X[[7, 2]]
    ).all()


def test_a_chunk_is_bounded_by_rows_by_numbers_and_by_lanes() -> None:
    assert chunk_rows((4,)) == PREDICT_ROWS
    assert chunk_rows((3, 224, 224)) == PREDICT_NUMBERS // (3 * 224 * 224)
    assert chunk_rows((PREDICT_NUMBERS,)) == 16
    assert chunk_rows((4,), lanes=8) == LANE_ROWS // 8


def test_a_backbone_in_bfloat16_says_what_it_says_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        forward, "fast_bfloat16", lambda device: True
    )  # which every processor can imitate
    features: Any = build(parse_network("resnet18"), (3, 64, 64), 2, 0)[0]["features"].eval()
    x = torch.randint(
        0, 256, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        exact = features(x)
        for rows in (0, 4):
            with fast_backbones(features, rows):
                assert (features, False) in FAST.get()
                for part in (x, x[:3]):  # a batch of the size that was prepared for, and another
                    rounded = features(part)
                    assert rounded.dtype == torch.float32
                    assert (rounded - exact[: len(part)]).norm() < 0.03 * exact[: len(part)].norm()
        assert torch.equal(features(x), exact), "afterwards it is as it was"


def test_fused_layers_in_float32_say_what_the_backbone_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forward, "fast_bfloat16", lambda device: False)
    features: Any = build(parse_network("resnet18"), (3, 64, 64), 2, 0)[0]["features"].eval()
    x = torch.randint(
        0, 256, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    with torch.inference_mode():
        exact = features(x)
        with fast_backbones(features):
            assert not FAST.get(), "without a size to prepare for there is nothing to gain"
        with fast_backbones(features, 4):
            assert (features, False) in FAST.get()
            for part in (x, x[:3]):  # a batch of the size that was prepared for, and another
                assert (features(part) - exact[: len(part)]).norm() < 1e-4 * exact[
                    : len(part)
                ].norm()


def last_in_memory(features: nn.Module) -> list[bool]:
    weights = [
        m.weight for m in features.modules() if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1)
    ]
    return [weight.is_contiguous(memory_format=torch.channels_last) for weight in weights]


@pytest.mark.parametrize("name", ["resnet18", "resnet18+mlp"])
def test_backbones_are_laid_out_channels_last_wherever_they_stand(name: str) -> None:
    features = build(parse_network(name), (3, 64, 64), 2, 0)[0]["features"]
    assert not any(last_in_memory(features))
    channels_last(features)
    assert all(last_in_memory(features))


def test_a_network_of_somebody_s_own_and_our_small_ones_keep_the_usual_order() -> None:
    own = backbone_name(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1))
    )
    for name in (own, "digits-32"):
        features = build(parse_network(name), (3, 32, 32), 2, 0)[0]["features"]
        channels_last(features)
        assert not any(last_in_memory(features))
