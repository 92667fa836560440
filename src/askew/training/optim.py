"""SGD, Adam and AdamW by torch's own fused kernels, one pass over the weights each; they equal
torch.optim's.

The schedule is computed on the device from the step counter, so that a whole step can be captured
as one graph, and gradients are handed over rather than kept in `.grad`, so that lanes and phases
share one code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from askew.core.device import wide
from askew.core.options import Between
from askew.nets.triton.trust import trusted_update
from askew.nets.vmap.dense import Factors, Gradient

Tensors = list[Tensor]
Averages = tuple[Tensor, Mapping[str, Tensor]]
"""Averages of weights over the steps, by the weights' names, and the share of a step in them."""

BETA2, EPS = 0.999, 1e-8
_LARGE = (
    1 << 22
)  # weights from which on a launch of their own pays, as their gradient then need not be written


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
    """Gradients that lie in memory as their weights do: torch's fused kernels walk memory and not
    indices."""
    return [
        g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for p, g in zip(params, grads, strict=True)
    ]


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


def adam_(  # noqa: PLR0913
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
    """m ← β₁m + (1−β₁)g;  s ← β₂s + (1−β₂)g²;  w ← w − η·m̂/(√ŝ + ε), with m̂ = m/(1−β₁ⁿ), ŝ =
    s/(1−β₂ⁿ)

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
        beta2=BETA2,
        weight_decay=decay,
        eps=EPS,
        amsgrad=False,
        maximize=False,
    )


def _part(parameter: str, on_backbone: bool) -> str:
    """Which part of a network a parameter belongs to; layers on a backbone are a part."""
    if on_backbone and parameter.startswith("features.1."):
        return "top"
    return parameter.partition(".")[0]


class Optimiser:
    """The slots (momentum, moments) of named parameters, and the step that uses them."""

    def __init__(self, optim: Optim, params: dict[str, Tensor], on_backbone: bool = False) -> None:
        self.optim = optim
        slots = 1 if optim.optimiser == "sgd" else 2
        self.params = params
        self.slots = [
            {name: torch.zeros_like(p) for name, p in params.items()} for _ in range(slots)
        ]
        self.parts = {name: _part(name, on_backbone) for name in params}
        device = next(iter(params.values())).device
        # Adam's bias correction counts a part's own steps, since phases may train parts in turn
        counts = {
            part: torch.zeros((), dtype=wide(device), device=device)
            for part in set(self.parts.values())
        }
        self.counts = {} if optim.optimiser == "sgd" else counts

    def step(
        self,
        names: Sequence[str],
        grads: Sequence[Gradient],
        t: Tensor,
        averages: Averages | None = None,
    ) -> set[str]:
        """Update the named parameters in place; one without a gradient stays as it is.

        Which averages, of those that are to follow, have been moved along in the same pass.
        """
        o = self.optim
        factor = rate(o.schedule, t)
        by_part: dict[str, dict[str, Tensor | Factors]] = {}
        for name, grad in zip(names, grads, strict=True):
            if grad is not None:
                by_part.setdefault(self.parts[name], {})[name] = grad
        moved: set[str] = set()
        with torch.no_grad():
            for part, picked in by_part.items():
                lr = factor * (o.features_lr if part == "features" else o.lr)
                if part in self.counts:
                    self.counts[part] += 1
                left = self._by_factors(picked, lr, self.counts.get(part), averages)
                self._by_gradients(left, lr, self.counts.get(part))
                moved |= picked.keys() - left.keys()
        return moved

    def _by_gradients(
        self, picked: Mapping[str, Tensor | Factors], lr: Tensor, count: Tensor | None
    ) -> None:
        if not picked:
            return
        o, params = self.optim, [self.params[name] for name in picked]
        first, second = (
            [slot[name] for name in picked] for slot in (self.slots[0], self.slots[-1])
        )
        values = [grad.product() if isinstance(grad, Factors) else grad for grad in picked.values()]
        if count is None:
            sgd_(params, values, first, lr, o.momentum, o.weight_decay, o.nesterov)
        else:
            adam_(
                params,
                values,
                first,
                second,
                count,
                lr,
                o.momentum,
                o.weight_decay,
                o.optimiser == "adamw",
            )

    def _by_factors(
        self,
        picked: Mapping[str, Tensor | Factors],
        lr: Tensor,
        count: Tensor | None,
        averages: Averages | None,
    ) -> dict[str, Tensor | Factors]:
        """Steps of large weights by a kernel that multiplies factors where it uses the outcome; the
        others are left."""
        o, left = self.optim, dict(picked)
        share, followers = averages or (None, {})
        numbers: Tensor | None = None
        for name, grad in picked.items():
            weight, slots = self.params[name], [slot[name] for slot in self.slots]
            if not isinstance(grad, Factors) or weight.numel() < _LARGE or not o.momentum:
                continue
            if not trusted_update(weight, grad.left, len(slots), name in followers):
                continue
            from askew.nets.triton.update_kernel import update

            if numbers is None:
                done = () if count is None else (1 - o.momentum**count, 1 - BETA2**count)
                numbers = torch.stack([lr, *done]).float()
            variant = o.nesterov if count is None else o.optimiser == "adamw"
            factors = grad.left, grad.right, numbers, share
            update(
                weight,
                slots,
                followers.get(name),
                *factors,
                o.momentum,
                o.weight_decay,
                variant,
                BETA2,
                EPS,
            )
            del left[name]
        return left

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs, by name."""
        named = {
            f"slot{i}.{name}": value
            for i, slot in enumerate(self.slots)
            for name, value in slot.items()
        }
        return named | {f"count.{name}": value for name, value in self.counts.items()}
