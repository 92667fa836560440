"""Dense layers of stacked lanes: a method's passes add up the gradient of their weights in one place.

A method sends source and target through a network apart, so a weight has a gradient of each, which autograd would write
twice and then read, add and write. digits-32 has 31 million dense weights a lane: that sum took a fifth of a step. Here
the second product adds itself to the first one's outcome.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class GradientSums:
    """Gradients of some weights, as far as they come from dense layers."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._shapes = {weight.data_ptr(): weight.shape for weight in weights}
        self._sums: dict[int, Tensor] = {}

    def takes(self, weight: Tensor) -> bool:
        """Not where all lanes share a weight: what a layer sees is then a view of other shape."""
        return self._shapes.get(weight.data_ptr()) == weight.shape

    def add(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """left · right. (l, e, n), (l, n, d)"""
        if (found := self._sums.get(weight.data_ptr())) is None:
            self._sums[weight.data_ptr()] = torch.bmm(left, right)
        else:
            found.baddbmm_(left, right)

    def with_others(self, weight: Tensor, gradient: Tensor | None) -> Tensor | None:
        """The whole gradient, given what autograd found elsewhere."""
        found = self._sums.get(weight.data_ptr())
        return gradient if found is None else found if gradient is None else found.add_(gradient)


_active: GradientSums | None = None  # not local to a thread: on a GPU autograd has threads of its own


@contextmanager
def gradient_sums(weights: Sequence[Tensor]) -> Iterator[GradientSums]:
    """Meanwhile backward passes leave the gradients of these weights in the sums, where they can."""
    global _active
    before, _active = _active, GradientSums(weights)
    try:
        yield _active
    finally:
        _active = before


class Dense(torch.autograd.Function):
    """W x + b. (l, d, n), (l, e, d), (l, e) → (l, e, n)"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.baddbmm(bias[:, :, None], weight, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        of_x = torch.bmm(weight.mT, gradient) if ctx.needs_input_grad[0] else None
        of_weight = None
        if _active is not None and _active.takes(weight):
            _active.add(weight, gradient, x.mT)
        else:
            of_weight = torch.bmm(gradient, x.mT)
        return of_x, of_weight, gradient.sum(dim=2)
