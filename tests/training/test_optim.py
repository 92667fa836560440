"""The small optimisers equal torch's own."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from askew.nets.spec import parse_network
from askew.nets.vmap.dense import Factors
from askew.training.optim import Optim, Optimiser, adam_, rate, sgd_

steady = settings(derandomize=True, deadline=None, max_examples=50, database=None)
STEPS = 20
NOW = torch.tensor(0.0)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3))


def gradients(params: list[Tensor], step: int, scale: float = 1.0) -> list[Tensor]:
    chance = torch.Generator().manual_seed(step)
    return [scale * torch.randn(p.shape, generator=chance) for p in params]


def trained_by_torch(
    optimiser: type[torch.optim.Optimizer], scale: float = 1.0, **settings: Any
) -> list[Tensor]:
    params = list(net().parameters())
    theirs = optimiser(params, **settings)
    for step in range(STEPS):
        for p, g in zip(params, gradients(params, step, scale), strict=True):
            p.grad = g
        theirs.step()
    return [p.detach() for p in params]


def assert_close(ours: list[Tensor], theirs: list[Tensor], atol: float = 1e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=atol)


# The functions


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_sgd_equals_torchs(momentum: float, decay: float, nesterov: bool) -> None:
    params = [p.detach() for p in net().parameters()]
    moving = [torch.zeros_like(p) for p in params]
    for step in range(STEPS):
        sgd_(params, gradients(params, step), moving, torch.tensor(0.05), momentum, decay, nesterov)
    assert_close(
        params,
        trained_by_torch(
            torch.optim.SGD, lr=0.05, momentum=momentum, weight_decay=decay, nesterov=nesterov
        ),
    )


@pytest.mark.parametrize("optimiser", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("scale", [1.0, 1e-8])  # the second as small as ε
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_adam_equals_torchs(
    beta1: float, decay: float, scale: float, optimiser: type[torch.optim.Optimizer]
) -> None:
    params = [p.detach() for p in net().parameters()]
    first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
    for step in range(STEPS):
        count = torch.tensor(
            float(step + 1), dtype=torch.float64
        )  # 1 − 0.999ⁿ has but four digits in float32
        grads, decoupled = gradients(params, step, scale), optimiser is torch.optim.AdamW
        adam_(params, grads, first, second, count, torch.tensor(0.01), beta1, decay, decoupled)
    assert_close(
        params,
        trained_by_torch(optimiser, scale, lr=0.01, betas=(beta1, 0.999), weight_decay=decay),
    )


def test_gradients_are_left_as_they_were() -> None:
    params = [p.detach() for p in net().parameters()]
    slots = [[torch.zeros_like(p) for p in params] for _ in range(3)]
    grads = gradients(params, 0)
    sgd_(params, grads, slots[0], torch.tensor(0.1), 0.9, 0.1, nesterov=True)
    adam_(params, grads, slots[1], slots[2], torch.tensor(1.0), torch.tensor(0.1), 0.9, 0.1)
    assert_close(grads, gradients(params, 0))


# The schedule


@steady
@given(st.floats(0, 1))
def test_schedules_follow_their_formulas(t: float) -> None:
    at = torch.tensor(t, dtype=torch.float64)
    assert rate("constant", at).item() == 1
    assert rate("inverse", at).item() == pytest.approx((1 + 10 * t) ** -0.75)
    assert rate("cosine", at).item() == pytest.approx((1 + math.cos(math.pi * t)) / 2, abs=1e-12)


@pytest.mark.parametrize("schedule", ["constant", "inverse", "cosine"])
def test_every_schedule_starts_at_the_full_rate_and_never_rises(schedule: str) -> None:
    factors = rate(schedule, torch.linspace(0, 1, 50))
    assert factors[0] == 1
    assert (factors.diff() <= 1e-6).all()


# The optimiser of a run


def named() -> dict[str, Tensor]:
    return {name: torch.ones(3) for name in ("features.0.weight", "head.weight", "critic.weight")}


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_features_learn_at_their_rate_and_everything_else_at_the_heads(kind: Any) -> None:
    params = named()
    optim = Optim(optimiser=kind, lr=0.2, features_lr=0.01, weight_decay=0)
    Optimiser(optim, params).step(list(params), [torch.ones(3)] * 3, NOW)
    moved = {name: (1 - p).mean().item() for name, p in params.items()}
    assert moved == pytest.approx(
        {"features.0.weight": 0.01, "head.weight": 0.2, "critic.weight": 0.2}, rel=1e-5
    )


@pytest.mark.parametrize("schedule", ["inverse", "cosine"])
def test_both_rates_follow_the_schedule(schedule: Any) -> None:
    params = named()
    t = torch.tensor(0.3)
    optim = Optim(lr=0.2, features_lr=0.01, weight_decay=0, schedule=schedule)
    Optimiser(optim, params).step(list(params), [torch.ones(3)] * 3, t)
    factor = rate(schedule, t).item()
    assert (1 - params["head.weight"][0]).item() == pytest.approx(0.2 * factor, rel=1e-5)
    assert (1 - params["features.0.weight"][0]).item() == pytest.approx(0.01 * factor, rel=1e-4)


@pytest.mark.parametrize(
    ("optim", "theirs"),
    [
        (
            Optim(lr=0.05, features_lr=0.05),
            lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=5e-4),
        ),
        (
            Optim(optimiser="adam", lr=0.01, features_lr=0.01),
            lambda p: torch.optim.Adam(p, 0.01, weight_decay=5e-4),
        ),
    ],
    ids=["sgd", "adam"],
)
def test_training_with_real_gradients_equals_torchs(optim: Optim, theirs: Any) -> None:
    # In float64, since Adam blows up the rounding errors that are all the gradient before a batch
    # norm.
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(16) % 3
    ours, other = net().double(), net().double()
    params = {f"features.{name}": p for name, p in ours.named_parameters() if name != "0.bias"}
    optimiser, reference = (
        Optimiser(optim, params),
        theirs([other[0].weight, *other[1:].parameters()]),
    )
    for _ in range(STEPS):
        loss = nn.functional.cross_entropy(ours(x), y)
        optimiser.step(list(params), torch.autograd.grad(loss, list(params.values())), NOW.double())
        reference.zero_grad()
        nn.functional.cross_entropy(other(x), y).backward()
        reference.step()
    # The optimiser's counter is a float32, and 1 − 0.999ⁿ has but four digits left of it at n = 1.
    assert_close(
        [p.detach() for p in ours.parameters()], [p.detach() for p in other.parameters()], atol=1e-5
    )


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_a_parameter_without_a_gradient_stays(kind: Any) -> None:
    params = named()
    optimiser = Optimiser(Optim(optimiser=kind), params)
    before = {name: value.clone() for name, value in optimiser.tensors().items()}
    optimiser.step(list(params), [None, torch.ones(3), None], NOW)
    assert (params["head.weight"] < 1).all()
    for name in ("features.0.weight", "critic.weight"):
        assert torch.equal(params[name], torch.ones(3)), "not even weight decay touches it"
        slots = {k: v for k, v in optimiser.tensors().items() if k.endswith(name)}
        assert all(torch.equal(v, before[k]) for k, v in slots.items())


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_an_optimiser_goes_on_from_its_tensors(kind: Any) -> None:
    def steps(params: dict[str, Tensor], optimiser: Optimiser, first: int, last: int) -> None:
        for step in range(first, last):
            optimiser.step(
                list(params), gradients(list(params.values()), step), torch.tensor(step / 10)
            )

    whole = named()
    steps(whole, Optimiser(Optim(optimiser=kind), whole), 0, 10)
    halted = named()
    first = Optimiser(Optim(optimiser=kind), halted)
    steps(halted, first, 0, 4)
    second = Optimiser(Optim(optimiser=kind), halted)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    for name, value in second.tensors().items():
        value.copy_(saved[name])
    steps(halted, second, 4, 10)
    assert all(torch.equal(whole[name], halted[name]) for name in whole)


def test_layers_put_on_a_backbone_learn_at_the_rate_of_the_head() -> None:
    names = ("features.0.body.weight", "features.1.0.weight", "head.weight")
    for network, moved in (
        (parse_network("resnet18+bottleneck"), [0.01, 0.1, 0.1]),
        (parse_network("digits-28"), [0.01, 0.01, 0.1]),
    ):
        params: dict[str, Tensor] = {name: torch.zeros(1) for name in names}
        optim = Optim(lr=0.1, features_lr=0.01, weight_decay=0.0)
        optimiser = Optimiser(optim, params, network.on_backbone)
        optimiser.step(names, [torch.ones(1)] * 3, NOW)
        assert [-p.item() for p in params.values()] == pytest.approx(moved)


# Gradients that are products


def factored(
    kind: Any, device: str, width: int
) -> tuple[list[dict[str, Tensor]], list[Optimiser], list[Factors]]:
    """Two optimisers of equal weights, and some steps' gradients."""
    chance = torch.Generator(device).manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance, device=device)

    weight = some(2, width, 2 * width)
    params = [
        {"features.0.weight": weight.clone(), "head.weight": weight[:1].clone()} for _ in range(2)
    ]
    optim = Optim(optimiser=kind, lr=0.1, features_lr=0.1, nesterov=kind == "sgd")
    steps = [Factors(some(2, width, 40), some(2, 2 * width, 40).mT) for _ in range(3)]
    return params, [Optimiser(optim, own) for own in params], steps


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_along_factors_is_the_step_along_their_product(kind: Any) -> None:
    params, (one, other), steps = factored(kind, "cpu", 30)
    for factors in steps:
        one.step(["features.0.weight"], [factors], NOW)
        other.step(["features.0.weight"], [torch.einsum("len,lnd->led", *factors)], NOW)
    assert_close(list(params[0].values()), list(params[1].values()))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_on_a_gpu_large_weights_step_along_factors_by_a_kernel(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, (one, other), steps = factored(kind, "cuda", 1100)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for factors in steps:
            other.step(["features.0.weight"], [factors.product()], NOW.cuda())
            monkeypatch.setattr(
                Factors, "product", lambda self: pytest.fail("the kernel was refused")
            )
            one.step(["features.0.weight"], [factors], NOW.cuda())
            monkeypatch.undo()
    finally:
        torch.set_float32_matmul_precision(before)
    for mine, reference in ((params[0], params[1]), *zip(one.slots, other.slots, strict=True)):
        apart = mine["features.0.weight"] - reference["features.0.weight"]
        assert apart.norm() <= 5e-3 * reference["features.0.weight"].norm()
