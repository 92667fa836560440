"""MDD against its formula, in value and in gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from formula import NS, NT, RAMP, C, Formula, T, assert_is, given
from torch import Tensor

from askew.methods.losses import log_other
from askew.methods.mdd import MDD, absent_classes
from askew.testing import check_method


def second(f: Formula, x: Tensor, depth: int) -> Tensor:
    """Logits behind `depth` layers of linear, batch norm (statistics 0 and 1) and ReLU."""
    for i in range(depth):
        scaled = f.linear(f"head2.0.{2 * i}", x) / (1 + 1e-5) ** 0.5
        x = (scaled * f.w[f"head2.0.{2 * i + 1}.weight"] + f.w[f"head2.0.{2 * i + 1}.bias"]).clamp(
            min=0
        )
    return f.linear("head2.1", x)


def disparity(f: Formula, margin: float, classes: list[int], depth: int) -> Tensor:
    """Image by image, both heads over these classes alone."""

    def other(x: Tensor) -> list[Tensor]:
        """p′ of the class that the first head predicts."""
        z, z2 = f.linear("head", x)[:, classes].tolist(), second(f, x, depth)[:, classes].exp()
        return [z2[i, z[i].index(max(z[i]))] / z2[i].sum() for i in range(len(x))]

    on_source = sum(-p.log() for p in other(f.fs)) / NS
    on_target = sum(-(1 - p).log() for p in other(f.ft)) / NT
    return torch.as_tensor(margin * on_source + on_target)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(
    ("masked", "seen"), [(True, [0, 1, 2]), (True, [0, 2]), (True, [1]), (False, [0, 2])]
)
def test_its_losses_and_gradients_are_those_of_the_formula(
    masked: bool, seen: list[int], depth: int
) -> None:
    method = MDD(weight=0.3, margin=2.5, masked=masked, depth=depth)
    net, batch = given(method)
    batch = batch._replace(ys=torch.tensor(seen)[torch.arange(NS) % len(seen)])
    f = Formula(net, batch)
    classes = seen if masked and len(seen) > 1 else list(range(C))
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "disparity": (disparity(f, 2.5, classes, depth), {"features": -0.3 * RAMP, "head2": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_an_identical_second_head_costs_most_on_the_target() -> None:
    method = MDD(margin=0.0, depth=0)
    net, batch = given(method)
    apart = method.losses(net, batch, {}, T)["disparity"]
    net["head2"][1].load_state_dict(net["head"].state_dict())
    assert method.losses(net, batch, {}, T)["disparity"] > apart


def test_classes_that_no_label_names_are_absent_unless_there_is_just_one() -> None:
    assert absent_classes(torch.tensor([0, 2, 2]), 4).tolist() == [False, True, False, True]
    assert not absent_classes(torch.tensor([2, 2, 2]), 4).any()


def test_the_other_classes_probability_is_exact_where_the_softmax_rounds_to_one() -> None:
    z = torch.tensor([[200.0, 0.0, 0.0], [0.0, 1.0, 2.0]], requires_grad=True)
    found = log_other(z, torch.tensor([0, 1]))
    p = math.e / (1 + math.e + math.e**2)
    assert found.tolist() == pytest.approx([math.log(2) - 200, math.log(1 - p)])
    (g,) = torch.autograd.grad(found.sum(), z)
    assert g[0].tolist() == pytest.approx([-1, 0.5, 0.5])


@pytest.mark.parametrize("options", [{"masked": False, "depth": 0}, {"weight": 1.0, "margin": 1.0}])
def test_it_keeps_the_contract(options: Any) -> None:
    check_method(MDD(**options))
