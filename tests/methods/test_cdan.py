"""CDAN against its formula, in value and in gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from formula import HIDDEN, RAMP, Formula, T, assert_is, domain, given, zero

from askew.methods.base import Shape
from askew.methods.bsp import BSP
from askew.methods.cdan import CDAN
from askew.nets.heads import LinearHead
from askew.testing import check_method


@pytest.mark.parametrize("entropy", [True, False])
def test_its_losses_and_gradients_are_those_of_the_formula(entropy: bool) -> None:
    method = CDAN(weight=0.3, entropy=entropy, hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    ws, wt = (f.certainty(f.fs), f.certainty(f.ft)) if entropy else (1.0, 1.0)
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "domain": (
            0.3 * domain(f.joint_d(f.fs), f.joint_d(f.ft), ws, wt),
            {"features": -RAMP, "critic": 1},
        ),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_bsp_without_its_penalty_is_cdan() -> None:
    net, batch = given(BSP(hidden=HIDDEN))
    bsp, cdan = (
        method.losses(net, batch, {}, T) for method in (BSP(hidden=HIDDEN), CDAN(hidden=HIDDEN))
    )
    assert bsp["domain"].item() == cdan["domain"].item()


@pytest.mark.parametrize("entropy", [True, False])
def test_a_critic_that_knows_nothing_loses_log_2_however_images_are_weighted(entropy: bool) -> None:
    method = CDAN(entropy=entropy, hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.critic.layers.6")
    assert method.losses(net, batch, {}, T)["domain"].item() == pytest.approx(math.log(2))


def test_a_wide_product_is_projected_at_random() -> None:
    critic = CDAN(hidden=HIDDEN).parts(Shape(500, 10, lambda: LinearHead(500, 10)))["critic"]
    assert critic(torch.randn(4, 500), torch.full((4, 10), 0.1)).shape == (4,)
    assert critic.critic.layers[0].in_features == 1024


@pytest.mark.parametrize("options", [{"entropy": False}, {"weight": 0.2, "hidden": 8}])
def test_it_keeps_the_contract(options: Any) -> None:
    check_method(CDAN(**options))
