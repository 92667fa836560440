"""PADA against its formula, in value and in gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from formula import HIDDEN, NS, RAMP, C, Formula, T, assert_is, domain, given, zero
from torch import Tensor

from askew.methods.pada import PADA

GAMMA = torch.tensor([0.5, 0.3, 0.1], dtype=torch.float64)  # need not sum to one


def test_its_losses_and_gradients_are_those_of_the_formula() -> None:
    method = PADA(weight=0.3, hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    by_mean = torch.tensor([GAMMA[y] / 0.3 for y in batch.ys], dtype=torch.float64)
    by_max = torch.tensor([GAMMA[y] / 0.5 for y in batch.ys], dtype=torch.float64)
    want = {
        "label": (f.label(by_mean), {"features": 1, "head": 1}),
        "domain": (0.3 * domain(f.d(f.fs), f.d(f.ft), by_max), {"features": -RAMP, "critic": 1}),
    }
    assert_is(method.losses(net, batch, {"gamma": GAMMA}, T), f, want)


def test_only_the_source_side_of_the_critic_is_weighed() -> None:
    method = PADA(hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.layers.6")
    mean = sum(GAMMA[y].item() / 0.5 for y in batch.ys) / NS
    found = method.losses(net, batch, {"gamma": GAMMA}, T)["domain"]
    assert found.item() == pytest.approx((mean + 1) / 2 * math.log(2))


def test_a_class_that_the_target_does_not_have_teaches_nothing() -> None:
    method = PADA(hidden=HIDDEN)
    net, batch = given(method)
    state = {"gamma": torch.tensor([0.0, 0.6, 0.4], dtype=torch.float64)}
    other = batch._replace(xs=torch.where(batch.ys[:, None] == 0, 9.0, batch.xs))
    for name, value in method.losses(net, batch, state, T).items():
        assert value.item() == pytest.approx(method.losses(net, other, state, T)[name].item())


class DomainOutputs(NamedTuple):
    target: Tensor
    source_val: Tensor = torch.zeros(0, C)
    source_val_y: Tensor = torch.zeros(0, dtype=torch.int64)
    source_prior: Tensor = torch.full((C,), 1 / C)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_gamma_is_the_mean_of_the_target_s_softmax_and_refreshed_every_round(
    sharpness: float,
) -> None:
    z = torch.randn(50, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = np.exp(sharpness * z.numpy())
    want = (p / p.sum(axis=1, keepdims=True)).mean(axis=0)
    for round in (0, 1, 7):
        np.testing.assert_allclose(
            PADA(sharpness=sharpness).refresh(DomainOutputs(z), round)["gamma"], want, rtol=1e-9
        )


def test_equal_gamma_weighs_nothing() -> None:
    method = PADA(hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    losses = method.losses(net, batch, {"gamma": torch.full((C,), 0.2, dtype=torch.float64)}, T)
    assert losses["label"].item() == pytest.approx(f.label().item())
    assert losses["domain"].item() == pytest.approx(domain(f.d(f.fs), f.d(f.ft)).item())


def test_the_mix_that_it_sees_is_the_sampler_s_times_gamma() -> None:
    seen = PADA().training_prior(
        torch.tensor([0.2, 0.2, 0.6]), {"gamma": torch.tensor([0.5, 0.3, 0.1])}
    )
    np.testing.assert_allclose(seen, np.array([10, 6, 6]) / 22, rtol=1e-6)
