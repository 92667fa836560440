"""JAN against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import NS, Formula, T, assert_is, given, zero
from torch import Tensor

from askew.methods.dan import DAN
from askew.methods.jan import JAN


def squares(x: Tensor) -> Tensor:
    return (x[:, None] - x[None, :]).pow(2).sum(dim=2)


def jmmd(f: Tensor, p: Tensor, n: int, bandwidth: float) -> Tensor:
    """Over all pairs of images: five Gaussians of their features times one of their predictions."""
    on_f, on_p = squares(f), squares(p)
    unit = on_f.detach().sum() / (len(f) * (len(f) - 1))
    k = sum((-on_f / (unit * 2.0**i)).exp() for i in range(-2, 3)) * (-on_p / bandwidth).exp()
    return k[:n, :n].mean() + k[n:, n:].mean() - k[:n, n:].mean() - k[n:, :n].mean()


@pytest.mark.parametrize("bandwidth", [1.68, 0.4])
def test_its_losses_and_gradients_are_those_of_the_formula(bandwidth: float) -> None:
    method = JAN(weight=0.3, bandwidth=bandwidth)
    net, batch = given(method)
    f = Formula(net, batch)
    both = torch.cat([f.fs, f.ft])
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "jmmd": (0.3 * jmmd(both, f.p(both), NS, bandwidth), {"features": 1, "head": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_the_authors_bandwidth_is_the_default() -> None:
    assert JAN().bandwidth == 1.68


@pytest.mark.parametrize("blind", ["head", "bandwidth"])
def test_where_predictions_do_not_differ_or_do_not_count_it_is_dan(blind: str) -> None:
    net, batch = given(JAN())
    method = JAN(bandwidth=1e12) if blind == "bandwidth" else JAN()
    if blind == "head":
        zero(net, "head.weight")
    found, dan = method.losses(net, batch, {}, T)["jmmd"], DAN().losses(net, batch, {}, T)["mmd"]
    assert found.item() == pytest.approx(dan.item(), rel=1e-9)


def test_images_of_equal_features_are_as_near_as_their_predictions() -> None:
    """A kernel that is a product: were it a sum, the Gaussians of the features would not fade."""
    method = JAN(bandwidth=0.7)
    net, batch = given(method)
    x = batch.xs[:1]
    logits = [torch.tensor([z], dtype=torch.float64) for z in ([1e3, 0.0, 0.0], [0.0, 1e3, 0.0])]
    net["head"].register_forward_hook(
        lambda *_: logits.pop(0)
    )  # sure of one class for source, of another for target
    found = method.losses(net, batch._replace(xs=x, ys=batch.ys[:1], xt=x), {}, T)["jmmd"]
    assert found.item() == pytest.approx(5 + 5 - 2 * 5 * math.exp(-2 / 0.7))  # ‖p − p′‖² = 2


def test_equal_batches_have_no_discrepancy() -> None:
    net, batch = given(JAN())
    loss = JAN().losses(net, batch._replace(xt=batch.xs), {}, T)["jmmd"]
    assert loss.item() == pytest.approx(0, abs=1e-12)
    moved = [
        JAN().losses(net, batch._replace(xt=batch.xs + s), {}, T)["jmmd"].item()
        for s in (0.1, 0.3, 1.0)
    ]
    assert 0 < moved[0] < moved[1] < moved[2]
