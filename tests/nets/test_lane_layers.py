"""Layers in lanes compute what each lane's layer computes by itself: value, gradient and running
statistics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

import askew.nets
from askew.nets.layers import Conv, Linear, NormRelu1d, NormReluPool2d
from askew.nets.triton import trust
from askew.nets.triton.trust import TOLERATED, WrongKernelWarning, distance
from askew.nets.vmap.dense import Factors, factored_gradients
from askew.nets.vmap.forms import by_products, grouped, one_by_one
from askew.training.loop import gradients

LANES, N = 3, 4
IMAGES, ROWS = (2, 9, 9), (5,)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolution and norm": (lambda: nn.Sequential(Conv(2, 3, 5), NormReluPool2d(3)), IMAGES),
    "padded convolution, norm and pool": (
        lambda: nn.Sequential(Conv(2, 3, 5, padding=2), NormReluPool2d(3, (3, 2, 1))),
        IMAGES,
    ),
    "linear": (lambda: Linear(5, 3), ROWS),
    "norm of images": (lambda: NormReluPool2d(2), IMAGES),
    "norm and pool": (lambda: NormReluPool2d(2, (2, 2, 0)), IMAGES),
    "norm and overlapping pool": (lambda: NormReluPool2d(2, (3, 2, 1)), IMAGES),
    "norm of rows": (lambda: NormRelu1d(5), ROWS),
}
Tensors = dict[str, Tensor]


def told(layer: nn.Module) -> nn.Module:
    """A layer that knows it is in lanes."""
    for module in layer.modules():
        if hasattr(module, "in_lanes"):
            module.in_lanes = True
    return layer


def stacked(layers: list[nn.Module]) -> tuple[Tensors, Tensors]:
    params = {
        n: torch.stack(
            [dict(own.named_parameters())[n].detach() for own in layers]
        ).requires_grad_()
        for n, _ in layers[0].named_parameters()
    }
    buffers = {
        n: torch.stack([dict(own.named_buffers())[n] for own in layers])
        for n, _ in layers[0].named_buffers()
    }
    return params, buffers


@pytest.mark.parametrize("shared", [False, True], ids=["own images", "shared images"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_lanes_is_the_layer_of_each_lane(
    name: str, training: bool, shared: bool
) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    layers = [make().double().train(training) for _ in range(LANES)]
    for layer in layers:
        for value in layer.parameters():
            nn.init.normal_(value)
    x = torch.randn(
        *(() if shared else (LANES,)), N, *shape, dtype=torch.float64, requires_grad=True
    )
    params, buffers = stacked(layers)
    one = told(make().double().train(training))
    out = vmap(
        lambda p, b, x: functional_call(one, (p, b), (x,)), in_dims=(0, 0, None if shared else 0)
    )(params, buffers, x)
    weigh = torch.randn_like(out)
    grads = torch.autograd.grad((out * weigh).sum(), [x, *params.values()])
    alone = [layer(x if shared else x[i]) for i, layer in enumerate(layers)]
    own = [p for layer in layers for p in layer.parameters()]
    wanted = torch.autograd.grad(
        sum(((a * w).sum() for a, w in zip(alone, weigh, strict=True))), [x, *own]
    )
    torch.testing.assert_close(out, torch.stack(alone))
    torch.testing.assert_close(grads[0], wanted[0])
    for i, value in enumerate(grads[1:]):
        torch.testing.assert_close(value, torch.stack(wanted[1 + i :: len(params)]))
    for n, value in buffers.items():
        torch.testing.assert_close(
            value, torch.stack([dict(layer.named_buffers())[n] for layer in layers])
        )


def test_dense_layers_in_lanes_do_not_round_to_bfloat16() -> None:
    """To copy a dense layer's weights takes longer than its product saves."""
    dense = told(Linear(5, 3))
    params, _ = stacked([Linear(5, 3) for _ in range(LANES)])
    x = torch.randn(LANES, N, 5)
    together = vmap(lambda p, x: functional_call(dense, (p,), (x,)))
    wanted = together(params, x)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(together(params, x), wanted)


def test_gradients_of_stacked_weights_lie_in_memory_as_the_weights_do() -> None:
    """Else the optimiser has to lay them out anew, which costs as much as the step itself in a
    large layer."""
    for name in ("convolution and norm", "linear"):
        make, shape = LAYERS[name]
        layers = [make() for _ in range(LANES)]
        params, buffers = stacked(layers)
        one = told(make())
        out = vmap(lambda p, b, x, one=one: functional_call(one, (p, b), (x,)))(
            params, buffers, torch.randn(LANES, N, *shape)
        )
        for grad, value in zip(
            torch.autograd.grad(out.sum(), list(params.values())), params.values(), strict=True
        ):
            assert grad.stride() == value.stride(), name


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize(
    "used", ["twice", "and elsewhere", "with shared weights", "by a part of the phases"]
)
@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_dense_weights_are_the_sum_over_all_that_they_do(
    used: str, device: str
) -> None:
    torch.manual_seed(0)
    layers = [Linear(5, 3).double() for _ in range(LANES)]
    params = {
        name: value.detach().to(device).requires_grad_()
        for name, value in stacked(layers)[0].items()
    }
    xs, xt = torch.randn(2, LANES, N, 5, dtype=torch.float64, device=device)
    layer = told(Linear(5, 3).double().to(device))
    lanes = 0
    if used == "with shared weights":
        params, lanes = (
            {name: value[0].detach().requires_grad_() for name, value in params.items()},
            None,
        )

    def loss(call: Callable[[Tensors, Tensor], Tensor]) -> Tensor:
        total = call(params, xs).sin().sum() + call(params, xt).cos().sum()
        return total + params["weight"].exp().sum() if used == "and elsewhere" else total

    def in_lanes(own: Tensors, x: Tensor) -> Tensor:
        return vmap(lambda own, x: functional_call(layer, own, x), in_dims=(lanes, 0))(own, x)

    def written_out(own: Tensors, x: Tensor) -> Tensor:
        return torch.einsum(
            "lnd,ed->lne" if lanes is None else "lnd,led->lne", x, own["weight"]
        ) + (own["bias"] if lanes is None else own["bias"][:, None])

    trained = [params["bias"]] if used == "by a part of the phases" else list(params.values())
    found = gradients(loss(in_lanes), trained)
    wanted = torch.autograd.grad(loss(written_out), trained)
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.product() if isinstance(got, Factors) else got, expected)


def test_gradients_of_several_passes_are_the_factors_of_one_product() -> None:
    params, _ = stacked([Linear(5, 3) for _ in range(LANES)])
    layer = told(Linear(5, 3))
    x = torch.randn(LANES, N, 5)
    total = sum(
        vmap(lambda own, x: functional_call(layer, own, x))(params, x).sum() for _ in range(3)
    )
    with factored_gradients([params["weight"]]) as kept:
        (by_autograd,) = torch.autograd.grad(total, [params["weight"]], allow_unused=True)
    assert by_autograd is None
    found = kept.with_others(params["weight"], None)
    assert isinstance(found, Factors)
    assert found.left.shape == (LANES, 3, 3 * N)
    torch.testing.assert_close(found.product(), 3 * x.sum(dim=1)[:, None].expand(LANES, 3, 5))


def test_a_stacked_layer_outside_of_lanes_says_so() -> None:
    layer = told(Linear(5, 3))
    with pytest.raises(AssertionError, match="under vmap only"):
        layer(torch.zeros(N, 5))


@pytest.mark.parametrize("form", [grouped, one_by_one, by_products])
def test_every_form_of_a_stacked_convolution_is_the_convolution(
    form: Callable[..., Tensor],
) -> None:
    torch.manual_seed(0)
    x = torch.randn(LANES, 2, N, 9, 9, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(LANES, 5, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(LANES, 5, dtype=torch.float64, requires_grad=True)
    out = form(x, weight, bias, 2)
    weigh = torch.randn_like(out)
    wanted = torch.stack(
        [
            F.conv2d(x[i].transpose(0, 1), weight[i], bias[i], padding=2).transpose(0, 1)
            for i in range(LANES)
        ]
    )
    torch.testing.assert_close(out, wanted)
    inputs = [x, weight, bias]
    torch.testing.assert_close(
        torch.autograd.grad((out * weigh).sum(), inputs),
        torch.autograd.grad((wanted * weigh).sum(), inputs),
    )


SHAPES = (LANES, 2, N, 9, 9), (LANES, 5, 2, 5, 5), (LANES, 5)


class WrongGradient(torch.autograd.Function):
    """A convolution whose value is right; of the images' gradient it forgets the last column."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.padding = padding
        return by_products(x, weight, bias, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            inputs = [value.detach().requires_grad_() for value in ctx.saved_tensors]
            dx, *rest = torch.autograd.grad(by_products(*inputs, ctx.padding), inputs, g)
        dx[..., -1] = 0
        return dx, *rest, None


@pytest.mark.parametrize("gradients", [True, False])
def test_forms_that_agree_are_no_distance_apart(gradients: bool) -> None:
    assert (
        distance(one_by_one, by_products, SHAPES, [2], torch.device("cpu"), gradients=gradients)
        < 1e-5
    )


def test_a_form_with_a_wrong_gradient_is_a_distance_apart() -> None:
    assert (
        distance(
            WrongGradient.apply, by_products, SHAPES, [2], torch.device("cpu"), gradients=False
        )
        < 1e-5
    )
    assert (
        distance(WrongGradient.apply, by_products, SHAPES, [2], torch.device("cpu"))
        > 10 * TOLERATED
    )


def with_convolution(monkeypatch: pytest.MonkeyPatch, form: Callable[..., Tensor]) -> None:
    """Instead of the kernel, and nothing is known of it yet."""
    zeros = torch.zeros(SHAPES[2])
    conv = SimpleNamespace(apply=lambda x, kernel, padding, kept: form(x, kernel, zeros, padding))
    other = SimpleNamespace(apply=None)
    fake = SimpleNamespace(Conv=conv, NormReluPool=other, ConvNormReluPool=other)
    monkeypatch.setattr(askew.nets.triton, "kernels", fake, raising=False)
    monkeypatch.setitem(sys.modules, "askew.nets.triton.kernels", fake)
    trust.tried.cache_clear()


def is_used() -> bool:
    return trust.tried("convolution", SHAPES[:2], (2, torch.float32), torch.device("cpu"))


@pytest.fixture
def forgotten() -> Iterator[None]:
    """What a test found out about a kernel."""
    yield
    trust.tried.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_a_kernel_that_is_wrong_on_this_machine_is_not_used_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_convolution(monkeypatch, one_by_one)
    assert is_used()
    with_convolution(monkeypatch, WrongGradient.apply)
    with pytest.warns(WrongKernelWarning, match="convolution of .* off"):
        assert not is_used()


@pytest.mark.usefixtures("forgotten")
def test_a_kernel_that_this_machine_has_no_room_for_is_not_used_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = pytest.importorskip("triton.runtime.errors", reason="Triton is missing")

    def too_large(*args: object) -> Tensor:
        raise errors.OutOfResources(147456, 101376, "shared memory")

    with_convolution(monkeypatch, too_large)
    with pytest.warns(WrongKernelWarning, match="convolution of .* does not run"):
        assert not is_used()
