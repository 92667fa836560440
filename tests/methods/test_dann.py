"""DANN against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import HIDDEN, Formula, T, assert_is, domain, given, zero

from askew.methods.dann import DANN


@pytest.mark.parametrize("t", [0.0, 0.1, 0.3, 1.0])
def test_the_critic_descends_the_domain_loss_and_the_features_climb_it_by_the_ramp(
    t: float,
) -> None:
    method = DANN(weight=0.3, hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "domain": (
            0.3 * domain(f.d(f.fs), f.d(f.ft)),
            {"features": -math.tanh(5 * t), "critic": 1},
        ),
    }
    assert_is(method.losses(net, batch, {}, torch.tensor(t, dtype=torch.float64)), f, want)


def test_a_step_of_the_critic_lowers_its_loss_and_one_of_the_features_raises_it() -> None:
    method = DANN(hidden=HIDDEN)
    for part, sign in (("critic", -1), ("features", 1)):
        net, batch = given(method)
        loss = method.losses(net, batch, {}, T)["domain"]
        params = list(net[part].parameters())
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, g in zip(params, grads, strict=True):
                p -= 1e-3 * g
        assert sign * (method.losses(net, batch, {}, T)["domain"] - loss).item() > 0


def test_a_critic_that_knows_nothing_loses_log_2() -> None:
    method = DANN(hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.layers.6")
    assert method.losses(net, batch, {}, T)["domain"].item() == pytest.approx(math.log(2))
