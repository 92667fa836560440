"""Batch statistics of a domain: estimated as AdaBN does, and averaged with those that a network
came with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from askew.nets import forward
from askew.nets.adabn import DomainNorms, batch_norms, domain_norms, in_batches, with_statistics
from askew.nets.backbones import FAST, Backbone, build_backbone, corners
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_backbones
from askew.nets.layers import Pixels

SHAPE = (3, 40, 40)
BOTH = Embedding(backbone="resnet18", crop=32, statistics="both")


def small(seed: int = 0) -> DomainNorms:
    """A convolution, a norm with statistics of its own, and a mean."""
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    body[1].running_mean.normal_()
    body[1].running_var.uniform_(0.5, 2)
    return DomainNorms(
        Backbone(body, Pixels((0.0,) * 3, (1.0,) * 3, channels=3), 0, (8, 8), False)
    ).eval()


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randint(
        256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def by_hand(net: DomainNorms, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """The same network with these statistics, written out."""
    conv, norm = net.body.body[0], net.body.body[1]
    z = conv(x.float() / 255)
    z = (z - mean[:, None, None]) / (var[:, None, None] + norm.eps).sqrt()
    return (z * norm.weight[:, None, None] + norm.bias[:, None, None]).relu().mean(dim=(2, 3))


@torch.no_grad()
def test_features_are_the_mean_over_both_sets_of_statistics() -> None:
    net, x = small(), images(6)
    norm = net.body.body[1]
    kept = norm.running_mean.clone(), norm.running_var.clone()
    torch.testing.assert_close(net(x), by_hand(net, x, *kept), rtol=1e-4, atol=1e-5)
    batches = [images(5, seed=2), images(7, seed=3)]
    net.estimate(batches)
    seen = [net.body.body[0](batch.float() / 255).transpose(0, 1).flatten(1) for batch in batches]
    mean = torch.stack([z.mean(dim=1) for z in seen]).mean(dim=0)
    var = torch.stack([z.var(dim=1) for z in seen]).mean(dim=0)
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, var)
    wanted = (by_hand(net, x, mean, var) + by_hand(net, x, *kept)) / 2
    torch.testing.assert_close(net(x), wanted, rtol=1e-4, atol=1e-5)
    assert not norm.training
    assert (norm.momentum, int(norm.num_batches_tracked)) == (0.1, 0), (
        "nothing else of it has changed"
    )


@torch.no_grad()
def test_statistics_that_were_kept_make_the_same_network() -> None:
    net, again, x = small(), small(), images(4)
    net.estimate(in_batches(images(100).numpy()))
    again.set_statistics(net.statistics)
    assert again(x).equal(net(x))
    assert not again(x).equal(small()(x))
    third = small(seed=5)
    third.load_state_dict(net.state_dict())
    assert third(x).equal(net(x)), "a model's weights hold both"


def test_images_are_estimated_from_in_batches_of_about_equal_size() -> None:
    assert [len(x) for x in in_batches(np.zeros((130, 3, 2, 2), np.uint8))] == [44, 43, 43]
    assert [len(x) for x in in_batches(np.zeros((1, 3, 2, 2), np.uint8))] == [1]


def test_a_network_without_batch_norms_looks_once() -> None:
    with torch.device("meta"):
        net, _ = build_backbone(Embedding(backbone="alexnet", statistics="both"), (3, 64, 64))
    assert domain_norms(net) is None
    assert isinstance(net, Backbone)
    net, _ = build_backbone(replace(BOTH, corners=True), SHAPE)
    assert domain_norms(net) is not None


@torch.no_grad()
def test_corners_are_seen_by_one_set_of_statistics_each() -> None:
    net, _ = build_backbone(replace(BOTH, corners=True), SHAPE)
    two = domain_norms(net.eval())
    assert two is not None
    x = torch.randint(
        256, (4, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    two.estimate([x])
    top, bottom = corners(x, (32, 32))
    wanted = [two.by_domain(x), two.by_domain(top), two.by_original(x), two.by_original(bottom)]
    torch.testing.assert_close(net(x), torch.stack(wanted).mean(dim=0))
    assert replace(BOTH, corners=True).views == len(wanted)


@torch.no_grad()
def test_a_domains_statistics_can_be_used_alone() -> None:
    net, _ = build_backbone(replace(BOTH, statistics="domain"), SHAPE)
    two = domain_norms(net.eval())
    assert two is not None
    x = torch.randint(256, (4, *SHAPE), dtype=torch.uint8)
    before = net(x)
    two.estimate([x])
    assert not net(x).equal(before)
    assert not [name for name in net.state_dict() if "original" in name]


@torch.no_grad()
def test_a_fast_network_has_both_statistics_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "fast_bfloat16", lambda device: True)
    net, _ = build_backbone(BOTH, SHAPE)
    two = domain_norms(net.eval())
    assert two is not None
    x = torch.randint(
        256, (32, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    two.estimate([x, 255 - x // 2])
    exact, alone = net(x), two.by_original(x)
    assert (alone - exact).norm() > 0.2 * exact.norm(), "the two say different things"
    for rows in (0, 32):  # as it is, and as fused layers
        with fast_backbones(net, rows):
            assert set(FAST.get()) == {(two.body, False), (two.body, True)}
            found = net(x)
        assert (found - exact).norm() <= 0.06 * exact.norm()  # in bfloat16
        assert not found.equal(exact)
        assert not FAST.get()
    assert net(x).equal(exact)
    assert len(batch_norms(net)) == 20


class HoldsMethod(nn.Module):
    """It calls a method of its own that it holds as an attribute, as some libraries' modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.compute = self._compute

    def _compute(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x)


def test_a_view_shares_all_but_statistics_and_leaves_the_network_unchanged() -> None:
    net = nn.Sequential(nn.Linear(2, 2), HoldsMethod()).eval()
    norm = net[1].norm
    norm.register_buffer("source_running_mean", torch.full((2,), 5.0))
    norm.register_buffer("source_running_var", torch.ones(2))
    view, x = with_statistics(net, "source_"), torch.randn(3, 2)
    assert view[0] is net[0]
    assert view[1].norm.weight is norm.weight
    torch.testing.assert_close(view(x), (net[0](x) - 5) / (1 + norm.eps) ** 0.5)
    torch.testing.assert_close(net(x), net[0](x) / (1 + norm.eps) ** 0.5)
    assert not norm.running_mean.any()
    assert with_statistics(net[0], "source_") is net[0], "there is nothing to change"
