"""FDANN against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import HIDDEN, RAMP, Formula, T, assert_is, given, sigmoid
from torch import Tensor, nn

from askew.methods.base import Batch
from askew.methods.fdann import FDANN
from askew.nets.heads import LinearHead
from askew.nets.network import Net


def divergence(ds: Tensor, dt: Tensor, beta: float) -> Tensor:
    return sigmoid(ds).log().mean() + (2 + beta - sigmoid(dt)).log().mean() - math.log(1 + beta)


@pytest.mark.parametrize("beta", [0.0, 4.0])
def test_critic_climbs_and_features_descend_the_relaxed_divergence(beta: float) -> None:
    method = FDANN(weight=0.3, beta=beta, hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "domain": (-0.3 * divergence(f.d(f.fs), f.d(f.ft), beta), {"features": -RAMP, "critic": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def best_gain(beta: float) -> float:
    """Of a critic trained on two kinds of image, of which source has 1 and 9 in ten, and target 5
    and 5."""
    critic = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0))  # one free logit a kind
    net = Net(
        {"features": nn.Identity(), "head": LinearHead(2, 2), "critic": critic}, 2, split_norm=False
    )
    xs, xt = (torch.eye(2)[[0] * n + [1] * (10 - n)] for n in (1, 5))
    batch = Batch(xs, torch.zeros(10, dtype=torch.int64), xt, torch.arange(10))
    d = critic[0].weight
    with torch.no_grad():
        d.copy_(
            torch.tensor([[0.0, 12.0]])
        )  # sure of the second kind, as is best: source has more of it
    for _ in range(300):
        loss = FDANN(beta=beta).losses(net, batch, {}, T)["domain"]
        d.data -= 5 * torch.autograd.grad(loss, d)[0]
    return -loss.item()


def test_a_critic_gains_nothing_while_the_target_is_at_most_1_plus_beta_times_denser() -> None:
    """0.5/0.1 is 5; at β = 2 the best σ on the first kind is where 0.1/σ = 0.5/(4 − σ)."""
    assert -0.01 < best_gain(beta=4.0) < 0
    σ = 2 / 3
    assert best_gain(beta=2.0) == pytest.approx(
        0.1 * math.log(σ) + 0.5 * math.log((4 - σ) / 3), rel=0.01
    )


def test_the_paper_s_larger_beta_is_the_default() -> None:
    assert FDANN().beta == 4.0
