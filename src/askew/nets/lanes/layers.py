"""Layers with weights of their own in every lane: how convolutions and the like are computed under vmap.

A stacked activation (lanes, images, channels, …) lies in memory as (lanes, channels, images, …). So a convolution is
one batched product of weights and patches, whose outcome lies there in the same order; a channel's batch statistics
are over one stretch of memory, and all lanes' channels together are the channels of one ordinary batch norm. What vmap
makes of these layers by itself (a convolution of many groups, transpositions around every layer) is slower. On a GPU
with Triton, askew.nets.lanes.kernels does without laying out any patches.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Dims = tuple[int | None, ...]
Pool = tuple[int, int, int]
"""Size, stride and padding of a max pool."""
NO_POOL: Pool = (1, 1, 0)
Form = Callable[..., Tensor]
"""A way to compute a layer of all lanes."""
TOLERATED = 0.02
"""How far a kernel may be from torch, as a share of the outcome: products in TF32 are 0.001 apart, wrong code 0.1."""


class WrongKernelWarning(UserWarning):
    """A kernel that was compiled here computes something else than torch does, and is not used."""


class _Stacked(torch.autograd.Function):
    """A function with a rule for vmap; lanes differentiate outside of vmap, so it needs no gradient of its own."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        raise AssertionError("a stacked layer works under vmap only")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise AssertionError("a stacked layer is differentiated outside of vmap")


def _lanes_first(info: Any, dims: Dims, *values: Tensor) -> list[Tensor]:
    """Every value with its lanes first; a value that all lanes share is seen by all."""
    return [
        v.expand(info.batch_size, *v.shape) if d is None else v.movedim(d, 0)
        for v, d in zip(values, dims, strict=False)
    ]


def _channels_then_images(x: Tensor) -> Tensor:
    """(lanes, n, c, …) → (lanes, c, n, …); costs nothing to undo and redo."""
    return x.transpose(1, 2)


@contextmanager
def _no_autocast(device: str) -> Iterator[bool]:
    """Layers choose for themselves what they round; whether bfloat16 was asked for."""
    asked = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False):
        yield asked


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _by_kernels(layer: str, tensors: Sequence[Tensor], *options: object) -> bool:
    """Whether askew.nets.lanes.kernels can do it: they know float32 on a GPU, and are tried before they are trusted."""
    x = tensors[0]
    if not x.is_cuda or x.dtype != torch.float32 or not _has_triton():
        return False
    lanes, channels, n, *side = x.shape
    few = n if n <= 64 else 64 + n % 16  # code is compiled for multiples of 16, and for other numbers
    shapes = (lanes, channels, few, *side), *(value.shape for value in tensors[1:])
    return _tried(layer, shapes, options, x.device)


@cache
def _tried(layer: str, shapes: tuple[tuple[int, ...], ...], options: tuple[object, ...], device: torch.device) -> bool:
    from askew.nets.lanes import kernels

    forms: dict[str, tuple[Form, Form]] = {
        "convolution": (kernels.Conv.apply, one_by_one),
        "norm": (_with_own_statistics(kernels.NormReluPool.apply), _with_own_statistics(normed)),
    }
    trains = layer == "convolution" or bool(options[-1])
    apart = distance(*forms[layer], shapes, options, device, gradients=trains)
    if apart < TOLERATED:
        return True
    message = f"The kernel of a {layer} of {shapes[0]} is {100 * apart:.0f} % off on this machine; torch's own is used."
    warnings.warn(message, WrongKernelWarning, stacklevel=2)
    return False


def _with_own_statistics(norm: Form) -> Form:
    """A norm whose running statistics nobody looks at."""
    return lambda x, weight, bias, *options: norm(
        x, weight, bias, torch.zeros_like(weight), torch.ones_like(weight), *options
    )


def distance(
    form: Form,
    reference: Form,
    shapes: Sequence[tuple[int, ...]],
    options: Sequence[object],
    device: torch.device,
    *,
    gradients: bool = True,
) -> float:
    """How far two forms are apart for tensors of these shapes, as a share of the outcome or, if more, of a gradient."""
    chance = torch.Generator(device).manual_seed(0)
    tensors = [torch.randn(shape, generator=chance, device=device) for shape in shapes]
    found: list[list[Tensor]] = []
    weigh: Tensor | None = None
    for way in (reference, form):
        with torch.set_grad_enabled(gradients):
            inputs = [value.clone().requires_grad_(gradients) for value in tensors]
            out = way(*inputs, *options)
        if weigh is None:
            weigh = torch.randn(out.shape, generator=chance, device=device)
        found.append([out.detach(), *(torch.autograd.grad(out, inputs, weigh) if gradients else ())])
    return max(float((b - a).norm() / a.norm()) for a, b in zip(*found, strict=True))


class _Conv(_Stacked):
    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> tuple[Tensor, int]:
        x, weight, bias = _lanes_first(info, dims[:3], x, weight, bias)
        x = _channels_then_images(x.to(weight.dtype))
        with _no_autocast(x.device.type) as in_bfloat16:
            out = _fastest(x, weight, bias, padding, in_bfloat16)(x, weight, bias, padding)
        return _channels_then_images(out), 0


def _fastest(x: Tensor, weight: Tensor, bias: Tensor, padding: int, in_bfloat16: bool) -> Form:
    """The fastest form as measured on an H200 (benchmarks/speed/lane_conv.py; docs/performance.md has the numbers)."""
    lanes, _, cin, _, _ = weight.shape
    if in_bfloat16 and x.is_cuda and cin >= 16 and x.shape[2] >= 64:  # for 32 images cuDNN is slow in bfloat16
        return grouped_in_bfloat16
    if x.is_cuda and cin >= 16 and lanes % 8 == 0:  # cuDNN is slow for other numbers of groups in TF32
        return grouped
    if x.is_cuda and cin >= 64:
        return one_by_one
    if _by_kernels("convolution", (x, weight, bias), padding):
        from askew.nets.lanes import kernels

        return kernels.Conv.apply
    return by_products


def grouped(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """All lanes as the groups of one convolution."""
    lanes, cin, n, h, w = x.shape
    flat = x.permute(2, 0, 1, 3, 4).reshape(n, lanes * cin, h, w)
    out = F.conv2d(flat, weight.flatten(0, 1), bias.flatten(), padding=padding, groups=lanes)
    return out.view(n, lanes, -1, *out.shape[2:]).permute(1, 2, 0, 3, 4)


def grouped_in_bfloat16(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """The same in bfloat16, between activations in float32."""
    return grouped(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), padding).float()


class _OneByOne(torch.autograd.Function):
    """A convolution a lane, with one copy of all lanes before them and none of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        x = _channels_then_images(x).contiguous()
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return _convolved(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dbias = g.sum(dim=(2, 3, 4))
        g = _channels_then_images(g).contiguous()
        wanted = ctx.needs_input_grad[0]
        # Unless channels become more, cuDNN is faster at the gradient of the images when it is asked for it as a
        # convolution with the weights turned round.
        turn = wanted and weight.shape[1] <= weight.shape[2]
        how = [1, 1], [ctx.padding] * 2, [1, 1], False, [0, 0], 1, [wanted and not turn, True, False]
        backward = torch.ops.aten.convolution_backward
        found = [backward(*lane, None, *how) for lane in zip(g, x, weight, strict=True)]
        dweight = torch.stack([own for _, own, _ in found])
        dx: Tensor | None = None
        if turn:
            turned = weight.flip(3, 4).transpose(1, 2).contiguous()
            dx = _convolved(g, turned, g.new_zeros(turned.shape[:2]), weight.shape[-1] - 1 - ctx.padding)
        elif wanted:
            dx = torch.stack([own.transpose(0, 1) for own, _, _ in found])
        return dx, dweight, dbias, None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
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
    patches = F.pad(x, (padding,) * 4).unfold(3, k, 1).unfold(4, k, 1)  # (lanes, cin, n, h', w', k, k)
    n, *side = patches.shape[2:5]
    columns = patches.permute(0, 1, 5, 6, 2, 3, 4).reshape(lanes, -1, n * side[0] * side[1])
    return torch.baddbmm(bias[:, :, None], weight.flatten(2), columns).view(lanes, cout, n, *side)


class _Dense(_Stacked):
    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = _lanes_first(info, dims, x, weight, bias)
        with _no_autocast(x.device.type):  # to copy the weights takes longer than a faster product saves
            # In this order the gradient of the weights comes out as they lie in memory.
            out = torch.baddbmm(bias[:, :, None], weight, _channels_then_images(x.to(weight.dtype)))
        return _channels_then_images(out), 0


class _NormReluPool(_Stacked):
    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
        momentum: float, eps: float, pool: Pool, training: bool,
    ) -> tuple[Tensor, int]:  # fmt: skip
        x, weight, bias, mean, var = _lanes_first(info, dims[:5], x, weight, bias, mean, var)
        x = _channels_then_images(x.to(weight.dtype))
        rows = x.dim() == 3
        if rows:
            x = x[..., None, None]
        if _by_kernels("norm", (x, weight, bias), momentum, eps, pool, training):
            from askew.nets.lanes import kernels

            out: Tensor = kernels.NormReluPool.apply(  # type: ignore[no-untyped-call]
                x, weight, bias, mean, var, momentum, eps, pool, training
            )
        else:
            out = normed(x, weight, bias, mean, var, momentum, eps, pool, training)
        return _channels_then_images(out[..., 0, 0] if rows else out), 0


def normed(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
    momentum: float, eps: float, pool: Pool, training: bool,
) -> Tensor:  # fmt: skip
    """(lanes, c, n, h, w) and (lanes, c) → (lanes, c, n, h', w')"""
    out = F.relu(
        F.batch_norm(
            x.reshape(1, weight.numel(), -1, 1), mean.view(-1), var.view(-1), weight.flatten(), bias.flatten(),
            training, momentum, eps,
        )
    )  # fmt: skip
    out = F.max_pool2d(out.view(x.shape).flatten(0, 1), *pool)
    return out.view(*x.shape[:3], *out.shape[2:])


def conv2d(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """A convolution of stride one. (n, cin, h, w), (cout, cin, k, k), (cout,) → (n, cout, h', w') a lane."""
    out: Tensor = _Conv.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return out


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b. (n, d), (e, d), (e,) → (n, e) a lane."""
    out: Tensor = _Dense.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def norm_relu_pool(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor,
    momentum: float, eps: float, pool: Pool, training: bool,
) -> Tensor:  # fmt: skip
    """Batch norm, ReLU and max pool; running statistics change in place. (n, c) or (n, c, h, w) a lane."""
    out: Tensor = _NormReluPool.apply(x, weight, bias, mean, var, momentum, eps, pool, training)  # type: ignore[no-untyped-call]
    return out
