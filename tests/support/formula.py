"""A small network, and its weights as plain float64 formulas that methods are held against.

Nothing here calls askew.methods.losses. A reversed gradient is told by the share of a term that
each part descends: −0.5 says
that the part climbs it half as fast. (A second conftest.py would hide the first from `from conftest
import …`.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from askew.methods.base import Batch, Losses, Method, Shape
from askew.nets.heads import LinearHead
from askew.nets.network import Net

NS, NT, D, W, C, HIDDEN = 9, 7, 5, 4, 3, 6
T = torch.tensor(0.1, dtype=torch.float64)
RAMP = math.tanh(0.5)
"""2/(1 + e^(−10t)) − 1 at T: it equals tanh(5t)."""

Shares = Mapping[str, float]


class Given(NamedTuple):
    net: Net
    batch: Batch


def given(method: Method) -> Given:
    """Weights and rows by chance, and as many views of the target as the method asks for.

    In evaluation, so that critics drop nothing and can be written out.
    """
    torch.manual_seed(0)
    parts = {"features": nn.Sequential(nn.Linear(D, W), nn.Tanh()), "head": LinearHead(W, C)}
    parts |= method.parts(Shape(W, C, lambda: LinearHead(W, C)))
    net = Net(parts, W, split_norm=False, teacher=method.teacher).double().eval()
    for p in net.parameters():
        p.data *= 2  # away from where all is linear
    xs, xt = torch.randn(NS, D, dtype=torch.float64), torch.randn(NT, D, dtype=torch.float64) + 0.5
    more = [xt + torch.randn(NT, D, dtype=torch.float64) for _ in method.target_views[1:]]
    if method.teacher:
        for weight in net["teacher"].buffers():
            weight += 4 * torch.rand_like(weight)  # another network than the student
    batch = Batch(
        xs, torch.arange(NS) % C, xt, torch.arange(NT), source_views=(xs,), target_views=(xt, *more)
    )
    return Given(net, batch)


class Formula:
    """The network as nothing but its weights w: f = tanh(Ax + a), p = softmax(Bf + b), d = a
    critic's logit."""

    def __init__(self, net: Net, batch: Batch) -> None:
        self.net = net
        self.w = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
        self.ys = batch.ys
        self.fs, self.ft = self.f(batch.xs), self.f(batch.xt)

    def taught(self, x: Tensor) -> Tensor:
        """What a teacher answers: the same formula with weights of its own, which no gradient
        reaches."""
        w = {name: value.clone() for name, value in self.net["teacher"].named_buffers()}
        f = torch.tanh(x @ w["features.0.weight"].T + w["features.0.bias"])
        return softmax(f @ w["head.weight"].T + w["head.bias"])

    def f(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear("features.0", x))

    def linear(self, layer: str, x: Tensor) -> Tensor:
        return x @ self.w[f"{layer}.weight"].T + self.w[f"{layer}.bias"]

    def p(self, f: Tensor, head: str = "head") -> Tensor:
        return softmax(self.linear(head, f))

    def d(self, f: Tensor, critic: str = "critic") -> Tensor:
        for layer in (0, 3):
            f = self.linear(f"{critic}.layers.{layer}", f).clamp(min=0)
        return self.linear(f"{critic}.layers.6", f)[:, 0]

    def joint_d(self, f: Tensor) -> Tensor:
        """The conditional critic's logit: rows p₁f, p₂f, … end to end, p being a constant."""
        p = self.p(f).detach()
        rows = [torch.cat([p[i, k] * f[i] for k in range(p.shape[1])]) for i in range(len(f))]
        return self.d(torch.stack(rows), "critic.critic")

    def certainty(self, f: Tensor) -> Tensor:
        """1 + e^(−H), of mean one, a constant."""
        w = 1 + (-shannon(self.p(f).detach())).exp()
        return w / w.mean()

    def label(self, weight: Tensor | None = None, head: str = "head") -> Tensor:
        """(1/n) Σ_i −w_i log p_i[y_i], row by row."""
        p = self.p(self.fs, head)
        w = [1.0] * NS if weight is None else weight.tolist()
        return (
            torch.stack([-w[i] * p[i, y].log() for i, y in enumerate(self.ys.tolist())]).sum() / NS
        )


def softmax(z: Tensor) -> Tensor:
    return z.exp() / z.exp().sum(dim=1, keepdim=True)


def shannon(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(dim=1)


def sigmoid(d: Tensor) -> Tensor:
    return 1 / (1 + (-d).exp())


def domain(ds: Tensor, dt: Tensor, ws: Tensor | float = 1.0, wt: Tensor | float = 1.0) -> Tensor:
    """A critic's cross-entropy, source being 1, half from each domain."""
    return (-(ws * sigmoid(ds).log()).mean() - (wt * (1 - sigmoid(dt)).log()).mean()) / 2


def assert_is(losses: Losses, formula: Formula, want: Mapping[str, tuple[Tensor, Shares]]) -> None:
    """Losses have the formula's values; each part of the network descends its share of the term,
    and no other part."""
    assert list(losses) == list(want)
    params = dict(formula.net.named_parameters())
    for name, (term, shares) in want.items():
        torch.testing.assert_close(
            losses[name], term, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}"
        )
        found, true = (
            torch.autograd.grad(value, list(of.values()), retain_graph=True, materialize_grads=True)
            for value, of in ((losses[name], params), (term, formula.w))
        )
        moved = set()
        for weight, a, b in zip(params, found, true, strict=True):
            part = weight.partition(".")[0]
            torch.testing.assert_close(
                a,
                shares.get(part, 0.0) * b,
                rtol=1e-8,
                atol=1e-12,
                msg=lambda m, w=weight, n=name: f"∂{n}/∂{w}: {m}",
            )
            moved |= {part} if a.abs().max() > 1e-5 else set()
        assert moved == {part for part, share in shares.items() if share}, f"{name} moves {moved}"


def zero(net: Net, prefix: str) -> None:
    """Set the weights so named to 0: a critic without its last layer says 0 of every image, and
    σ(0) is one half."""
    named = [p for name, p in net.named_parameters() if name.startswith(prefix)]
    assert named
    for p in named:
        p.data.zero_()
