"""Source only against its formula, in value and in gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from askew.methods.base import Batch, Shape
from askew.methods.source import SourceOnly
from askew.nets.heads import LinearHead
from askew.nets.network import Net
from askew.testing import check_method

N, D, W, C = 8, 5, 4, 3
T = torch.tensor(0.5)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(D, W), nn.Tanh())
    return Net({"features": features, "head": LinearHead(W, C)}, W, split_norm=False).double()


@pytest.fixture
def batch() -> Batch:
    torch.manual_seed(1)
    x = torch.randn(2, N, D, dtype=torch.float64)
    return Batch(x[0], torch.arange(N) % C, x[1], torch.arange(N))


def test_its_loss_and_gradient_are_those_of_the_formula_in_numpy(net: Net, batch: Batch) -> None:
    losses = SourceOnly().losses(net, batch, {}, T)
    assert list(losses) == ["label"]
    found = torch.autograd.grad(losses["label"], list(net.parameters()))

    A, a, B, b = (p.detach().numpy() for p in net.parameters())
    x, y = batch.xs.numpy(), batch.ys.numpy()
    f = np.tanh(x @ A.T + a)
    z = f @ B.T + b
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    assert losses["label"].item() == pytest.approx(-np.log(p[np.arange(N), y]).mean())
    dz = (p - np.eye(C)[y]) / N
    df = (dz @ B) * (1 - f**2)
    for grad, want in zip(found, (df.T @ x, df.sum(axis=0), dz.T @ f, dz.sum(axis=0)), strict=True):
        np.testing.assert_allclose(grad, want, rtol=1e-9, atol=1e-12)


def test_it_does_not_look_at_the_target(net: Net, batch: Batch) -> None:
    blind = batch._replace(xt=torch.full_like(batch.xt, torch.nan))
    torch.testing.assert_close(
        SourceOnly().losses(net, batch, {}, T), SourceOnly().losses(net, blind, {}, T)
    )


def test_it_needs_no_state_no_parts_and_one_phase() -> None:
    method = SourceOnly()
    assert method.parts(Shape(W, C, nn.Identity)) == {}
    assert [phase.trains for phase in method.phases()] == [None]


def test_its_prediction_is_head_after_features(net: Net, batch: Batch) -> None:
    x: Tensor = batch.xt
    assert torch.equal(SourceOnly().predict(net, x), net["head"](net["features"](x)))


def test_it_keeps_the_contract() -> None:
    check_method(SourceOnly())
