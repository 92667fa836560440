"""UAN against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import (
    HIDDEN,
    NS,
    NT,
    RAMP,
    C,
    Formula,
    T,
    assert_is,
    domain,
    given,
    shannon,
    sigmoid,
    softmax,
    zero,
)
from torch import Tensor

from askew.methods.uan import UAN


def scaled(w: Tensor) -> Tensor:
    """To [0, 1] in the batch, then to mean one."""
    w = (w - min(w.tolist())) / (max(w.tolist()) - min(w.tolist()))
    return w / w.mean()


def weights(f: Formula, temperature: float) -> tuple[Tensor, Tensor]:
    """H(z/T)/log c − d′ on source, d′ − H(z)/log c on target; numbers, not functions of the
    network."""
    zs, zt = (f.linear("head", x).detach() for x in (f.fs, f.ft))
    ds, dt = (sigmoid(f.d(x, "similarity")).detach() for x in (f.fs, f.ft))
    ws = shannon(softmax(zs / temperature)) / math.log(C) - ds
    wt = dt - shannon(softmax(zt)) / math.log(C)
    return scaled(ws), scaled(wt)


@pytest.mark.parametrize("temperature", [10.0, 2.0])
def test_its_losses_and_gradients_are_those_of_the_formula(temperature: float) -> None:
    """Among them: no gradient through the weights, and d′ descends its own loss, to which the
    features are blind."""
    method = UAN(weight=0.3, source_temperature=temperature, hidden=HIDDEN)
    net, batch = given(method)
    f = Formula(net, batch)
    similarity = domain(*(f.d(x.detach(), "similarity") for x in (f.fs, f.ft)))
    want = {
        "label": (f.label(), {"features": 1, "head": 1}),
        "domain": (
            0.3 * domain(f.d(f.fs), f.d(f.ft), *weights(f, temperature)),
            {"features": -RAMP, "critic": 1},
        ),
        "similarity": (similarity, {"similarity": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_the_authors_temperature_is_the_default() -> None:
    assert UAN().source_temperature == 10.0


def test_its_weights_have_mean_one() -> None:
    method = UAN(hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.layers.6")
    assert method.losses(net, batch, {}, T)["domain"].item() == pytest.approx(math.log(2))


def test_the_least_common_image_of_each_domain_has_no_say() -> None:
    """Source that d′ is surest of, and target that it is: their row in the critic does not
    matter."""
    method = UAN(hidden=HIDDEN)
    net, batch = given(method)
    sure = torch.tensor([9.0] + [-9.0] * (NS - 1) + [-9.0] + [9.0] * (NT - 1)).double()
    net["similarity"].register_forward_hook(lambda m, args, out: sure)
    firsts = torch.zeros(NS + NT).double().index_fill(0, torch.tensor([0, NS]), 1.0)
    losses = []
    for more in (0.0, 5.0):
        net["critic"].register_forward_hook(lambda m, args, out, more=more: out + more * firsts)
        losses.append(method.losses(net, batch, {}, T)["domain"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_the_two_critics_do_not_share_a_dropout_mask() -> None:
    method = UAN(hidden=200)
    net, batch = given(method)
    net["similarity"].load_state_dict(net["critic"].state_dict())
    f = net["features"](batch.xs)
    assert torch.equal(net["critic"](f), net["similarity"](f))
    net.train()
    assert not torch.isclose(net["critic"](f), net["similarity"](f)).any()


def test_a_batch_in_which_all_are_equal_is_weighed_equally() -> None:
    method = UAN(hidden=HIDDEN)
    net, batch = given(method)
    batch = batch._replace(xs=batch.xs[:1].expand(NS, -1), xt=batch.xt[:1].expand(NT, -1))
    f = Formula(net, batch)
    found = method.losses(net, batch, {}, T)["domain"]
    assert found.item() == pytest.approx(domain(f.d(f.fs), f.d(f.ft)).item())
