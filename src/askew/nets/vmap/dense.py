"""Dense layers of stacked lanes, and gradients of their weights that nobody writes down.

digits-32 has 31 million dense weights a lane, and a step does little else than read and write them.
The gradient of such a weight is a product of two small matrices, so a backward pass leaves the two,
and the optimiser multiplies them where it uses the outcome (`askew.nets.triton.update_kernel`): a
fifth to a quarter of what a step moves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Factors(NamedTuple):
    """A gradient left · right. (l, e, n), (l, n, d)"""

    left: Tensor
    right: Tensor

    def product(self) -> Tensor:
        return torch.bmm(self.left, self.right)

    def plus(self, left: Tensor, right: Tensor) -> Factors:
        """The sum with another."""
        return Factors(torch.cat([self.left, left], dim=2), torch.cat([self.right, right], dim=1))


Gradient = Tensor | Factors | None


class FactoredGradients:
    """Gradients of some weights, as far as they come from dense layers."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._shapes = {weight.data_ptr(): weight.shape for weight in weights}
        self._found: dict[int, Factors] = {}

    def takes(self, weight: Tensor) -> bool:
        """Not where all lanes share a weight: what a layer sees is then a view of other shape."""
        return self._shapes.get(weight.data_ptr()) == weight.shape

    def add(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """left · right, of one of several passes perhaps."""
        found = self._found.get(weight.data_ptr())
        self._found[weight.data_ptr()] = (
            Factors(left, right) if found is None else found.plus(left, right)
        )

    def with_others(self, weight: Tensor, gradient: Tensor | None) -> Gradient:
        """The whole gradient, given what autograd found elsewhere."""
        found = self._found.get(weight.data_ptr())
        return (
            gradient
            if found is None
            else found
            if gradient is None
            else found.product().add_(gradient)
        )


_active: FactoredGradients | None = (
    None  # not local to a thread: on a GPU autograd has threads of its own
)


@contextmanager
def factored_gradients(weights: Sequence[Tensor]) -> Iterator[FactoredGradients]:
    """Meanwhile backward passes leave factors of these weights' gradients, where they can."""
    global _active
    before, _active = _active, FactoredGradients(weights)
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
