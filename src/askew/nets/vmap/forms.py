"""Stacked layers by torch's own functions: what lanes use on a processor, and what kernels are held
to on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core import random

Pool = tuple[int, int, int]
"""Size, stride and padding of a max pool."""
NO_POOL: Pool = (1, 1, 0)
Form = Callable[..., Tensor]
"""A way to compute a layer of all lanes."""


def channels_then_images(x: Tensor) -> Tensor:
    """(lanes, n, c, …) → (lanes, c, n, …); costs nothing to undo and redo."""
    return x.transpose(1, 2)


def convolved(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """By the fastest of the forms below; docs/performance.md has the numbers."""
    lanes, _, cin, _, _ = weight.shape
    if (
        x.is_cuda and cin >= 16 and lanes % 8 == 0
    ):  # cuDNN is slow for other numbers of groups in TF32
        return grouped(x, weight, bias, padding)
    return (one_by_one if x.is_cuda and cin >= 64 else by_products)(x, weight, bias, padding)


def grouped(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """All lanes as the groups of one convolution."""
    lanes, cin, n, h, w = x.shape
    flat = x.permute(2, 0, 1, 3, 4).reshape(n, lanes * cin, h, w)
    out = F.conv2d(flat, weight.flatten(0, 1), bias.flatten(), padding=padding, groups=lanes)
    return out.view(n, lanes, -1, *out.shape[2:]).permute(1, 2, 0, 3, 4)


class _OneByOne(torch.autograd.Function):
    """A convolution a lane, with one copy of all lanes before them and none of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        x = channels_then_images(x).contiguous()
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return each(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dbias = g.sum(dim=(2, 3, 4))
        g = channels_then_images(g).contiguous()
        wanted = ctx.needs_input_grad[0]
        # Unless channels become more, cuDNN is faster at the gradient of the images when it is
        # asked for it as a convolution with the weights turned round.
        turn = wanted and weight.shape[1] <= weight.shape[2]
        how = (
            [1, 1],
            [ctx.padding] * 2,
            [1, 1],
            False,
            [0, 0],
            1,
            [wanted and not turn, True, False],
        )
        backward = torch.ops.aten.convolution_backward
        found = [backward(*lane, None, *how) for lane in zip(g, x, weight, strict=True)]
        dweight = torch.stack([own for _, own, _ in found])
        dx: Tensor | None = None
        if turn:
            turned = weight.flip(3, 4).transpose(1, 2).contiguous()
            dx = each(g, turned, g.new_zeros(turned.shape[:2]), weight.shape[-1] - 1 - ctx.padding)
        elif wanted:
            dx = torch.stack([own.transpose(0, 1) for own, _, _ in found])
        return dx, dweight, dbias, None


def each(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """(lanes, n, cin, h, w), (lanes, cout, cin, k, k), (lanes, cout) → (lanes, cout, n, h', w')"""
    lanes, n, _, *side = x.shape
    grown = 2 * padding + 1 - weight.shape[-1]
    out = x.new_empty(lanes, weight.shape[1], n, *(pixels + grown for pixels in side))
    for place, images, kernel, shift in zip(out, x, weight, bias, strict=True):
        values = F.conv2d(images, kernel, padding=padding)
        torch.add(values.transpose(0, 1), shift[:, None, None, None], out=place)
    return out


def one_by_one(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """A convolution a lane: large ones fill a GPU by themselves."""
    out: Tensor = _OneByOne.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return out


def by_products(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """One product of weights and patches a lane, all in one."""
    lanes, cout, _, k, _ = weight.shape
    patches = (
        F.pad(x, (padding,) * 4).unfold(3, k, 1).unfold(4, k, 1)
    )  # (lanes, cin, n, h', w', k, k)
    n, *side = patches.shape[2:5]
    columns = patches.permute(0, 1, 5, 6, 2, 3, 4).reshape(lanes, -1, n * side[0] * side[1])
    return torch.baddbmm(bias[:, :, None], weight.flatten(2), columns).view(lanes, cout, n, *side)


def normed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: float,
    eps: float,
    pool: Pool,
    training: bool,
) -> Tensor:
    """(lanes, c, n, h, w) and (lanes, c) → (lanes, c, n, h', w')"""
    out = F.relu(
        F.batch_norm(
            x.reshape(1, weight.numel(), -1, 1),
            mean.view(-1),
            var.view(-1),
            weight.flatten(),
            bias.flatten(),
            training,
            momentum,
            eps,
        )
    )
    out = F.max_pool2d(out.view(x.shape).flatten(0, 1), *pool)
    return out.view(*x.shape[:3], *out.shape[2:])


def dropped(x: Tensor, keys: Tensor, stream: int, p: float) -> Tensor:
    """(lanes, n, d), (lanes,) → (lanes, n, d)"""
    places = torch.arange(x[0].numel(), device=x.device).view(x.shape[1:])
    keep = random.keep_mask(random.hash64(stream, places), keys[:, None, None], p)
    return torch.where(keep, x, 0) / (1 - p)
