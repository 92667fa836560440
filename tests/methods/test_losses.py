"""Losses against their formulas, in value and in gradient."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from askew.methods.losses import cross_entropy, entropy, reverse_grad, top_share_mask

steady = settings(derandomize=True, deadline=None, max_examples=80, database=None)
numbers = st.floats(-20, 20, allow_subnormal=False)
Floats = np.ndarray[Any, np.dtype[np.float64]]


@st.composite
def logits_and_labels(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    n, c = draw(st.integers(1, 6)), draw(st.integers(2, 5))
    z = draw(st.lists(st.lists(numbers, min_size=c, max_size=c), min_size=n, max_size=n))
    y = draw(st.lists(st.integers(0, c - 1), min_size=n, max_size=n))
    return torch.tensor(z, dtype=torch.float64, requires_grad=True), torch.tensor(y)


def log_softmax(z: Tensor) -> Floats:
    z = z.detach().numpy()
    top = z - z.max(axis=1, keepdims=True)
    return top - np.log(np.exp(top).sum(axis=1, keepdims=True))


def grad_of(value: Tensor, x: Tensor) -> Floats:
    (grad,) = torch.autograd.grad(value, x)
    return grad.numpy()


# Cross-entropy


@steady
@given(logits_and_labels(), st.randoms(use_true_random=False))
def test_cross_entropy_is_the_mean_over_all_rows_whatever_their_weights(
    drawn: tuple[Tensor, Tensor], r: Any
) -> None:
    z, y = drawn
    n, c = z.shape
    log_p = log_softmax(z)
    for w in (np.ones(n), np.array([r.choice((0.0, 0.5, 1.0, 3.0)) for _ in range(n)])):
        value = cross_entropy(z, y, torch.from_numpy(w))
        assert value.item() == pytest.approx(-sum(w[i] * log_p[i, y[i]] for i in range(n)) / n)
        want = w[:, None] * (np.exp(log_p) - np.eye(c)[y]) / n
        np.testing.assert_allclose(grad_of(value, z), want, atol=1e-12)
    assert cross_entropy(z, y).item() == cross_entropy(z, y, torch.ones(n)).item()


# Entropy


@steady
@given(logits_and_labels())
def test_entropy_is_shannons_mean_over_rows(drawn: tuple[Tensor, Tensor]) -> None:
    z, _ = drawn
    n, c = z.shape
    log_p = log_softmax(z)
    each = [-sum(math.exp(v) * v for v in row) for row in log_p.tolist()]
    value = entropy(z)
    assert value.item() == pytest.approx(sum(each) / n, abs=1e-12)
    assert -1e-12 <= value.item() <= math.log(c) + 1e-12
    want = -np.exp(log_p) * (log_p + np.array(each)[:, None]) / n  # ∂H/∂z_k = −p_k (log p_k + H)
    np.testing.assert_allclose(grad_of(value, z), want, atol=1e-12)


def test_entropy_of_a_sure_row_is_zero_with_a_finite_gradient() -> None:
    z = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    assert entropy(z).item() == 0
    assert np.isfinite(grad_of(entropy(z), z)).all()


def test_entropy_is_largest_where_all_logits_are_equal() -> None:
    assert entropy(torch.full((3, 5), 2.0)).item() == pytest.approx(math.log(5))


# Reversal


@steady
@given(st.lists(numbers, min_size=1, max_size=6), st.floats(0, 10))
def test_reversal_is_the_identity_forward_and_minus_strength_backward(
    values: list[float], strength: float
) -> None:
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    for s in (strength, torch.tensor(strength, dtype=torch.float64)):
        y = reverse_grad(x, s)
        assert torch.equal(y, x)
        np.testing.assert_allclose(grad_of((y**2).sum(), x), -strength * 2 * np.array(values))


def test_reversal_is_the_identity_bit_for_bit_in_float32() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 1e3
    assert torch.equal(reverse_grad(x, 0.3), x)


def test_reversal_works_in_lanes_of_their_own_strength() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    strength = torch.tensor([1.0, 0.25])
    y = torch.func.vmap(reverse_grad)(x, strength)
    assert torch.equal(y, x)
    np.testing.assert_array_equal(
        grad_of((y * torch.arange(3)).sum(), x), np.outer(-strength, np.arange(3))
    )


# The most confident of each group


def top_share(confidence: list[float], group: list[int], share: float) -> list[float]:
    """By plain loops, with shares as the decimal fractions that they are written as."""
    mask = [0.0] * len(group)
    for g in set(group):
        rows = [i for i in range(len(group)) if group[i] == g]
        rows.sort(
            key=lambda i: -confidence[i]
        )  # Python's sort is stable: of equals, the lower row is first
        for i in rows[: math.ceil(Fraction(str(share)) * len(rows))]:
            mask[i] = 1.0
    return mask


# Few distinct values, so that ties are common, and a group of nine that is often empty.
grouped = st.lists(
    st.tuples(st.sampled_from([0.1, 0.2, 0.25, 0.9]), st.integers(0, 4)), min_size=1, max_size=60
)
shares = st.integers(0, 100).map(lambda percent: percent / 100)


@settings(steady, max_examples=200)
@given(grouped, shares)
@example([(0.5, 0)] * 15, 0.2)
@example([(0.5, 3)] * 20, 0.15)
@example([(0.5, 0), (0.5, 1)] * 30, 0.0)
@example([(0.5, 0), (0.5, 1)] * 30, 1.0)
def test_the_mask_is_that_of_a_plain_loop(rows: list[tuple[float, int]], share: float) -> None:
    confidence, group = [r[0] for r in rows], [r[1] for r in rows]
    for s in (share, torch.tensor(share, dtype=torch.float64)):
        mask = top_share_mask(torch.tensor(confidence), torch.tensor(group), s, groups=9)
        assert mask.tolist() == top_share(confidence, group, share)
        assert mask.dtype == torch.float32


def test_a_fifth_of_fifteen_is_three() -> None:
    confidence = torch.linspace(0, 1, 15)
    for share in (0.2, 0.05 + 3 * 0.05, 0.1 + 0.1):
        assert (
            top_share_mask(confidence, torch.zeros(15, dtype=torch.int64), share, 1).tolist()
            == [0] * 12 + [1] * 3
        )


@pytest.mark.parametrize("share", [k / 100 for k in range(101)])
def test_a_share_that_is_whole_loses_and_gains_nothing_by_rounding(share: float) -> None:
    n = 100
    mask = top_share_mask(
        torch.rand(n, generator=torch.Generator().manual_seed(0)), torch.arange(n) * 0, share, 1
    )
    assert mask.sum().item() == round(share * 100)


def test_share_zero_trusts_none_and_share_one_all() -> None:
    confidence, group = torch.tensor([0.3, 0.3, 0.9]), torch.tensor([1, 1, 4])
    assert top_share_mask(confidence, group, 0.0, 5).tolist() == [0, 0, 0]
    assert top_share_mask(confidence, group, 1.0, 5).tolist() == [1, 1, 1]


def test_ties_go_to_the_lower_row() -> None:
    mask = top_share_mask(
        torch.tensor([0.1, 0.5, 0.5, 0.5]), torch.zeros(4, dtype=torch.int64), 0.5, 1
    )
    assert mask.tolist() == [0, 1, 1, 0]


def test_a_positive_share_trusts_at_least_one_of_each_group() -> None:
    group = torch.tensor([0, 1, 1, 2, 2, 2])
    mask = top_share_mask(torch.rand(6, generator=torch.Generator().manual_seed(0)), group, 0.01, 4)
    assert group[mask.bool()].tolist() == [0, 1, 2]


def test_the_mask_has_no_gradient() -> None:
    confidence = torch.rand(5, requires_grad=True)
    assert not top_share_mask(confidence, torch.zeros(5, dtype=torch.int64), 0.5, 1).requires_grad
