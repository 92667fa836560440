"""BBSE against its formula, in value and in gradient."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from formula import C, Formula, T, assert_is, given
from torch import Tensor

from askew.data.task import TrainingData
from askew.methods.bbse import BBSE
from askew.nets.network import build
from askew.testing import check_method
from askew.training.optim import Optim
from askew.training.trainer import fit

CPU = torch.device("cpu")
RATIO = torch.tensor([0.4, 1.2, 3.0], dtype=torch.float64)


class DomainOutputs(NamedTuple):
    target: Tensor
    source_val: Tensor
    source_val_y: Tensor
    source_prior: Tensor


def sure(y: list[int]) -> Tensor:
    """Logits of a classifier that says y."""
    return 20.0 * torch.eye(C)[y]


def perfect(mix: list[float]) -> DomainOutputs:
    """A classifier without fault, on a target of 5, 3 and 2 in ten."""
    y = [0, 0, 0, 1, 1, 2]
    return DomainOutputs(
        sure([0] * 5 + [1] * 3 + [2] * 2), sure(y), torch.tensor(y), torch.tensor(mix)
    )


# The loss


def test_its_loss_and_gradient_are_those_of_the_formula() -> None:
    """The mean is over images, not over weights."""
    net, batch = given(BBSE())
    f = Formula(net, batch)
    w = torch.tensor([RATIO[y] for y in batch.ys], dtype=torch.float64)
    assert_is(
        BBSE().losses(net, batch, {"ratio": RATIO}, T),
        f,
        {"label": (f.label(w), {"features": 1, "head": 1})},
    )


def test_it_does_not_look_at_target_images() -> None:
    net, batch = given(BBSE())
    blind = batch._replace(xt=torch.full_like(batch.xt, torch.nan))
    assert BBSE().losses(net, blind, {"ratio": RATIO}, T) == BBSE().losses(
        net, batch, {"ratio": RATIO}, T
    )


# The weights


@pytest.mark.parametrize(
    "mix", [[0.5, 1 / 3, 1 / 6], [1 / 3, 1 / 3, 1 / 3]], ids=["natural", "balanced"]
)
def test_class_weights_are_target_shares_over_sampled_shares(mix: list[float]) -> None:
    """Not over that of the held-out images: they are the same in both cases."""
    state = BBSE().refresh(perfect(mix), 0)
    np.testing.assert_allclose(state["ratio"], np.array([0.5, 0.3, 0.2]) / mix, rtol=1e-5)
    np.testing.assert_allclose(
        BBSE().training_prior(torch.tensor(mix), state), [0.5, 0.3, 0.2], rtol=1e-5
    )


def test_a_class_that_the_sampler_never_delivers_has_weight_zero() -> None:
    state = BBSE().refresh(perfect([0.5, 0.5, 0.0]), 0)
    np.testing.assert_allclose(
        state["ratio"], [1.25, 0.75, 0.0], rtol=1e-5
    )  # 5 to 3, of a mean of one
    np.testing.assert_allclose(
        BBSE().training_prior(torch.tensor([0.5, 0.5, 0.0]), state), [5 / 8, 3 / 8, 0], rtol=1e-5
    )


def test_mistakes_of_the_classifier_are_undone() -> None:
    """It takes half of class 1 for class 0, and says 0, 1 and 2 of 5, 2 and 3 in ten: truly they
    are 3, 4 and 3."""
    y = [0, 0, 1, 1, 2, 2]
    outputs = DomainOutputs(
        sure([0] * 5 + [1] * 2 + [2] * 3),
        sure([0, 0, 0, 1, 2, 2]),
        torch.tensor(y),
        torch.full((C,), 1 / C),
    )
    np.testing.assert_allclose(
        BBSE().refresh(outputs, 0)["ratio"], np.array([0.3, 0.4, 0.3]) * C, rtol=1e-5
    )


def test_later_rounds_change_nothing() -> None:
    assert all(BBSE().refresh(perfect([0.5, 0.3, 0.2]), round) == {} for round in (1, 2, 9))


def test_its_estimator_and_its_softness_are_options() -> None:
    z = torch.randn(60, C, generator=torch.Generator().manual_seed(0))
    outputs = DomainOutputs(
        z[:30],
        z[30:] + 2 * torch.eye(C)[torch.arange(30) % C],
        torch.arange(30) % C,
        torch.full((C,), 1 / C),
    )
    methods = [BBSE(estimator=e, soft=s) for e in ("simplex", "ridge") for s in (False, True)]
    ratios = [method.refresh(outputs, 0)["ratio"] for method in methods]
    assert all(r.sum().item() == pytest.approx(C, rel=1e-4) and (r >= 0).all() for r in ratios)
    assert not any(
        torch.allclose(a, b, atol=1e-3) for i, a in enumerate(ratios) for b in ratios[:i]
    )


# Training


def test_it_trains_from_fresh_weights_by_what_the_network_before_said(
    training_data: TrainingData, make_run: Any
) -> None:
    run = make_run(BBSE(), rounds=3, round_steps=2, pretrain=60, head="linear")
    still = dataclasses.replace(run.plan[1], restart=True, optim=Optim(lr=0.0, features_lr=0.0))
    run = dataclasses.replace(run, plan=(run.plan[0], still))
    *_, before = fit(run.before, training_data, CPU)
    start, want = before.weights(), BBSE().refresh(before.outputs, 0)["ratio"]
    fresh, _ = build(run.net, (8,), 3, run.seed)
    rounds = 0
    for snapshot in fit(run, training_data, CPU, start=start):
        rounds += 1
        assert torch.equal(snapshot.checkpoint()["state.ratio"], want)
        assert torch.equal(snapshot.weights()["head.weight"], fresh["head"].weight)
    assert rounds == 3
    assert want.std() > 0.01
    assert not torch.equal(start["head.weight"], fresh["head"].weight)
    assert BBSE.restarts


@pytest.mark.parametrize("options", [{"estimator": "ridge"}, {"soft": True}], ids=str)
def test_its_options_keep_the_contract(options: Any) -> None:
    check_method(BBSE(**options))
