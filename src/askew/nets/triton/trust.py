"""Kernels are tried before they are trusted: compared with torch's own layers, once per shape on
the machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core import random
from askew.nets.vmap.forms import Form, Pool, dropped, normed, one_by_one

TOLERATED = 0.02
"""How far a kernel may be from torch, as a share of the outcome: products in TF32 are 0.001 apart,
wrong code 0.1."""
Shape = tuple[int, ...]

_NO_GRADIENT = "block", "random draw", "picture view", "step along a product"


class WrongKernelWarning(UserWarning):
    """A kernel cannot be compiled here, or computes something else than torch does, and is not
    used."""


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled at all."""
    return find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can be given these: not under vmap, which knows torch's own functions
    alone."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return has_triton() and all(x.is_cuda and not wrapped(x) for x in tensors)


def _with_pool(x: Tensor, weight: Tensor, pool: Pool) -> bool:
    """Whether kernels end in this pool: its pixels are in two windows along an axis at most."""
    size, stride, padding = pool
    known = size <= stride + padding and padding <= stride
    return known and weight.dtype == torch.float32 and usable(x)


def _few(images: int) -> int:
    """Enough to try with: code is compiled for multiples of 16, and for other numbers."""
    return images if images <= 64 else 64 + images % 16


def trusted_norm(
    x: Tensor, weight: Tensor, momentum: float, eps: float, pool: Pool, training: bool
) -> bool:
    """Whether the kernel of a norm may be used for (lanes, c, n, h, w)."""
    if not _with_pool(x, weight, pool) or x.dtype != torch.float32:
        return False
    lanes, c, n, *side = x.shape
    shapes = (lanes, c, _few(n), *side), weight.shape, weight.shape
    return tried("norm", shapes, (momentum, eps, pool, training, x.dtype, False), x.device)


def trusted_block(
    x: Tensor,
    kernel: Tensor,
    padding: int,
    momentum: float,
    eps: float,
    pool: Pool,
    training: bool,
    kept: torch.dtype,
) -> bool:
    """Whether those of a convolution with its norm may be used for (lanes, cin, n, h, w).

    Value and gradient of either are compared by themselves, and the value of both: a pool that is
    undecided takes rounding for an answer, so that the gradient of both says little.
    """
    if not _with_pool(x, kernel, pool):
        return False
    lanes, cin, n, *side = x.shape
    cout, k = kernel.shape[1], kernel.shape[3]
    few, row = _few(n), (lanes, cout)
    images, outcome = (
        (lanes, cin, few, *side),
        (lanes, cout, few, *(s + 2 * padding - k + 1 for s in side)),
    )
    how = momentum, eps, pool, training
    return (
        tried("convolution", (images, kernel.shape), (padding, kept), x.device)
        and tried("norm", (outcome, row, row), (*how, kept, True), x.device)
        and tried("block", (images, kernel.shape, row, row, row), (padding, *how, kept), x.device)
    )


def trusted_dropout(x: Tensor, p: float) -> bool:
    """Whether the kernel of a dropout may be used for (lanes, n, d)."""
    if not usable(x) or x.dtype != torch.float32:
        return False
    lanes, n, d = x.shape
    return tried("dropout", ((lanes, _few(n), d),), (p, x.mT.is_contiguous()), x.device)


def trusted_update(weight: Tensor, left: Tensor, slots: int, averaged: bool) -> bool:
    """Whether the kernel that steps along a product may be used for weights (lanes, e, d) and
    factors (lanes, e, n)."""
    rounds = torch.get_float32_matmul_precision() != "highest"  # TF32 is what makes it fast
    if not usable(weight) or not rounds or weight.dtype != torch.float32:
        return False
    (_, e, d), n = weight.shape, left.shape[2]
    return tried(
        "step along a product", ((2, e, d), (2, e, n), (2, n, d)), (slots, averaged), weight.device
    )


@cache
def tried(
    layer: str, shapes: tuple[Shape, ...], options: tuple[object, ...], device: torch.device
) -> bool:
    """Whether the kernel of a layer says what torch says, on random tensors of these shapes."""
    from askew.nets.triton import kernels, picture_kernel, pictures
    from askew.nets.triton.draw_kernel import draw
    from askew.nets.triton.dropout_kernel import Dropped
    from askew.nets.triton.kept_norm_kernel import KeptNorm
    from askew.nets.triton.update_kernel import update

    forms: dict[str, tuple[Form, Form]] = {
        "convolution": (kernels.Conv.apply, _convolution),
        "norm": (_norm_by(kernels.NormReluPool.apply), _norm_by(normed)),
        "block": (_block_by(kernels.ConvNormReluPool.apply), _block_by(_block)),
        "norm by kept statistics": (
            _by_kept_statistics(KeptNorm.apply),
            _by_kept_statistics(_kept_norm),
        ),
        "random draw": (_draw_by(draw), _draw_by(_draw)),
        "picture view": (
            _picture_by(picture_kernel.picture_view),
            _picture_by(pictures.picture_view),
        ),
        "dropout": (_dropout_by(Dropped.apply), _dropout_by(dropped)),
        "step along a product": (_step_by(update), _step_by(_update)),
    }
    trains = bool(options[3]) if layer == "norm" else layer not in _NO_GRADIENT
    try:
        apart = distance(*forms[layer], shapes, options, device, gradients=trains)
    except _triton_errors() as error:  # a GPU with less shared memory, or without bfloat16
        wrong = f"does not run ({type(error).__name__})"
    else:
        if apart < TOLERATED:
            return True
        wrong = f"is {100 * apart:.0f} % off"
    message = (
        f"The kernel of a {layer} of {shapes[0]} {wrong} on this machine; torch's own is used."
    )
    warnings.warn(message, WrongKernelWarning, stacklevel=2)
    return False


def _triton_errors() -> tuple[type[Exception], ...]:
    if not has_triton():
        return ()
    from triton.errors import TritonError

    return (TritonError,)


def _convolution(x: Tensor, kernel: Tensor, padding: int, kept: torch.dtype) -> Tensor:
    return one_by_one(x, kernel, kernel.new_zeros(kernel.shape[:2]), padding)


def _statistics(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Running statistics that nobody looks at."""
    return torch.zeros_like(weight), torch.ones_like(weight)


def _norm_by(norm: Form) -> Form:
    def form(
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        momentum: float,
        eps: float,
        pool: Pool,
        training: bool,
        kept: torch.dtype,
        last: bool,
    ) -> Tensor:
        """Of images that lie in memory as they will come, rounded as they will be."""
        if last:
            x = x.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)
        x = x.to(kept)
        if norm is normed:
            x = x.float()
        return norm(x, weight, bias, *_statistics(weight), momentum, eps, pool, training).float()

    return form


def _by_kept_statistics(norm: Form) -> Form:
    def form(x: Tensor, weight: Tensor, bias: Tensor, eps: float, kept: torch.dtype) -> Tensor:
        """By statistics that are not those of x; the kernel takes images as they will come."""
        mean, var = bias.detach() / 2, weight.detach().square() + 0.5
        if norm is not _kept_norm:
            x = x.to(kept, memory_format=torch.channels_last)
        return norm(x, weight, bias, mean, var, eps).float()

    return form


def _kept_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)


def _draw_by(draw: Form) -> Form:
    return lambda x, kind, shape: draw(kind, (x * 2**60).long(), "tried", shape).double()


def _draw(kind: str, keys: Tensor, stream: str, shape: Shape) -> Tensor:
    return random.DRAWS[kind](keys, stream, *shape)


def _picture_by(view: Form) -> Form:
    def form(
        x: Tensor, crops: Tensor, styles: Tensor, kept: torch.dtype, style: float, side: int
    ) -> Tensor:
        """Of pixels in 0 … 255, by uniform numbers."""
        crops, styles = torch.special.ndtr(crops), torch.special.ndtr(styles)
        return view(
            (128 + 64 * x).clamp(0, 255).to(kept),
            crops,
            styles if style else None,
            0.9,
            0.3,
            style,
            side,
        )

    return form


def _dropout_by(dropout: Form) -> Form:
    def form(x: Tensor, p: float, first: bool) -> Tensor:
        """Of rows that lie in memory as they will come."""
        keys = random.hash64(1, torch.arange(len(x), device=x.device))
        return dropout(x.mT.contiguous().mT if first else x, keys, random.stream_key("tried"), p)

    return form


def _step_by(update: Callable[..., None]) -> Form:
    def form(weight: Tensor, left: Tensor, right: Tensor, count: int, averaged: bool) -> Tensor:
        """How far the weights move, what the slots become, which have been used before, and perhaps
        the average."""
        slots = [weight.flip(0).square() * left.shape[2] for _ in range(count)]
        after, average = weight.clone(), torch.zeros_like(weight) if averaged else None
        numbers = torch.tensor([0.1, 0.5, 0.4], device=weight.device)
        for variant in (False, True):
            update(
                after,
                slots,
                average,
                left,
                right,
                numbers,
                numbers[2],
                0.9,
                0.01,
                variant,
                0.999,
                1e-8,
            )
        found = [after - weight, *slots, *([] if average is None else [average])]
        return torch.cat([value.flatten() for value in found])

    return form


def _update(
    weight: Tensor,
    slots: Sequence[Tensor],
    average: Tensor | None,
    left: Tensor,
    right: Tensor,
    numbers: Tensor,
    share: Tensor,
    beta1: float,
    decay: float,
    variant: bool,
    beta2: float,
    eps: float,
) -> None:
    """By the formulas of SGD (one slot) and Adam (two)."""
    g, (rate, first, second) = torch.bmm(left, right), numbers
    apart = variant and len(slots) == 2
    weight.mul_(1 - rate * decay if apart else 1)
    g = g if apart else g + decay * weight
    if len(slots) == 2:
        slots[0].lerp_(g, 1 - beta1)
        slots[1].lerp_(g.square(), 1 - beta2)
        weight.sub_(rate / first * slots[0] / ((slots[1] / second).sqrt() + eps))
    else:
        slots[0].mul_(beta1).add_(g)
        weight.sub_(rate * (g + beta1 * slots[0] if variant else slots[0]))
    if average is not None:
        average.lerp_(weight, share)


def _block_by(block: Form) -> Form:
    return lambda x, kernel, shift, weight, bias, *options: block(
        x, kernel, shift, weight, bias, *_statistics(weight), *options
    ).float()


def _block(
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
    return normed(
        one_by_one(x, kernel, shift, padding),
        weight,
        bias,
        mean,
        var,
        momentum,
        eps,
        pool,
        training,
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
    """How far two forms are apart for tensors of these shapes, as a share of the outcome or, if
    more, of a gradient."""
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
        found.append(
            [out.detach(), *(torch.autograd.grad(out, inputs, weigh) if gradients else ())]
        )
    return max(float((b - a).norm() / a.norm()) for a, b in zip(*found, strict=True))
