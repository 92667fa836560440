"""Backbones that people have: any timm model at a size it takes, weights from any file, and none of
another variant."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.nets import starting_weights
from askew.nets.backbones import Backbone, Corners, build_backbone, seen_side
from askew.nets.embedding import Embedding

PICTURE = (3, 256, 256)


def features_of(name: str, shape: tuple[int, ...]) -> tuple[Any, int]:
    pytest.importorskip("timm", reason="timm is an extra")
    return build_backbone(Embedding(backbone=f"timm:{name}"), shape)


@pytest.mark.parametrize(
    ("name", "size", "width"),
    [
        ("lcnet_050", 224, 1280),  # whose num_features is another number
        ("vit_tiny_patch16_384", 224, 192),  # its positions are interpolated
        ("test_efficientnet_gn", 224, 256),
    ],
)
def test_a_timm_model_gives_as_many_numbers_as_a_pass_through_it_finds(
    name: str, size: int, width: int
) -> None:
    features, found = features_of(name, PICTURE)
    assert (features.size, found) == ((size, size), width)
    assert features.eval()(torch.zeros(2, *PICTURE, dtype=torch.uint8)).shape == (2, width)


def test_a_model_that_takes_no_other_size_sees_pictures_at_its_own() -> None:
    features, width = features_of(
        "vit_tiny_patch16_224", (3, 64, 64)
    )  # 64 pixels would be 4 x 4 patches
    assert features.size == (224, 224)
    assert features.eval()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape == (2, width)
    assert seen_side(Embedding(backbone="timm:swinv2_cr_tiny_384")) == 384
    assert seen_side(Embedding(backbone="timm:vit_small_patch14_dinov2")) == 224
    assert seen_side(Embedding(backbone="resnet18")) == 224


def test_torchvisions_transformers_take_pictures_of_any_size() -> None:
    with torch.device("meta"):
        features, width = build_backbone(Embedding(backbone="vit_b_16"), (3, 32, 32))
    assert (features.size, width) == ((224, 224), 768)


class FirstPixel(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, 0, 0].float()


def test_corners_are_two_opposite_ones_and_mirrored() -> None:
    ramp = torch.arange(8, dtype=torch.uint8).expand(1, 3, 8, 8)
    for image, first in ((ramp, (0, 7, 5)), (ramp.mT, (0, 0, 2))):
        found = Corners(FirstPixel(), (6, 6))(image).tolist()
        assert found == [[pytest.approx(sum(first) / 3)] * 3]


def test_features_of_corners_are_the_mean_over_three_views() -> None:
    embedding, shape = Embedding(backbone="resnet18", crop=32), (3, 40, 40)
    torch.manual_seed(0)
    plain, width = build_backbone(embedding, shape)
    torch.manual_seed(0)
    three = dataclasses.replace(embedding, corners=True)
    net, same = build_backbone(three, shape)
    assert (width, three.views) == (same, 3)
    seen: list[Tensor] = []
    plain.eval().register_forward_hook(lambda _, inputs, f: seen.append(f))
    x = torch.randint(256, (2, *shape), dtype=torch.uint8)
    with torch.no_grad():
        f = net.eval()(x)
        assert Corners(plain, (32, 32))(x).equal(f)
    assert len(seen) == 3
    torch.testing.assert_close(torch.stack(seen).mean(dim=0), f)


@pytest.mark.parametrize("name", ["resnet18", "timm:resnet10t"])
def test_a_resnet_pools_by_a_generalised_mean_if_asked_to(name: str) -> None:
    shape = (3, 40, 40)
    torch.manual_seed(0)
    plain, _ = build_backbone(Embedding(backbone=name), shape)
    torch.manual_seed(0)
    gem, _ = build_backbone(Embedding(backbone=name, pooling="gem"), shape)
    assert isinstance(plain, Backbone)
    maps: list[Tensor] = []
    plain.eval().body.get_submodule("layer4").register_forward_hook(
        lambda _, inputs, f: maps.append(f)
    )
    x = torch.randint(256, (2, *shape), dtype=torch.uint8)
    with torch.no_grad():
        plain(x)
        found = gem.eval()(x)
    wanted = maps[0].double().relu().pow(3).mean(dim=(2, 3)).pow(1 / 3)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


def test_a_network_that_is_no_resnet_pools_as_it_does() -> None:
    x = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    torch.manual_seed(0)
    plain, _ = build_backbone(Embedding(backbone="shufflenet_v2_x0_5"), (3, 32, 32))
    torch.manual_seed(0)
    same, _ = build_backbone(Embedding(backbone="shufflenet_v2_x0_5", pooling="gem"), (3, 32, 32))
    with torch.no_grad():
        assert same.eval()(x).equal(plain.eval()(x))


# --- weights ---


def saved_with_torch(path: Path, wrap: Any) -> dict[str, Tensor]:
    from torchvision import models

    torch.manual_seed(5)
    state = models.get_model("shufflenet_v2_x0_5").state_dict()
    torch.save(wrap(state), path)
    return dict(state)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}},
        lambda state: {"model": {"state_dict": state}},
    ],
)
def test_weights_saved_by_torch_load_however_they_are_wrapped(tmp_path: Path, wrap: Any) -> None:
    saved = saved_with_torch(tmp_path / "own.pth", wrap)
    features, _ = build_backbone(
        Embedding(backbone="shufflenet_v2_x0_5", weights=str(tmp_path / "own.pth")), (3, 32, 32)
    )
    assert all(
        torch.equal(value, saved[name]) for name, value in features.body.state_dict().items()
    )


class _Trap:
    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (_Trap, "ran", True)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": _Trap()}, tmp_path / "trap.pth")
    with pytest.raises(UserError, match="holds no plain weights"):
        build_backbone(
            Embedding(backbone="shufflenet_v2_x0_5", weights=str(tmp_path / "trap.pth")),
            (3, 32, 32),
        )
    assert not _Trap.ran


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, {"model": {"a": 1}}])
def test_a_file_of_torch_without_weights_is_told(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(UserError, match="holds no weights by name"):
        build_backbone(
            Embedding(backbone="shufflenet_v2_x0_5", weights=str(tmp_path / "other.pt")),
            (3, 32, 32),
        )


@pytest.fixture
def small_photographs(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    smooth = torch.nn.functional.interpolate(
        torch.randn(8, 3, 12, 12, generator=torch.Generator().manual_seed(0)),
        (96, 96),
        mode="bilinear",
    )
    monkeypatch.setattr(starting_weights, "_photographs", lambda: smooth)
    return smooth


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNets of bottlenecks with one of them a stage, whose stride is all that the test below is
    about."""
    from torchvision.models import resnet

    monkeypatch.setattr(
        "torchvision.models.get_model",
        lambda name, weights: resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1]),
    )


@pytest.mark.usefixtures("shallow")
@pytest.mark.parametrize(
    ("name", "other"), [("resnet50", "resnet50.v1"), ("resnet50.v1", "resnet50")]
)
def test_weights_of_the_same_shapes_and_other_strides_are_refused(
    tmp_path: Path,
    small_photographs: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    other: str,
) -> None:
    features, _ = build_backbone(Embedding(backbone=name), PICTURE)
    for module in features.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        features.body(
            small_photographs
        )  # in training: the statistics become those of these photographs
    path = tmp_path / "weights.safetensors"
    for init in (
        "kaiming_normal_",
        "kaiming_uniform_",
    ):  # weights that are loaded need no others before
        monkeypatch.setattr(torch.nn.init, init, lambda tensor, *_, **__: tensor)

    def load(name: str) -> None:
        build_backbone(Embedding(backbone=name, weights=str(path)), PICTURE)

    save_file(features.body.state_dict(), path)
    load(name)
    with pytest.raises(UserError, match=f"not those of {other}: statistics of photographs") as told:
        load(other)
    assert told.value.hint == f"--backbone {name}."
    stride = "v1: on the first convolution" if name.endswith("v1") else "v1.5"
    save_file(features.body.state_dict(), path, {"stride": stride})
    load(name)
    with pytest.raises(UserError, match=f"not those of {other}: it says '{stride}'"):
        load(other)
