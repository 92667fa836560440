"""Five methods written by hand in plain eager PyTorch: what askew's speed is measured against.

A fair one: data lies on the device, batches are gathered there, gradients are set to none, torch's
fused SGD updates the weights, and nothing is ever read back.
"""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.nets.heads import CosineHead, Critic
from askew.nets.layers import Dropout
from askew.nets.network import build
from askew.nets.spec import NetworkSpec
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

    def __init__(self, spec: NetworkSpec, shape: tuple[int, ...], feed: Feed, batch: int) -> None:
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
        groups = [
            {"params": m.parameters(), "lr": 0.001 if m is self.features else 0.01} for m in modules
        ]
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
        own = (
            F.cross_entropy(self.head(ft), self.pseudo[it], reduction="none") * self.mask[it]
        ).mean()
        log_p = self.head(Reverse.apply(ft, 1.0)).log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        self.update(label + own - 0.1 * entropy)


def affine_view(x: Tensor) -> Tensor:
    """A random rotation, scale, shear and shift, and noise, by torch's own sampler; pixels stay on
    0 … 255."""
    n, _, h, w = x.shape
    u = 2 * torch.rand(n, 6, device=x.device) - 1
    angle, a, b, s = (
        u[:, 0] * math.radians(20),
        1 + 0.25 * u[:, 1],
        1 + 0.25 * u[:, 2],
        0.25 * u[:, 3],
    )
    cos, sin = angle.cos(), angle.sin()
    rows = [
        cos * a,
        (cos * s - sin) * b,
        u[:, 4] * 4 / w,
        sin * a,
        (sin * s + cos) * b,
        u[:, 5] * 4 / h,
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1).view(n, 2, 3), list(x.shape), align_corners=False)
    view = F.grid_sample(x.float(), grid, padding_mode="border", align_corners=False)
    return view + 12.75 * torch.randn_like(view)


def intensity_view(x: Tensor) -> Tensor:
    """Then a random gain, sign and offset."""
    v, u = affine_view(x) / 127.5 - 1, torch.rand(3, len(x), 1, 1, 1, device=x.device)
    return 127.5 * (torch.where(u[0] < 0.5, -1.0, 1.0) * (0.25 + 1.25 * u[1]) * v + u[2] - 0.5 + 1)


class PlainTeacher(Plain):
    """Three passes over random views: the student's over each domain, the teacher's over the
    target."""

    def make_parts(self) -> None:
        self.view = intensity_view if self.feed.source.x.shape[1] == 3 else affine_view
        student: list[Tensor] = [*self.features.parameters(), *self.head.parameters()]
        self.teacher = copy.deepcopy(nn.Sequential(self.features, self.head)).requires_grad_(False)
        averaged: list[Tensor] = [*self.teacher.parameters()]
        self.pairs = averaged, student
        self.shares = torch.full(
            (self.feed.classes,), 1 / self.feed.classes, device=self.feed.device
        )

    def sgd(self, *modules: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for m in modules for p in m.parameters()], lr=1e-3, fused=True)

    def step(self) -> None:
        xs, ys, xt, _ = self.batch()
        label = F.cross_entropy(self.head(self.features(self.view(xs))), ys)
        p = self.head(self.features(self.view(xt))).softmax(1)
        with torch.no_grad():
            q = self.teacher(self.view(xt)).softmax(1)
            self.shares.mul_(0.95).add_(0.05 * q.mean(0))
            q = q / self.shares.clamp(min=0.01 / q.shape[1])
            q = q / q.sum(1, keepdim=True)
            sure = (q.max(1).values > 0.968).float()
        self.update(label + 3 * (sure * (p - q).square().sum(1)).mean())
        self.taken += 1
        averaged, student = self.pairs
        torch._foreach_lerp_(averaged, student, 1 / min(self.taken + 1, 100))


PLAIN: dict[str, type[Plain]] = {
    "source": Plain,
    "dann": PlainDANN,
    "mcd": PlainMCD,
    "coal": PlainCOAL,
    "teacher": PlainTeacher,
}
