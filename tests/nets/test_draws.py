"""The random numbers of views: those of askew.core.random, whatever draws them."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from askew.core import random
from askew.nets.triton import draws

SHAPES = [(), (1,), (6,), (3, 20, 20), (784,)]


def keys(device: str) -> Tensor:
    return random.hash64(random.key("draws"), torch.arange(10, device=device)).view(2, 5)


def all_kinds(
    of: ModuleType, keys: Tensor, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    return of.bits(keys, "a", *shape), of.uniform(keys, "a", *shape), of.normal(keys, "a", *shape)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_they_are_the_same_by_themselves_and_under_vmap(
    device: str, shape: tuple[int, ...]
) -> None:
    wanted = all_kinds(random, keys("cpu"), shape)
    alone = all_kinds(draws, keys(device), shape)
    lanes = vmap(lambda lane: all_kinds(draws, lane, shape))(keys(device))
    for bits, uniform, normal in (alone, lanes):
        assert torch.equal(bits.cpu(), wanted[0])
        assert torch.equal(uniform.cpu(), wanted[1])
        torch.testing.assert_close(normal.cpu(), wanted[2], rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_draws_them_by_the_kernel(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton", reason="Triton is missing")
    assert all(draws._trusted(kind, keys("cuda"), shape) for kind in random.DRAWS), (
        "the kernel was refused"
    )
