"""ETN against its formula, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
from formula import HIDDEN, NS, RAMP, C, Formula, T, assert_is, domain, given, shannon, zero
from torch import Tensor

from askew.methods.etn import ETN


class Leaky(Formula):
    """With an auxiliary head on features as they are, whose outputs leak: G_k = e^(z_k)/(Σ e^z +
    c)."""

    def G(self, f: Tensor) -> Tensor:
        e = self.linear("auxiliary", f.detach()).exp()
        return e / (e.sum(dim=1, keepdim=True) + C)

    def weight(self) -> Tensor:
        w = 1 - self.G(self.fs).sum(dim=1).detach()
        return w / w.mean()

    def one_vs_rest(self) -> Tensor:
        G = self.G(self.fs)
        each = [
            (G[i, k] if k == y else 1 - G[i, k]).log()
            for i, y in enumerate(self.ys.tolist())
            for k in range(C)
        ]
        return -torch.stack(each).sum() / NS

    def auxiliary_domain(self) -> Tensor:
        source, target = self.G(self.fs).sum(dim=1), self.G(self.ft).sum(dim=1)
        return -(source.log().mean() + (1 - target).log().mean()) / 2


def test_its_losses_and_gradients_are_those_of_the_formula() -> None:
    """Among them: no gradient through w, and none from the auxiliary head to the features."""
    method = ETN(
        weight=0.3, entropy_weight=0.7, auxiliary_label=0.6, auxiliary_domain=4.0, hidden=HIDDEN
    )
    net, batch = given(method)
    f = Leaky(net, batch)
    w = f.weight()
    assert w.max() > 2 * w.min(), "they differ in this comparison"
    want = {
        "label": (f.label(w), {"features": 1, "head": 1}),
        "domain": (0.3 * domain(f.d(f.fs), f.d(f.ft), w), {"features": -RAMP, "critic": 1}),
        "entropy": (0.7 * shannon(f.p(f.ft)).mean(), {"features": 1, "head": 1}),
        "auxiliary_label": (0.6 * f.one_vs_rest(), {"auxiliary": 1}),
        "auxiliary_domain": (4.0 * f.auxiliary_domain(), {"auxiliary": 1}),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


def test_the_authors_weights_are_the_defaults() -> None:
    method = ETN()
    assert (method.entropy_weight, method.auxiliary_label, method.auxiliary_domain) == (
        0.2,
        1.0,
        10.0,
    )


def test_its_weights_have_mean_one() -> None:
    method = ETN(hidden=HIDDEN)
    net, batch = given(method)
    zero(net, "critic.layers.6")
    zero(net, "head")
    losses = method.losses(net, batch, {}, T)
    assert losses["domain"].item() == pytest.approx(math.log(2))
    assert losses["label"].item() == pytest.approx(math.log(C))


def test_what_looks_like_source_alone_counts_less() -> None:
    """An image that the auxiliary head is sure to be source has no say; were w = D, it would have
    all of it."""
    method = ETN(hidden=HIDDEN)
    net, batch = given(method)
    z = torch.zeros(NS, C, dtype=torch.float64)
    z[0] = 60.0  # D = 1 for row 0
    net["auxiliary"].register_forward_hook(lambda m, args, out: z if len(args[0]) == NS else out)
    moved = batch._replace(xs=torch.cat([batch.xs[:1] + 3, batch.xs[1:]]))
    here, there = (method.losses(net, b, {}, T) for b in (batch, moved))
    for name in ("label", "domain"):
        assert here[name].item() == pytest.approx(there[name].item(), rel=1e-12)


def test_an_auxiliary_head_beyond_all_bounds_leaves_losses_and_gradients_finite() -> None:
    method = ETN(hidden=HIDDEN)
    for size in (1e4, -1e4):
        net, batch = given(method)
        net["auxiliary"].register_forward_hook(lambda m, args, out, size=size: out + size)
        losses = method.losses(net, batch, {}, T)
        grads = torch.autograd.grad(torch.stack([*losses.values()]).sum(), list(net.parameters()))
        assert all(v.isfinite().all() for v in (*losses.values(), *grads))


# FAILS with the source as found: 1 − σ(a) is rounded to a multiple of 6e-8 (of 0.004 in bfloat16),
# and to 0 soon after. σ(−a) is the same number and keeps all its digits: w =
# mean_one((-leaky_logit(zs)).sigmoid()).
def test_source_that_is_surely_source_keeps_its_proportions_in_float32() -> None:
    method = ETN(hidden=HIDDEN)
    net, batch = given(method)
    a = torch.linspace(14, 20, NS)
    z = a[:, None].expand(NS, C)  # a = log Σ e^z − log c
    net.float()["auxiliary"].register_forward_hook(
        lambda m, args, out: z if len(args[0]) == NS else out
    )
    f = Formula(net, batch := batch._replace(xs=batch.xs.float(), xt=batch.xt.float()))
    w = (-a).double().exp()
    assert method.losses(net, batch, {}, T)["label"].item() == pytest.approx(
        f.label(w / w.mean()).item(), rel=1e-5
    )
