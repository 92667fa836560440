"""Chance as a function: it looks like chance, and it is the same function everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from askew.core.random import bits, hash64, keep_mask, key, normal, seeded, shuffled, uniform

CPU = torch.device("cpu")
steady = settings(derandomize=True, deadline=None, max_examples=100, database=None)
streams = st.integers(0, 2**63 - 1)


def splitmix64(stream: int, position: int) -> int:
    """Output number `position` of the generator with that seed, in Python's unbounded integers."""
    z = (stream + (position + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def digits(hashes: Tensor) -> Tensor:
    """Each binary digit by itself. (…,) int64 → (…, 64) of 0.0 and 1.0"""
    return ((hashes[..., None] >> torch.arange(64)) & 1).double()


# Torch's own


def test_weights_are_drawn_from_a_seed_and_no_generator_is_left_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        torch.cuda, "manual_seed_all", lambda seed: pytest.fail("the GPUs were seeded")
    )
    torch.default_generator.manual_seed(1)
    before = torch.get_rng_state()
    with seeded(7):
        first = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(7)))


# Keys


def test_a_key_is_63_bits_and_depends_on_every_part() -> None:
    keys = {
        key(*parts)
        for parts in [(), (0,), ("0",), ("a", 1), ("a1",), (1, "a"), ("a", 1, 0), ("a", -1)]
    }
    assert len(keys) == 8
    assert all(0 <= k < 2**63 for k in keys)


def test_a_key_is_the_same_on_every_machine() -> None:
    assert key("source", 0) == 2_780_719_697_735_955_645


# Hashes


@steady
@given(streams, st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
@example(0, [0, -1, 2**63 - 1, -(2**63)])
@example(2**63 - 1, [0, 1, 2])
def test_hash64_equals_splitmix64(stream: int, positions: list[int]) -> None:
    hashed = hash64(stream, torch.tensor(positions)).tolist()
    assert [h % 2**64 for h in hashed] == [splitmix64(stream, p) for p in positions]


def test_hash64_begins_with_the_published_outputs_of_seed_0() -> None:
    first = [h % 2**64 for h in hash64(0, torch.arange(3)).tolist()]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_every_bit_of_hash64_is_set_half_the_time() -> None:
    n = 2**16
    for stream in (0, 1, key("source", 0)):
        mean = digits(hash64(stream, torch.arange(n))).mean(dim=0)
        assert (mean - 0.5).abs().max() < 5 * 0.5 / n**0.5


def test_neighbouring_positions_and_streams_differ_in_half_their_bits() -> None:
    n = 2**14
    position = torch.arange(n)
    here = hash64(key("a"), position)
    for other in (hash64(key("a"), position + 1), hash64(key("b"), position)):
        changed = digits(here ^ other).mean(dim=0)
        assert (changed - 0.5).abs().max() < 5 * 0.5 / n**0.5


# Shuffles


@steady
@given(streams, st.integers(1, 40), st.integers(0, 5))
def test_each_block_of_a_shuffle_is_a_permutation(stream: int, n: int, blocks: int) -> None:
    order = shuffled(stream, n, 0, n * blocks, CPU).view(blocks, n)
    assert torch.equal(order.sort(dim=1).values, torch.arange(n).expand(blocks, n))


@steady
@given(streams, st.integers(1, 40), st.integers(0, 200), st.integers(0, 100))
def test_any_part_of_a_shuffle_is_a_slice_of_the_whole(
    stream: int, n: int, start: int, count: int
) -> None:
    whole = shuffled(stream, n, 0, start + count, CPU)
    assert torch.equal(shuffled(stream, n, start, count, CPU), whole[start:])


def test_every_element_takes_every_place_equally_often() -> None:
    n, blocks = 8, 8_000
    order = shuffled(key("order"), n, 0, n * blocks, CPU).view(blocks, n)
    share = torch.nn.functional.one_hot(order, n).double().mean(dim=0)
    assert (share - 1 / n).abs().max() < 5 * (1 / n * (1 - 1 / n) / blocks) ** 0.5


def test_successive_blocks_and_other_streams_are_in_another_order() -> None:
    order = shuffled(key("order"), 50, 0, 100, CPU)
    assert not torch.equal(order[:50], order[50:])
    assert not torch.equal(order, shuffled(key("other"), 50, 0, 100, CPU))


# Dropout masks


def masks(p: float, step_keys: int, positions: int, layer: int = 1) -> Tensor:
    """(steps, positions) of kept elements, hashed as training does it."""
    base = hash64(key("dropout", layer), torch.arange(positions))
    step_key = hash64(key("noise", 0, 0), torch.arange(step_keys))
    return keep_mask(base, step_key[:, None], p)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.5, 0.75, 0.9])
def test_a_mask_keeps_the_share_1_minus_p(p: float) -> None:
    kept = masks(p, 300, 1_000).double()
    n = kept.numel()
    assert abs(kept.mean().item() - (1 - p)) < 5 * (p * (1 - p) / n) ** 0.5
    for axis in (0, 1):  # nor is any step or position favoured
        worst = (kept.mean(dim=axis) - (1 - p)).abs().max().item()
        assert worst < 5.5 * (p * (1 - p) / kept.shape[axis]) ** 0.5


def test_rate_zero_keeps_everything() -> None:
    assert masks(0.0, 50, 1_000).all()


@pytest.mark.parametrize("p", [0.25, 0.5])
def test_masks_of_different_steps_and_positions_are_independent(p: float) -> None:
    kept = masks(p, 400, 1_000).double()
    for samples in (kept, kept.T):
        n = samples.shape[1]
        unrelated = torch.corrcoef(samples)[
            torch.triu_indices(len(samples), len(samples), 1).unbind()
        ]
        assert unrelated.abs().max() < 6 / n**0.5
        assert (unrelated**2).mean().item() * n == pytest.approx(1, abs=0.05)


def test_masks_of_two_layers_are_independent() -> None:
    one, two = (masks(0.5, 200, 1_000, layer).double().flatten() for layer in (1, 2))
    assert torch.corrcoef(torch.stack([one, two]))[0, 1].abs() < 5 / len(one) ** 0.5


# Numbers that views and methods draw

N = 2**16
KEYS = hash64(key("some keys"), torch.arange(N))
Draw = Callable[..., Tensor]


def correlation(a: Tensor, b: Tensor) -> float:
    return torch.corrcoef(torch.stack([a, b]).double())[0, 1].abs().item()


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    u = uniform(KEYS, "a").double()
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean().item() - 1 / 2) < 5 / (12 * N) ** 0.5
    assert abs(u.var().item() - 1 / 12) < 5 / (180 * N) ** 0.5
    even = (torch.arange(N) + 0.5) / N
    assert (
        u.sort().values - even
    ).abs().max() < 2 / N**0.5  # Kolmogorov's distance, exceeded once in 1,500 times


def test_normal_numbers_have_the_moments_and_the_tails_of_the_standard_normal() -> None:
    z = normal(KEYS, "a").double()
    assert z.isfinite().all()
    for power, moment in enumerate((0, 1, 0, 3), start=1):
        spread = math.prod(range(1, 2 * power, 2)) - moment**2  # E z^2p = 1·3·5·…·(2p − 1)
        assert abs((z**power).mean().item() - moment) < 5 * (spread / N) ** 0.5
    right = torch.special.ndtr(z).sort().values
    assert (right - (torch.arange(N) + 0.5) / N).abs().max() < 2 / N**0.5


@pytest.mark.parametrize("draw", [uniform, normal])
def test_numbers_of_other_streams_positions_and_keys_are_unrelated(draw: Draw) -> None:
    both = draw(KEYS, "a", 2)
    pairs = {
        "streams": (both[:, 0], draw(KEYS, "b", 2)[:, 0]),
        "positions": (both[:, 0], both[:, 1]),
        "neighbouring keys": (both[:-1, 0], both[1:, 0]),
        "sizes": (both[:, 0].square(), both[:, 1].square()),
    }
    for name, (one, two) in pairs.items():
        assert correlation(one, two) < 5 / len(one) ** 0.5, name


@pytest.mark.parametrize("draw", [bits, uniform, normal])
def test_a_number_depends_on_its_key_stream_and_position_alone(draw: Draw) -> None:
    keys = KEYS[:12].view(3, 4)
    together = draw(keys, "a", 2, 5)
    assert together.shape == (3, 4, 2, 5)
    alone = torch.stack([draw(k, "a", 2, 5) for k in keys.flatten()]).view(together.shape)
    under_vmap = vmap(vmap(lambda k: draw(k, "a", 2, 5)))(keys)
    longer = draw(keys, "a", 40)[:, :, :10].view(together.shape)
    for other in (alone, under_vmap, longer):
        torch.testing.assert_close(other, together, rtol=1e-6, atol=1e-6)
    assert torch.equal(draw(keys, "a", 2, 5), together)
