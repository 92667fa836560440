"""Four methods written by hand in plain eager PyTorch: what askew's speed is measured against.

A fair one: data lies on the device, batches are gathered there, gradients are set to none, torch's fused SGD updates
the weights, and nothing is ever read back.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.nets.layers import CosineHead, Critic, Dropout
from askew.nets.network import build
from askew.nets.spec import NetSpec
from askew.training.batches import Feed


def with_torchs_dropout(module: nn.Module) -> nn.Module:
    """The same network with nn.Dropout, which uses torch's own random generator."""
    for name, child in module.named_children():
        if isinstance(child, Dropout):
            setattr(module, name, nn.Dropout(child.p))
        else:
            with_torchs_dropout(child)
    return module


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, strength: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return -ctx.strength * grad, None


class Plain:
    """Source only; the others derive from it."""

    def __init__(self, spec: NetSpec, shape: tuple[int, ...], feed: Feed, batch: int) -> None:
        parts, self.width = build(spec, shape, feed.classes, 0)
        self.features = with_torchs_dropout(parts["features"]).to(feed.device).train()
        self.head = parts["head"].to(feed.device).train()
        self.feed, self.b, self.taken = feed, batch, 0
        self.make_parts()
        self.optimiser = self.sgd(self.features, *self.others())

    def make_parts(self) -> None:
        pass

    def others(self) -> list[nn.Module]:
        return [self.head]

    def sgd(self, *modules: nn.Module) -> torch.optim.Optimizer:
        groups = [{"params": m.parameters(), "lr": 0.001 if m is self.features else 0.01} for m in modules]
        return torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4, fused=True)

    def batch(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """xs, ys, xt, and the rows of the target."""
        feed = self.feed
        rows = torch.randint(0, len(feed.source), (self.b,), device=feed.device)
        it = torch.randint(0, len(feed.target), (self.b,), device=feed.device)
        return feed.source.x[rows], feed.ys[rows], feed.target.x[it], it

    def update(self, loss: Tensor, *optimisers: torch.optim.Optimizer) -> None:
        for optimiser in (self.optimiser, *optimisers):
            optimiser.zero_grad()
        loss.backward()
        for optimiser in optimisers or (self.optimiser,):
            optimiser.step()

    def step(self) -> None:
        xs, ys, _, _ = self.batch()
        self.update(F.cross_entropy(self.head(self.features(xs)), ys))


class PlainDANN(Plain):
    def make_parts(self) -> None:
        self.critic = with_torchs_dropout(Critic(self.width, 500)).to(self.feed.device).train()

    def others(self) -> list[nn.Module]:
        return [self.head, self.critic]

    def step(self) -> None:
        xs, ys, xt, _ = self.batch()
        f = self.features(torch.cat([xs, xt]))
        self.taken += 1
        d = self.critic(Reverse.apply(f, min(1.0, self.taken / 1000)))
        label = F.cross_entropy(self.head(f[: self.b]), ys)
        domain = (F.softplus(-d[: self.b]).mean() + F.softplus(d[self.b :]).mean()) / 2
        self.update(label + domain)


class PlainMCD(Plain):
    def make_parts(self) -> None:
        self.head2 = copy.deepcopy(self.head)
        self.heads = self.sgd(self.head, self.head2)
        self.body = self.sgd(self.features)

    def discrepancy(self, f: Tensor) -> Tensor:
        return (self.head(f).softmax(1) - self.head2(f).softmax(1)).abs().mean()

    def label(self, f: Tensor, ys: Tensor) -> Tensor:
        return F.cross_entropy(self.head(f), ys) + F.cross_entropy(self.head2(f), ys)

    def step(self) -> None:
        xs, ys, xt, _ = self.batch()
        x = torch.cat([xs, xt])
        self.update(self.label(self.features(x)[: self.b], ys), self.heads, self.body)
        f = self.features(x)
        self.update(self.label(f[: self.b], ys) - self.discrepancy(f[self.b :]), self.heads)
        for _ in range(3):
            self.update(self.discrepancy(self.features(x)[self.b :]), self.body)


class PlainCOAL(Plain):
    def make_parts(self) -> None:
        assert isinstance(self.head, CosineHead)
        n, device = len(self.feed.target), self.feed.device
        self.pseudo = torch.randint(0, self.feed.classes, (n,), device=device)
        self.mask = (torch.rand(n, device=device) < 0.2).float()

    def step(self) -> None:
        xs, ys, xt, it = self.batch()
        fs, ft = self.features(torch.cat([xs, xt])).split(self.b)
        label = F.cross_entropy(self.head(fs), ys)
        own = (F.cross_entropy(self.head(ft), self.pseudo[it], reduction="none") * self.mask[it]).mean()
        log_p = self.head(Reverse.apply(ft, 1.0)).log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        self.update(label + own - 0.1 * entropy)


PLAIN: dict[str, type[Plain]] = {"source": Plain, "dann": PlainDANN, "mcd": PlainMCD, "coal": PlainCOAL}
