"""BSP against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import HIDDEN, RAMP, Formula, T, assert_is, domain, given, zero
from torch import Tensor

from askew.methods.base import Shape
from askew.methods.bsp import BSP
from askew.methods.dann import DANN
from askew.nets.heads import ConditionalCritic, Critic
from askew.testing import check_method


def spectral(f: Formula) -> Tensor:
    return torch.linalg.svdvals(f.fs)[0] ** 2 + torch.linalg.svdvals(f.ft)[0] ** 2


@pytest.mark.parametrize("base", ["cdan", "dann"])
def test_its_losses_and_gradients_are_those_of_the_formula(base: str) -> None:
    method = BSP(weight=0.3, penalty=0.01, hidden=HIDDEN, base=base)  # type: ignore[arg-type]
    net, batch = given(method)
    f = Formula(net, batch)
    critic = f.d if base == "dann" else f.joint_d
    ws, wt = (1.0, 1.0) if base == "dann" else (f.certainty(f.fs), f.certainty(f.ft))
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "domain": (
            0.3 * domain(critic(f.fs), critic(f.ft), ws, wt),
            {"features": -RAMP, "critic": 1},
        ),
        "spectral": (0.01 * spectral(f), {"features": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_the_weights_of_sure_images_have_mean_one() -> None:
    method = BSP(hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.critic.layers.6")
    assert method.losses(net, batch, {}, T)["domain"].item() == pytest.approx(math.log(2))


def test_the_penalty_is_not_reversed_and_does_not_wait_for_the_ramp() -> None:
    method = BSP(hidden=HIDDEN)
    net, batch = given(method)
    terms = [
        method.losses(net, batch, {}, torch.tensor(t).double())["spectral"] for t in (0.0, 1.0)
    ]
    params = list(net["features"].parameters())
    early, late = (torch.autograd.grad(term, params) for term in terms)
    for a, b, p in zip(early, late, params, strict=True):
        assert torch.equal(a, b)
        p.data -= 1e-2 * a
    assert method.losses(net, batch, {}, T)["spectral"] < terms[0]


def test_on_dann_without_penalty_it_is_dann() -> None:
    net, batch = given(DANN(hidden=HIDDEN))
    bsp, dann = (
        BSP(base="dann", penalty=0.0).losses(net, batch, {}, T),
        DANN().losses(net, batch, {}, T),
    )
    assert {name: bsp[name].item() for name in dann} == {name: dann[name].item() for name in dann}
    assert bsp["spectral"].item() == 0


def test_its_critic_is_that_of_its_base() -> None:
    shape = Shape(4, 3, torch.nn.Identity)
    assert isinstance(BSP().parts(shape)["critic"], ConditionalCritic)
    assert isinstance(BSP(base="dann").parts(shape)["critic"], Critic)


def test_on_dann_it_keeps_the_contract() -> None:
    check_method(BSP(base="dann"))
