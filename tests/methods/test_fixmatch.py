"""FixMatch against its formula, in value and in gradient."""

from __future__ import annotations

import pytest
import torch
from formula import NT, Formula, T, assert_is, given
from torch import Tensor

from askew.methods.fixmatch import FixMatch
from askew.testing import check_method

BOTH = {"features": 1, "head": 1}


def self_training(f: Formula, weak: Tensor, strong: Tensor, threshold: float) -> tuple[Tensor, int]:
    """The mean over all images, and how many of them count."""
    q, p = f.p(f.f(weak)).tolist(), f.p(f.f(strong))
    sure = [i for i in range(NT) if max(q[i]) >= threshold]
    terms = [-p[i, q[i].index(max(q[i]))].log() for i in sure]
    return torch.stack(terms).sum() / NT, len(sure)


@pytest.mark.parametrize("threshold", [0.0, 0.7])
def test_its_losses_and_gradients_are_those_of_the_formula(threshold: float) -> None:
    method = FixMatch(weight=0.3, threshold=threshold)
    net, batch = given(method)
    f = Formula(net, batch)
    term, sure = self_training(f, *batch.target_views, threshold)
    assert sure == NT if threshold == 0 else 0 < sure < NT
    want = {"label": (f.label(), BOTH), "self": (0.3 * term, BOTH)}
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_where_the_network_is_never_sure_the_target_teaches_nothing() -> None:
    method = FixMatch(threshold=1.0)
    net, batch = given(method)
    loss = method.losses(net, batch, {}, T)["self"]
    assert loss.item() == 0
    assert not any(g.any() for g in torch.autograd.grad(loss, list(net.parameters())))


def test_the_weak_view_comes_first_and_is_weaker() -> None:
    weak, strong = FixMatch.target_views
    assert 0 < weak < strong


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_it_keeps_the_contract_where_images_count(threshold: float) -> None:
    check_method(FixMatch(threshold=threshold))
