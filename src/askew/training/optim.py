"""SGD, Adam and AdamW by torch's own fused kernels, one pass over the weights each; they equal torch.optim's.

The schedule is computed on the device from the step counter, so that a whole step can be captured as one graph, and
gradients are handed over rather than kept in `.grad`, so that lanes and phases share one code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from askew.core.device import wide
from askew.core.options import Between
from askew.nets.small import on_backbone

Tensors = list[Tensor]


@dataclass(frozen=True, kw_only=True)
class Optim:
    """How weights follow their gradients."""

    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """SGD with momentum, Adam, or AdamW (Adam with the decay apart from the gradient)."""
    lr: Annotated[float, Between(0)] = 0.01
    """Rate of the head, of a method's own parts, and of layers put on a backbone."""
    features_lr: Annotated[float, Between(0)] = 0.001
    """Rate of the features."""
    momentum: Annotated[float, Between(0, 0.9999)] = 0.9
    """Of SGD; Adam's β₁."""
    nesterov: bool = False
    """Nesterov's momentum, for SGD."""
    weight_decay: Annotated[float, Between(0)] = 5e-4
    """Added to the gradient as weight_decay·w."""
    schedule: Literal["constant", "inverse", "cosine"] = "constant"
    """Rate over progress t: 1, (1+10t)^−0.75, or (1+cos πt)/2."""


def rate(schedule: str, t: Tensor) -> Tensor:
    """What the schedule multiplies both rates by, at progress t."""
    if schedule == "inverse":
        return (1 + 10 * t) ** -0.75
    if schedule == "cosine":
        return (1 + torch.cos(torch.pi * t)) / 2
    return torch.ones_like(t)


def _laid_out(params: Tensors, grads: Sequence[Tensor]) -> Tensors:
    """Gradients that lie in memory as their weights do: torch's fused kernels walk memory and not indices."""
    return [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for p, g in zip(params, grads, strict=True)]


def sgd_(
    params: Tensors,
    grads: Sequence[Tensor],
    moving: Tensors,
    lr: Tensor,
    momentum: float,
    decay: float,
    nesterov: bool = False,
) -> None:
    """v ← μv + (g + λw);  w ← w − ηv, or w − η(g + λw + μv) with Nesterov's momentum"""
    torch._fused_sgd_(
        params,
        _laid_out(params, grads),
        moving if momentum else [],  # torch's kernel takes no slots then
        weight_decay=decay,
        momentum=momentum,
        lr=lr,
        dampening=0.0,
        nesterov=nesterov,
        maximize=False,
        is_first_step=False,  # zeros are the right start: v ← μ·0 + g
    )


def adam_(
    params: Tensors,
    grads: Sequence[Tensor],
    first: Tensors,
    second: Tensors,
    count: Tensor,
    lr: Tensor,
    beta1: float,
    decay: float,
    decoupled: bool = False,
) -> None:
    """m ← β₁m + (1−β₁)g;  s ← β₂s + (1−β₂)g²;  w ← w − η·m̂/(√ŝ + ε), with m̂ = m/(1−β₁ⁿ), ŝ = s/(1−β₂ⁿ)

    The decay is part of the gradient, or (AdamW) w ← (1 − ηλ)w beforehand.
    """
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        params,
        _laid_out(params, grads),
        first,
        second,
        [],
        [count.float()] * len(params),
        lr=lr,
        beta1=beta1,
        beta2=0.999,
        weight_decay=decay,
        eps=1e-8,
        amsgrad=False,
        maximize=False,
    )


def _part(parameter: str, network: str) -> str:
    """Which part of a network a parameter belongs to; in `resnet50+mlp`, the layers put on the backbone are one."""
    if on_backbone(network) and parameter.startswith("features.1."):
        return "top"
    return parameter.partition(".")[0]


class Optimiser:
    """The slots (momentum, moments) of named parameters, and the step that uses them."""

    def __init__(self, optim: Optim, params: dict[str, Tensor], network: str = "") -> None:
        self.optim = optim
        slots = 1 if optim.optimiser == "sgd" else 2
        self.params = params
        self.slots = [{name: torch.zeros_like(p) for name, p in params.items()} for _ in range(slots)]
        self.parts = {name: _part(name, network) for name in params}
        device = next(iter(params.values())).device
        # Adam's bias correction counts a part's own steps, since phases may train parts in turn
        counts = {part: torch.zeros((), dtype=wide(device), device=device) for part in set(self.parts.values())}
        self.counts = {} if optim.optimiser == "sgd" else counts

    def step(self, names: Sequence[str], grads: Sequence[Tensor | None], t: Tensor) -> None:
        """Update the named parameters in place; one without a gradient stays as it is."""
        o = self.optim
        factor = rate(o.schedule, t)
        by_part: dict[str, list[tuple[str, Tensor]]] = {}
        for name, grad in zip(names, grads, strict=True):
            if grad is not None:
                by_part.setdefault(self.parts[name], []).append((name, grad))
        with torch.no_grad():
            for part, picked in by_part.items():
                lr = factor * (o.features_lr if part == "features" else o.lr)
                params = [self.params[name] for name, _ in picked]
                slots = [[slot[name] for name, _ in picked] for slot in self.slots]
                values = [grad for _, grad in picked]
                if o.optimiser == "sgd":
                    sgd_(params, values, slots[0], lr, o.momentum, o.weight_decay, o.nesterov)
                else:
                    count = self.counts[part]
                    count += 1
                    first, second = slots
                    decoupled = o.optimiser == "adamw"
                    adam_(params, values, first, second, count, lr, o.momentum, o.weight_decay, decoupled)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, by name."""
        named = {f"slot{i}.{name}": value for i, slot in enumerate(self.slots) for name, value in slot.items()}
        return named | {f"count.{name}": value for name, value in self.counts.items()}
