"""Networks: sizes, normalisation, heads, dropout by hash, backbones by name, weights from a
file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.core.random import key
from askew.nets import layers
from askew.nets.heads import CosineHead, LinearHead
from askew.nets.layers import Dropout, Pixels
from askew.nets.network import Net, build, check
from askew.nets.spec import NetworkSpec, file_hash, parse_network

steady = settings(derandomize=True, deadline=None, max_examples=60, database=None)
PHOTO = (3, 64, 64)
SMALL = "shufflenet_v2_x0_5"  # the smallest of torchvision


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def conv(cin: int, cout: int) -> int:
    return cin * cout * 5 * 5 + cout + 2 * cout  # weights, biases, batch norm


def dense(win: int, wout: int) -> int:
    return win * wout + wout + 2 * wout


def images(n: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randint(
        256, (n, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def same(one: dict[str, nn.Module], two: dict[str, nn.Module]) -> bool:
    pairs = [(one[part].state_dict(), two[part].state_dict()) for part in ("features", "head")]
    return all(torch.equal(a[name], b[name]) for a, b in pairs for name in a)


# Our own networks


@pytest.mark.parametrize(
    ("name", "shape", "size", "width"),
    [
        (
            "digits-28",
            (1, 28, 28),
            conv(1, 32) + conv(32, 48) + dense(768, 100) + dense(100, 100),
            100,
        ),
        (
            "digits-32",
            (3, 32, 32),
            conv(3, 64) + conv(64, 64) + conv(64, 128) + dense(8192, 3072) + dense(3072, 2048),
            2048,
        ),
        ("mlp", (17,), dense(17, 512) + dense(512, 256), 256),
        ("bottleneck", (17,), dense(17, 256), 256),
        ("bare", (17,), 0, 17),
    ],
)
def test_a_network_has_the_layers_it_was_published_with(
    name: str, shape: tuple[int, ...], size: int, width: int
) -> None:
    parts, found = build(parse_network(name), shape, 10, seed=0)
    assert found == width
    assert parameters(parts["features"]) == size
    assert parameters(parts["head"]) == width * 10 + 10
    x = images(2, shape) if len(shape) == 3 else torch.randn(2, *shape)
    assert parts["head"](parts["features"](x)).shape == (2, 10)


def test_the_mini_network_is_under_200_000_parameters() -> None:
    parts, width = build(NetworkSpec(layers="mini"), (3, 32, 32), 10, 0)
    assert 10_000 < parameters(parts["features"]) + parameters(parts["head"]) < 200_000
    assert parts["features"](images(2, (3, 32, 32))).shape == (2, width)


@pytest.mark.parametrize("name", ["mini", SMALL])
def test_networks_of_one_seed_are_equal_and_of_another_differ(name: str) -> None:
    spec = parse_network(name, head="cosine")
    first = build(spec, (3, 32, 32), 10, 0)[0]
    torch.rand(3)  # whatever torch's own chance has done meanwhile
    assert same(first, build(spec, (3, 32, 32), 10, 0)[0])
    assert not same(first, build(spec, (3, 32, 32), 10, 1)[0])


def test_building_leaves_torchs_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    build(NetworkSpec(layers="mini"), (3, 32, 32), 10, 0)
    assert torch.equal(torch.get_rng_state(), before)


# Pixels


def test_pixels_go_from_0_to_255_onto_minus_one_to_one() -> None:
    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    torch.testing.assert_close(Pixels((0.5,), (0.5,))(x).flatten(), torch.linspace(-1, 1, 256))


@pytest.mark.parametrize(("name", "shape"), [("digits-28", (1, 28, 28)), ("mini", (3, 32, 32))])
def test_our_networks_see_minus_one_to_one(name: str, shape: tuple[int, ...]) -> None:
    first = next(build(parse_network(name), shape, 10, 0)[0]["features"].children())
    assert first(
        torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    ).flatten().tolist() == pytest.approx([-1, 1])


def test_pixels_are_normalised_by_channel_and_grey_is_repeated() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 1.0)
    x = images(2, (1, 4, 4))
    want = (x / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(Pixels(mean, std, channels=3)(x), want)
    torch.testing.assert_close(Pixels(mean, std, channels=3)(x.repeat(1, 3, 1, 1)), want)


@steady
@given(st.integers(0, 999))
def test_contrast_is_blind_to_tint_and_polarity_and_of_unit_variance(seed: int) -> None:
    x = images(3, (3, 8, 8), seed).double()
    tint = 40 * torch.randn(3, 3, 1, 1, generator=torch.Generator().manual_seed(seed))
    c = layers.Contrast()(x)
    assert c.shape == (3, 1, 8, 8)
    torch.testing.assert_close(layers.Contrast()(x + tint), c)
    torch.testing.assert_close(layers.Contrast()(255 - x), c)
    std, mean = torch.std_mean(c, dim=(1, 2, 3))
    torch.testing.assert_close(std, torch.ones_like(std), rtol=0, atol=1e-3)
    torch.testing.assert_close(mean, torch.zeros_like(mean))


def test_contrast_of_a_plain_picture_is_zero() -> None:
    assert not layers.Contrast()(torch.full((2, 3, 8, 8), 0.75)).any()


# Heads


@steady
@given(
    st.integers(1, 5), st.integers(1, 6), st.integers(2, 4), st.floats(0.01, 2), st.integers(0, 99)
)
def test_a_cosine_head_is_f_w_over_t_norm_f_in_value_and_gradient(
    n: int, d: int, c: int, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    f, w, up = rng.standard_normal((n, d)), rng.standard_normal((c, d)), rng.standard_normal((n, c))
    head = CosineHead(d, c, temperature).double()
    head.prototypes.weight.data = torch.from_numpy(w)
    x = torch.from_numpy(f).requires_grad_()
    logits = head(x)

    norm = np.linalg.norm(f, axis=1, keepdims=True)
    np.testing.assert_allclose(logits.detach(), f @ w.T / (temperature * norm), rtol=1e-9)
    df, dw = torch.autograd.grad((logits * torch.from_numpy(up)).sum(), [x, head.prototypes.weight])
    np.testing.assert_allclose(dw, up.T @ (f / norm) / temperature, rtol=1e-9, atol=1e-9)
    g = up @ w / temperature  # at the unit vector u = f/‖f‖; then through it: (g − u(u·g))/‖f‖
    u = f / norm
    np.testing.assert_allclose(
        df, (g - u * (u * g).sum(axis=1, keepdims=True)) / norm, rtol=1e-7, atol=1e-9
    )


def test_the_head_is_the_one_asked_for() -> None:
    linear = build(NetworkSpec(layers="bare"), (4,), 3, 0)[0]["head"]
    cosine = build(NetworkSpec(layers="bare", head="cosine", temperature=0.2), (4,), 3, 0)[0][
        "head"
    ]
    assert isinstance(linear, LinearHead)
    assert isinstance(cosine, CosineHead)
    assert cosine.temperature == 0.2
    assert [name for name, _ in cosine.named_parameters()] == ["prototypes.weight"], "no bias"


def test_a_cosine_head_gives_a_zero_feature_zero_logits() -> None:
    f = torch.zeros(2, 4, requires_grad=True)
    logits = CosineHead(4, 3, 0.05)(f)
    assert not logits.any()
    logits.sum().backward()
    assert f.grad is not None
    assert f.grad.isfinite().all()


# Dropout


def dropped(p: float, step_key: int, layer: int = 1, shape: tuple[int, ...] = (200, 500)) -> Tensor:
    dropout = Dropout(p, layer)
    dropout.step_key.fill_(step_key)
    return dropout(torch.full(shape, 3.0))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_dropout_drops_a_share_p_and_scales_the_rest(p: float) -> None:
    x = dropped(p, key("now"))
    assert (x == 0).double().mean().item() == pytest.approx(
        p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5
    )
    torch.testing.assert_close(x[x != 0], torch.full_like(x[x != 0], 3 / (1 - p)))
    assert x.mean().item() == pytest.approx(3, rel=0.02)


def test_the_gradient_of_dropout_is_its_mask() -> None:
    dropout = Dropout(0.5, 1)
    x = torch.ones(50, requires_grad=True)
    y = dropout(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())


def test_dropout_does_nothing_in_evaluation_or_at_rate_zero() -> None:
    x = torch.randn(5, 7)
    assert Dropout(0.5, 1).eval()(x) is x
    assert Dropout(0.0, 1)(x) is x


def test_the_same_moment_drops_the_same_and_another_moment_or_layer_something_else() -> None:
    now, then = key("now"), key("then")
    assert torch.equal(dropped(0.5, now), dropped(0.5, now))
    for other in (dropped(0.5, then), dropped(0.5, now, layer=2)):
        agree = ((dropped(0.5, now) == 0) == (other == 0)).double().mean().item()
        assert agree == pytest.approx(0.5, abs=5 * 0.5 / 100_000**0.5)


def test_a_row_keeps_its_mask_when_others_join_the_batch() -> None:
    few, many = dropped(0.5, 7, shape=(3, 20)), dropped(0.5, 7, shape=(8, 20))
    assert torch.equal(few, many[:3])


def test_one_clock_drives_all_dropouts_of_a_network() -> None:
    parts, width = build(NetworkSpec(layers="digits-28"), (1, 28, 28), 10, 0)
    net = Net(parts, width, split_norm=False)
    net.share_step_key()
    x = images(8, (1, 28, 28))
    outputs = []
    for step_key in (5, 6, 5):
        net.set_step_key(torch.tensor(step_key))
        assert {m.step_key.item() for m in net.modules() if isinstance(m, Dropout)} == {step_key}
        outputs.append(net["features"](x))
    assert torch.equal(outputs[0], outputs[2])
    assert not torch.equal(outputs[0], outputs[1])
    assert not [name for name in net.state_dict() if "step_key" in name], "a clock is no weight"


# Backbones


@pytest.mark.parametrize("shape", [PHOTO, (1, 64, 64)])
def test_a_torchvision_model_by_name_has_its_width_and_takes_grey_images(
    shape: tuple[int, ...],
) -> None:
    parts, width = build(parse_network("resnet18"), shape, 7, 0)
    assert width == 512
    f = parts["features"](images(2, shape))
    assert f.shape == (2, 512)
    assert parts["head"](f).shape == (2, 7)
    assert parameters(parts["features"]) == 11_689_512 - (512 * 1000 + 1000), (
        "all but the classifier"
    )


@pytest.mark.parametrize(("name", "width"), [(SMALL, 1024), ("mobilenet_v3_small", 1024)])
def test_the_classifier_is_dropped_wherever_a_model_keeps_it(name: str, width: int) -> None:
    parts, found = build(parse_network(name), PHOTO, 7, 0)
    assert found == width
    assert parts["features"](images(2, PHOTO)).shape == (2, width)


def test_resnet50_v1_moves_the_strides_to_the_first_convolution() -> None:
    def strides(name: str) -> list[tuple[Any, Any, Any]]:
        with torch.device("meta"):
            body = build(parse_network(name), PHOTO, 7, 0)[0]["features"].body
        return [
            # type: ignore[union-attr, index]
            (block.conv1.stride, block.conv2.stride, block.downsample[0].stride)
            # type: ignore[union-attr, index]
            for block in (body.layer2[0], body.layer3[0], body.layer4[0])
        ]

    one, two = (1, 1), (2, 2)
    assert strides("resnet50") == [(one, two, two)] * 3
    assert strides("resnet50.v1") == [(two, one, two)] * 3


def test_a_timm_model_by_name_has_its_width() -> None:
    timm = pytest.importorskip("timm")
    parts, width = build(parse_network("timm:test_resnet"), (1, 64, 64), 7, 0)
    body = timm.create_model("test_resnet", num_classes=0)
    assert width == body.num_features
    assert parts["features"](images(2, (1, 64, 64))).shape == (2, width)
    pixels = parts["features"].pixels
    mean = torch.tensor(body.default_cfg["mean"]).view(3, 1, 1)
    std = torch.tensor(body.default_cfg["std"]).view(3, 1, 1)
    torch.testing.assert_close(pixels(images(2, PHOTO)), (images(2, PHOTO) / 255 - mean) / std)


# Weights from a file


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of another network of the same make, with its classifier, as torchvision saves
    it."""
    from torchvision import models

    torch.manual_seed(5)
    state = models.get_model(SMALL).state_dict()
    path = tmp_path_factory.mktemp("weights") / "own.safetensors"
    save_file({name: value.clone() for name, value in state.items()}, path)
    return path


def with_weights(path: Path | str) -> dict[str, nn.Module]:
    return build(parse_network(SMALL, weights=str(path)), PHOTO, 7, 0)[0]


def test_weights_load_from_a_local_file(weights: Path) -> None:
    from safetensors.torch import load_file

    saved, loaded = load_file(weights), with_weights(weights)["features"].body.state_dict()
    assert {name for name in saved if name not in loaded} == {"fc.weight", "fc.bias"}
    assert all(torch.equal(value, saved[name]) for name, value in loaded.items())


def test_kept_statistics_stay_as_they_came_and_no_image_sees_its_batch(weights: Path) -> None:
    seen = {}
    for norm in ("kept", "joint"):
        spec = parse_network(SMALL, weights=str(weights), norm=norm)  # type: ignore[arg-type]
        features = build(spec, PHOTO, 7, 0)[0]["features"].train()
        before = {n: b.clone() for n, b in features.named_buffers() if "running" in n}
        alone, among = features(images(2, PHOTO)), features(images(8, PHOTO))[:2]
        moved = any(
            not torch.equal(b, before[n]) for n, b in features.named_buffers() if n in before
        )
        seen[norm] = (torch.allclose(alone, among, atol=1e-4), moved)
        assert any(p.requires_grad for p in features.parameters())
    assert seen == {"kept": (True, False), "joint": (False, True)}


@pytest.mark.parametrize(
    "spec", [NetworkSpec(layers="mini", norm="kept"), parse_network(SMALL, norm="kept")]
)
def test_a_network_that_starts_from_nothing_has_no_statistics_to_keep(spec: NetworkSpec) -> None:
    with pytest.raises(UserError, match="has no statistics to keep") as error:
        check(spec, (3, 32, 32))
    assert "-t norm=joint" in str(error.value)


def test_a_file_for_another_network_is_refused(weights: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit the network: \d+ tensors are missing"):
        build(parse_network("resnet18", weights=str(weights)), PHOTO, 7, 0)


def test_a_file_with_a_tensor_of_another_shape_is_refused(weights: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    changed = load_file(weights) | {"conv1.0.weight": torch.zeros(1, 3, 3, 3)}
    save_file(changed, tmp_path / "changed.safetensors")
    with pytest.raises(
        UserError, match=r"0 tensors are missing, 1 differ in shape \(first: conv1.0.weight\)"
    ):
        with_weights(tmp_path / "changed.safetensors")


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The weights file .*none.safetensors does not exist"):
        with_weights(tmp_path / "none.safetensors")


def test_a_file_that_is_cut_short_or_something_else_is_told(weights: Path, tmp_path: Path) -> None:
    whole = weights.read_bytes()
    for i, content in enumerate(
        (b"", b"not weights at all", whole[:-10], whole[: len(whole) // 2])
    ):
        path = tmp_path / f"{i}.safetensors"
        path.write_bytes(content)
        with pytest.raises(UserError, match="is not a safetensors file"):
            with_weights(path)


def test_a_weights_file_is_known_by_what_it_holds(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").write_bytes(weights.read_bytes())
    (tmp_path / "other").write_bytes(weights.read_bytes() + b"\0")
    assert file_hash(weights) == file_hash(tmp_path / "copy") != file_hash(tmp_path / "other")


# Mistakes


@pytest.mark.parametrize(
    ("name", "shape", "sentence", "hint"),
    [
        ("digit-28", (1, 28, 28), "There is no network 'digit-28'.", "did you mean 'digits-28'?"),
        ("resnet5O", PHOTO, "There is no network 'resnet5O'.", "did you mean 'resnet50'?"),
        ("resnet50.v3", PHOTO, "There is no network 'resnet50.v3'.", "did you mean 'resnet50'?"),
        (
            "digits-28",
            (3, 32, 32),
            "The network digits-28 takes 1 x 28 x 28, found 3 x 32 x 32.",
            "of any size",
        ),
        ("mlp", (3, 32, 32), "The network mlp takes any width, found 3 x 32 x 32.", "of any size"),
        ("mini", (64,), "The network mini takes 3 x 32 x 32, found 64.", "use mlp or bare."),
        (
            "resnet18",
            (64,),
            "The network resnet18 takes images, found rows of 64 numbers.",
            "use mlp or bare.",
        ),
    ],
)
def test_a_network_that_does_not_exist_or_fit_is_told(
    name: str, shape: tuple[int, ...], sentence: str, hint: str
) -> None:
    with pytest.raises(UserError) as told:
        build(parse_network(name), shape, 10, 0)
    assert told.value.sentence == sentence
    assert hint in told.value.hint


def test_a_timm_model_that_does_not_exist_is_told_the_nearest() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UserError, match="There is no timm model 'resnett50'") as told:
        build(parse_network("timm:resnett50"), PHOTO, 10, 0)
    assert "did you mean 'resnet50'?" in told.value.hint
