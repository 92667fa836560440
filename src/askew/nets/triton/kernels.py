"""Stacked layers by Triton kernels on a GPU: a convolution with the norm, ReLU and pool after it,
and a norm alone.

`lanes.forms` computes the same with torch's own functions, and is what these are tested against: by
the tests, and once per shape on the machine they run on (`lanes.trust`).

Between its kernels a block keeps images and gradients in `kept`: float32, bfloat16, or float16,
whose significand is as long as TF32's, so that what TF32 multiplies loses nothing there. Gradients
in float16 have a unit, a power of two, in every lane and step, so that none is too small or too
large.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.nets.triton import conv_kernels, deep_kernels
from askew.nets.triton.planes import Plane, merged, norm_gradient, norm_relu_pool, statistics
from askew.nets.vmap.forms import Pool, each


class NormReluPool(torch.autograd.Function):
    """max pool (size, stride, padding) of the ReLU of a batch norm in training; running statistics
    change in place.

    (lanes, c, n, h, w), four of (lanes, c) → (lanes, c, n, h', w'), in memory channels first or
    last, as it was.
    """

    @staticmethod
    def forward(
        ctx: Any,
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
        weight, bias = weight.contiguous(), bias.contiguous()
        lanes, c, n, h, w = x.shape
        plane = Plane(lanes, c, n, h, w, last=_last(x).is_contiguous())
        x = _last(x) if plane.last else x.contiguous()
        if training:
            own, rstd = merged(*statistics(x, plane), plane, None, mean, var, momentum, eps)
        else:
            own, rstd = mean.contiguous(), (var + eps).rsqrt().contiguous()
        out, *rest = norm_relu_pool(x, plane, own, rstd, weight, bias, pool, x.dtype)
        ctx.save_for_backward(x, weight, own, rstd, *rest)
        ctx.pool, ctx.plane = pool, plane
        return _first(out) if plane.last else out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd, where, picked = ctx.saved_tensors
        last = ctx.plane.last
        g = (_last(g) if last else g).contiguous()
        dx, dweight, dbias, unit = norm_gradient(
            g, x, ctx.plane, mean, rstd, weight, where, picked, ctx.pool
        )
        dx = _whole(dx, unit)
        return _first(dx) if last else dx, dweight, dbias, *[None] * 6


class Conv(torch.autograd.Function):
    """(lanes, cin, n, h, w), (lanes, cout, cin, k, k) → (lanes, cout, n, h', w'), a convolution as
    blocks have it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, padding: int, kept: torch.dtype) -> Tensor:
        x, y, _, _ = _convolved(x, kernel, padding, kept)
        ctx.save_for_backward(x, kernel)
        ctx.padding, ctx.kept = padding, kept
        return _first(y).float()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        unit = torch.ones(len(x), device=x.device)
        g = _last(g).to(ctx.kept).contiguous()
        return *_gradients(g, unit, x, kernel, ctx.padding, ctx.needs_input_grad[0]), None, None


class ConvNormReluPool(torch.autograd.Function):
    """Both: (lanes, cin, n, h, w), (lanes, cout, cin, k, k), five of (lanes, cout) → (lanes, cout,
    n, h', w').

    What comes out lies in memory channels last, as float32 where float16 is kept: a gradient from
    outside has no unit.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kernel: Tensor,
        shift: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        padding: int,
        momentum: float,
        eps: float,
        pool: Pool,
        training: bool,
        kept: torch.dtype,
    ) -> Tensor:
        kernel, shift, weight, bias = (
            value.contiguous() for value in (kernel, shift, weight, bias)
        )
        x, y, parts, part = _convolved(x, kernel, padding, kept)
        lanes, n, h, w, cout = y.shape
        plane = Plane(lanes, cout, n, h, w, last=True)
        if training:
            own, rstd = merged(parts, part, plane, shift, mean, var, momentum, eps)
        else:
            own, rstd = (mean - shift).contiguous(), (var + eps).rsqrt().contiguous()
        out, *rest = norm_relu_pool(y, plane, own, rstd, weight, bias, pool, _outside(kept))
        ctx.save_for_backward(x, kernel, y, weight, own, rstd, *rest)
        ctx.pool, ctx.plane, ctx.padding = pool, plane, padding
        return _first(out)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, y, weight, mean, rstd, where, picked = ctx.saved_tensors
        g = _last(g).contiguous()
        g, dweight, dbias, unit = norm_gradient(
            g, y, ctx.plane, mean, rstd, weight, where, picked, ctx.pool
        )
        dx, dkernel = _gradients(g, unit, x, kernel, ctx.padding, ctx.needs_input_grad[0])
        # the norm takes a convolution's bias away again, so that it has no gradient
        return dx, dkernel, torch.zeros_like(weight), dweight, dbias, *[None] * 8


def _last(x: Tensor) -> Tensor:
    """(lanes, c, n, h, w) → (lanes, n, h, w, c)"""
    return x.permute(0, 2, 3, 4, 1)


def _first(x: Tensor) -> Tensor:
    """And back."""
    return x.permute(0, 4, 1, 2, 3)


def _whole(g: Tensor, unit: Tensor) -> Tensor:
    """A gradient without a unit."""
    return g.float() * unit.view(-1, *[1] * (g.dim() - 1)) if g.dtype == torch.float16 else g


def _outside(kept: torch.dtype) -> torch.dtype:
    return torch.float32 if kept == torch.float16 else kept


def _is_deep(kernel: Tensor) -> bool:
    """Whether a convolution (lanes, cout, cin, k, k) has channels enough for products of them."""
    return kernel.shape[1] % 16 == 0 and kernel.shape[2] % 16 == 0


def _convolved(
    x: Tensor, kernel: Tensor, padding: int, kept: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, int]:
    """The images as they were convolved, the outcome, statistics of its blocks, and how many pixels
    a block has."""
    if not _is_deep(kernel):
        x = F.pad(
            x.to(kept), (padding,) * 4
        )  # a copy of few channels, and no pixel has to be asked for
        return x, *conv_kernels.convolved(x, kernel, kept)
    cout, cin = kernel.shape[1:3]
    x = _last(x).to(kept).contiguous()
    tile = deep_kernels.tile("forward", cin, cout, kept)
    y, parts = deep_kernels.convolved(
        x, deep_kernels.arranged(kernel, 3, 4, 1, 2, dtype=kept), padding, tile, kept
    )
    return x, y, parts, tile.pixels


def _gradients(
    g: Tensor, unit: Tensor, x: Tensor, kernel: Tensor, padding: int, wanted: bool
) -> tuple[Tensor | None, Tensor]:
    """Of images, if wanted, and kernel; g is (lanes, n, h', w', cout) in units of (lanes,)."""
    dx: Tensor | None = None
    cout, cin, k = kernel.shape[1:4]
    room = (
        k - 1 - padding
    )  # of the images, a convolution of the gradient with the weights turned round
    if not _is_deep(kernel):
        # Data has no gradient, so this is rare; such a kernel takes a minute to compile.
        if wanted:
            turned = kernel.flip(3, 4).transpose(1, 2).contiguous()
            images = _whole(g, unit).to(kernel.dtype).permute(0, 1, 4, 2, 3).contiguous()
            dx = each(images, turned, kernel.new_zeros(turned.shape[:2]), room)
        return dx, conv_kernels.weighed(x, g, unit, k)
    sums = deep_kernels.weighed(
        x, g, unit, k, padding, deep_kernels.tile("weights", cin, cout, g.dtype)
    )
    dkernel = torch.empty_like(kernel)
    torch.sum(
        sums.transpose(3, 4), dim=0, out=dkernel.flatten(3)
    )  # the order of the weights in the same pass
    if wanted:
        turned = deep_kernels.arranged(kernel.flip(3, 4), 3, 4, 2, 1, dtype=g.dtype)
        tile = deep_kernels.tile("images", cout, cin, g.dtype)
        dx = _first(deep_kernels.convolved(g, turned, room, tile, _outside(g.dtype), unit)[0])
    return dx, dkernel
