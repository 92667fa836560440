"""Accuracies on a few labels: the truth lies in most of their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askew.evaluation.metrics import accuracy_gain, mean_accuracy


@pytest.mark.parametrize(
    ("classes", "labelled"), [(3, 20), (3, 60), (3, 400), (31, 93), (31, 310), (65, 650)]
)
def test_the_truth_lies_in_most_intervals_however_few_labels_a_class_has(
    classes: int, labelled: int
) -> None:
    """Nominally 95 %; classes without a label are in no mean."""
    prior = np.geomspace(6, 1, classes) / np.geomspace(6, 1, classes).sum()
    before, after = np.linspace(0.9, 0.3, classes), np.linspace(0.95, 0.6, classes)
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(400):
        y = rng.choice(classes, labelled, p=prior)
        there = np.unique(y)
        first = np.where(rng.random(labelled) < before[y], y, (y + 1) % classes)
        then = np.where(rng.random(labelled) < after[y], y, (y + 1) % classes)
        for found, truth in (
            (mean_accuracy(y, then, classes), after[there].mean()),
            (accuracy_gain(y, first, then, classes), (after - before)[there].mean()),
        ):
            inside.append(found.low <= 100 * truth <= found.high)
    assert np.mean(inside[::2]) > 0.9
    assert np.mean(inside[1::2]) > 0.9


def test_an_interval_contains_its_own_value_when_many_classes_have_few_labels() -> None:
    y = np.repeat(np.arange(31), 3)
    then = np.where(np.arange(93) % 5 == 0, (y + 1) % 31, y)
    found = mean_accuracy(y, then, 31)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(100 * np.mean(then == y))


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60
    )
)
def test_intervals_contain_their_values_and_lie_within_what_is_possible(
    rows: list[tuple[int, int, int]],
) -> None:
    y, first, then = np.array(rows).T
    accuracy, gain = mean_accuracy(y, then, 5), accuracy_gain(y, first, then, 5)
    assert 0 <= accuracy.low <= accuracy.value <= accuracy.high <= 100
    assert -100 <= gain.low <= gain.value <= gain.high <= 100
    swapped = accuracy_gain(y, then, first, 5)
    assert swapped.value == pytest.approx(-gain.value)
    assert accuracy_gain(y, then, then, 5).value == 0
