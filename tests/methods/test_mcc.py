"""MCC against its formula, in value and in gradient."""

from __future__ import annotations

import pytest
import torch
from formula import NT, C, Formula, T, assert_is, given, shannon, softmax, zero
from torch import Tensor

from askew.methods.losses import class_confusion
from askew.methods.mcc import MCC
from askew.methods.teacher import PriorAwareTeacher
from askew.testing import check_method


def confusion(p: Tensor) -> Tensor:
    """Class by class: what share of the company of class j is another class."""
    w = 1 + (-shannon(p.detach())).exp()
    w = NT * w / w.sum()
    shares = []
    for j in range(C):
        together = [sum(w[i] * p[i, j] * p[i, k] for i in range(NT)) for k in range(C)]
        shares.append(sum(together[k] for k in range(C) if k != j) / sum(together))
    return torch.stack([torch.as_tensor(share) for share in shares]).sum() / C


@pytest.mark.parametrize("temperature", [2.5, 0.7])
def test_its_losses_and_gradients_are_those_of_the_formula(temperature: float) -> None:
    method = MCC(weight=0.3, temperature=temperature)
    net, batch = given(method)
    f = Formula(net, batch)
    both = {"features": 1, "head": 1}
    want = {
        "label": (f.label(), both),
        "confusion": (0.3 * confusion(softmax(f.linear("head", f.ft) / temperature)), both),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_the_teacher_may_minimise_the_same_confusion() -> None:
    method = PriorAwareTeacher(confusion=True)
    net, batch = given(method)
    f = Formula(net, batch)
    want = confusion(softmax(f.linear("head", f.ft) / 2.5))
    assert method.losses(net, batch, {}, T)["confusion"].item() == pytest.approx(want.item())
    assert "confusion" not in PriorAwareTeacher().losses(net, batch, {}, T)


def test_a_network_that_knows_nothing_confuses_every_class_with_every_other() -> None:
    net, batch = given(MCC())
    zero(net, "head")
    assert MCC().losses(net, batch, {}, T)["confusion"].item() == pytest.approx((C - 1) / C)


def test_sure_predictions_confuse_nothing_however_rare_a_class() -> None:
    p = torch.eye(C)[
        torch.tensor([0] * 9 + [1])
    ]  # class 2 is never predicted, and so is confused with nothing
    assert class_confusion(p, torch.ones(10)).item() == 0


def test_a_rare_class_counts_as_much_as_a_frequent_one() -> None:
    sure, torn = torch.tensor([1.0, 0, 0, 0]), torch.tensor([0, 0, 0.5, 0.5])
    few, many = (torch.stack([sure] * (20 - n) + [torn] * n) for n in (1, 10))
    assert class_confusion(few, torch.ones(20)).item() == pytest.approx(
        class_confusion(many, torch.ones(20)).item()
    )


def test_it_keeps_the_contract() -> None:
    check_method(MCC(weight=3.0, temperature=1.0))
