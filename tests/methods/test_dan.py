"""DAN against its formula, in value and in gradient."""

from __future__ import annotations

import pytest
import torch
from formula import NS, C, Formula, T, W, assert_is, given, zero
from torch import Tensor, nn

from askew.methods.base import Batch
from askew.methods.dan import DAN
from askew.nets.heads import LinearHead
from askew.nets.network import Net


def mmd(x: Tensor, n: int, kernels: int) -> Tensor:
    """Squared distances as differences, one Gaussian after another; the unit is the mean over pairs
    of two rows."""
    square = (x[:, None] - x[None, :]).pow(2).sum(dim=2)
    unit = sum(square[i, j].item() for i in range(len(x)) for j in range(len(x)) if i != j) / (
        len(x) * (len(x) - 1)
    )
    k = sum((-square / (unit * 2.0 ** (i - kernels // 2))).exp() for i in range(kernels))
    return k[:n, :n].mean() + k[n:, n:].mean() - k[:n, n:].mean() - k[n:, :n].mean()


@pytest.mark.parametrize("kernels", [1, 5])
def test_its_losses_and_gradients_are_those_of_the_formula(kernels: int) -> None:
    method = DAN(weight=0.3, kernels=kernels)
    net, batch = given(method)
    f = Formula(net, batch)
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "mmd": (0.3 * mmd(torch.cat([f.fs, f.ft]), NS, kernels), {"features": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def discrepancy(shift: float) -> float:
    """Of 64 rows and as many others, moved."""
    torch.manual_seed(0)
    x = torch.randn(2, 64, W, dtype=torch.float64)
    net = Net({"features": nn.Identity(), "head": LinearHead(W, C)}, W, split_norm=False).double()
    batch = Batch(x[0], torch.arange(64) % C, x[1] + shift, torch.arange(64))
    return DAN().losses(net, batch, {}, T)["mmd"].item()


def test_discrepancy_grows_with_the_shift() -> None:
    found = [discrepancy(shift) for shift in (0.0, 0.2, 0.5, 1.0, 2.0)]
    assert found == sorted(found)
    assert found[0] < 0.1 < 1 < found[-1]


def test_equal_batches_have_no_discrepancy_and_nothing_to_learn_from_it() -> None:
    net, batch = given(DAN())
    same = DAN().losses(net, batch._replace(xt=batch.xs), {}, T)["mmd"]
    assert same.item() == pytest.approx(0, abs=1e-12)
    assert all(
        g.abs().max() < 1e-12 for g in torch.autograd.grad(same, list(net["features"].parameters()))
    )


def test_features_that_have_collapsed_leave_the_loss_finite() -> None:
    net, batch = given(DAN())
    net = net.float()
    zero(net, "features.0.weight")
    loss = DAN().losses(net, batch._replace(xs=batch.xs.float(), xt=batch.xt.float()), {}, T)["mmd"]
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert all(
        g.isfinite().all() for g in torch.autograd.grad(loss, list(net["features"].parameters()))
    )
