"""Layers with weights of their own in every lane: how convolutions and the like are computed under
vmap.

A stacked activation (lanes, images, channels, …) lies in memory as (lanes, channels, images, …). So
a convolution is one batched product of weights and patches, whose outcome lies there in the same
order; a channel's batch statistics are over one stretch of memory, and all lanes' channels together
are the channels of one ordinary batch norm. What vmap makes of these layers by itself (a
convolution of many groups, transpositions around every layer) is slower. On a GPU with Triton,
askew.nets.lanes.kernels does without laying out any patches, and images lie there channels last.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from askew.nets.lanes import forms
from askew.nets.lanes.dense import Dense
from askew.nets.lanes.forms import NO_POOL, Pool, channels_then_images, convolved, normed
from askew.nets.lanes.trust import trusted_block, trusted_dropout, trusted_norm

__all__ = ["NO_POOL", "Pending", "Pool", "dense", "dropped", "norm_relu_pool"]

Dims = tuple[int | None, ...]


class _Stacked(torch.autograd.Function):
    """A function with a rule for vmap; lanes differentiate outside of vmap, so it needs no gradient
    of its own."""

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


@contextmanager
def _no_autocast(device: str) -> Iterator[bool]:
    """Layers choose for themselves what they round; whether bfloat16 was asked for."""
    asked = torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False):
        yield asked


class Pending(NamedTuple):
    """A convolution that the norm after it computes with itself: (n, cin, h, w), (cout, cin, k, k),
    (cout,) a lane."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    padding: int


class _ConvNormReluPool(_Stacked):
    @staticmethod
    def vmap(
        info: Any,
        dims: Dims,
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
    ) -> tuple[Tensor, int]:
        x, kernel, shift, weight, bias, mean, var = _lanes_first(
            info, dims[:7], x, kernel, shift, weight, bias, mean, var
        )
        x = channels_then_images(x)
        how = momentum, eps, pool, training
        with _no_autocast(x.device.type) as in_bfloat16:
            kept = torch.bfloat16 if in_bfloat16 else _kept()
            if trusted_block(x, kernel, padding, *how, kept):
                from askew.nets.lanes import kernels

                out: Tensor = kernels.ConvNormReluPool.apply(  # type: ignore[no-untyped-call]
                    x, kernel, shift, weight, bias, mean, var, padding, *how, kept
                )
            else:
                y = convolved(x.to(kernel.dtype), kernel, shift, padding)
                out = normed(y, weight, bias, mean, var, *how)
        return channels_then_images(out), 0


def _kept() -> torch.dtype:
    """As what kernels keep a block's images where bfloat16 is not asked for.

    With precision=tf32, float16: products round to a significand of that length anyway. With
    precision=float32, float32: convolutions round to TF32 as cuDNN's do, unless that is turned off,
    and nothing else rounds.
    """
    rounds = torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() != "highest"
    return torch.float16 if rounds else torch.float32


class _Dense(_Stacked):
    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = _lanes_first(info, dims, x, weight, bias)
        with _no_autocast(
            x.device.type
        ):  # to copy the weights takes longer than a faster product saves
            rows = channels_then_images(x.to(weight.dtype))
            out: Tensor = Dense.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
        return channels_then_images(out), 0


class _Dropped(_Stacked):
    @staticmethod
    def vmap(
        info: Any, dims: Dims, x: Tensor, keys: Tensor, stream: int, p: float
    ) -> tuple[Tensor, int]:
        x, keys = _lanes_first(info, dims[:2], x, keys)
        if trusted_dropout(x, p):
            from askew.nets.lanes.dropout_kernel import Dropped

            out: Tensor = Dropped.apply(x, keys, stream, p)  # type: ignore[no-untyped-call]
            return out, 0
        return forms.dropped(x, keys, stream, p), 0


class _NormReluPool(_Stacked):
    @staticmethod
    def vmap(
        info: Any,
        dims: Dims,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        var: Tensor,
        momentum: float,
        eps: float,
        pool: Pool,
        training: bool,
    ) -> tuple[Tensor, int]:
        x, weight, bias, mean, var = _lanes_first(info, dims[:5], x, weight, bias, mean, var)
        x = channels_then_images(x)
        rows = x.dim() == 3
        if rows:
            x = x[..., None, None]
        x = x.to(weight.dtype)
        if trusted_norm(x, weight, momentum, eps, pool, training):
            from askew.nets.lanes import kernels

            out: Tensor = kernels.NormReluPool.apply(  # type: ignore[no-untyped-call]
                x, weight, bias, mean, var, momentum, eps, pool, training
            )
        else:
            out = normed(x, weight, bias, mean, var, momentum, eps, pool, training)
        return channels_then_images(out[..., 0, 0] if rows else out), 0


def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b. (n, d), (e, d), (e,) → (n, e) a lane."""
    out: Tensor = _Dense.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out


def dropped(x: Tensor, key: Tensor, stream: int, p: float) -> Tensor:
    """Dropout by a hashed stream and a hashed step. (n, d), () → (n, d) a lane"""
    out: Tensor = _Dropped.apply(x, key, stream, p)  # type: ignore[no-untyped-call]
    return out


def norm_relu_pool(norm: _BatchNorm, x: Tensor | Pending, pool: Pool = NO_POOL) -> Tensor:
    """Batch norm, ReLU and max pool, of a convolution that waits for them too; running statistics
    change in place.

    (n, c) or (n, c, h, w) a lane
    """
    mean, var, batches, momentum = (
        norm.running_mean,
        norm.running_var,
        norm.num_batches_tracked,
        norm.momentum,
    )
    assert mean is not None
    assert var is not None
    assert batches is not None
    assert momentum is not None
    if norm.training:
        batches.add_(1)
    own, how = (norm.weight, norm.bias, mean, var), (momentum, norm.eps, pool, norm.training)
    out: Tensor
    if isinstance(x, Pending):
        conv = (x.x, x.weight, x.bias)
        out = _ConvNormReluPool.apply(*conv, *own, x.padding, *how)  # type: ignore[no-untyped-call]
    else:
        out = _NormReluPool.apply(x, *own, *how)  # type: ignore[no-untyped-call]
    return out
