"""Several models as one: it answers what the calibrated members answer on average."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.inference.ensemble import join
from askew.inference.model_card import ModelCard
from askew.inference.predictor import Predictor, load
from askew.methods.base import Method, new_net
from askew.nets.network import check
from askew.nets.spec import NetSpec

WIDTH, CLASSES = 6, ("a", "b", "c")


def model(
    name: str,
    head: str,
    prior: tuple[float, ...],
    norm: str = "joint",
    seed: int = 0,
    shape: tuple[int, ...] = (WIDTH,),
) -> Predictor:
    spec = NetSpec(name=name, head=head, temperature=0.3, norm=norm)  # type: ignore[arg-type]
    net = new_net(spec, Method(), shape, len(CLASSES), seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for key, value in net.state_dict().items():
            if "running" in key:  # statistics of its own, and of each domain
                value.copy_(torch.rand_like(value) + 0.5)
    card = ModelCard(net=spec, rule=Method(), shape=shape, classes=CLASSES, training_prior=prior)
    return Predictor(card, net.state_dict(), "cpu")


def rows() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(9, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("domain", ["target", "source"])
def test_it_is_the_weighted_mean_of_calibrated_logits_for_a_uniform_prior(
    tmp_path: Path, domain: str
) -> None:
    members = [
        model("mlp", "cosine", (0.2, 0.3, 0.5), seed=1),
        model("mlp", "linear", (1 / 3, 1 / 3, 1 / 3), "split", seed=2),
        model("bare", "cosine", (0.6, 0.3, 0.1), seed=3),
    ]
    temperatures, weights = [0.5, 2.0, 1.3], [1, 1, 2]
    want = np.zeros((9, 3))
    for member, t, weight in zip(members, temperatures, weights, strict=True):
        z = member.logits(rows(), domain=domain)  # type: ignore[arg-type]
        want += (z - np.log(member.card.training_prior)) / t * weight / 4
    joined = join(members, temperatures, weights)
    joined.save(tmp_path / "model")
    for one in (joined, load(tmp_path / "model", "cpu")):
        found = one.logits(rows(), domain=domain)  # type: ignore[arg-type]
        centred = [z - z.mean(axis=1, keepdims=True) for z in (found, want)]
        np.testing.assert_allclose(centred[0], centred[1], atol=1e-4)
        assert one.card.training_prior == pytest.approx([1 / 3] * 3)


def test_whole_networks_with_backbones_of_their_own_are_joined_too(tmp_path: Path) -> None:
    shape, x = (
        (3, 32, 32),
        np.random.default_rng(1).integers(0, 256, (2, 3, 32, 32), dtype=np.uint8),
    )
    members = [
        model("resnet18+bottleneck", "cosine", (0.2, 0.3, 0.5), seed=1, shape=shape),
        model("resnet18+bottleneck", "linear", (1 / 3,) * 3, seed=2, shape=shape),
    ]
    want = sum(
        (m.logits(x) - np.log(m.card.training_prior)) / t / 2
        for m, t in zip(members, (0.5, 2), strict=True)
    )
    join(members, [0.5, 2.0], [1, 1]).save(tmp_path / "model")
    joined = load(tmp_path / "model", "cpu")
    assert joined.card.net.name == "resnet18+bottleneck.unit||resnet18+bottleneck"
    centred = [z - z.mean(axis=1, keepdims=True) for z in (joined.logits(x), np.asarray(want))]
    np.testing.assert_allclose(centred[0], centred[1], atol=1e-3 * np.abs(centred[1]).max())


@pytest.mark.parametrize(
    "name",
    [
        "mlp|nosuch",
        "mlp|",
        "|".join(["mlp"] * 17),
        "resnet18+mlp|nosuch",
        "||".join(["resnet18+mlp"] * 17),
        "resnet18+mlp||",
        "resnet18+mlp||mlp",
    ],
)
def test_a_name_that_is_no_ensemble_of_ours_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="There is no network"):
        check(NetSpec(name=name), (3, 32, 32) if "+" in name else (WIDTH,))


def test_its_features_are_those_of_its_members_side_by_side() -> None:
    members = [
        model("mlp", "linear", (1 / 3,) * 3, seed=1),
        model("bare", "cosine", (1 / 3,) * 3, seed=2),
    ]
    net = join(members, [1.0, 1.0], [1, 1]).classifier.net
    x = torch.from_numpy(rows())
    first, second = members[0].classifier.net["features"](x), x / x.norm(dim=1, keepdim=True)
    torch.testing.assert_close(net["features"](x), torch.cat([first, second], dim=1))
    assert dataclasses.asdict(members[0].card.net)["name"] == "mlp"
