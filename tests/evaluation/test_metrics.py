"""Scores against plain loops, and the interval against drawing images again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.data.task import TestLabels
from askew.evaluation.metrics import (
    bootstrap_interval,
    class_accuracy,
    confusion,
    score,
    score_test,
)

steady = settings(derandomize=True, deadline=None, max_examples=80, database=None)
C = 5
Ints = np.ndarray[Any, np.dtype[np.int64]]
# Some of the five classes are often absent.
answers = st.lists(
    st.tuples(st.integers(0, C - 1), st.integers(0, C - 1)), min_size=1, max_size=60
).map(lambda pairs: tuple(np.array(pairs).T))


def plain_class_accuracies(y: Ints, predicted: Ints) -> dict[int, float]:
    found = {}
    for k in range(C):
        members = [i for i in range(len(y)) if y[i] == k]
        if members:
            found[k] = sum(predicted[i] == k for i in members) / len(members)
    return found


def answered(sizes: list[int], accuracy: list[float], seed: int = 0) -> tuple[Ints, Ints]:
    """Labels and predictions, each class right about as often as it should be."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    right = rng.random(len(y)) < np.array(accuracy)[y]
    return y, np.where(right, y, (y + 1) % len(sizes))


def counts_of(sizes: list[int], right: list[int]) -> Ints:
    """A confusion matrix with so many right of each class."""
    counts = np.diag(right)
    counts[np.arange(len(sizes)), (np.arange(len(sizes)) + 1) % len(sizes)] += (
        np.array(sizes) - right
    )
    return counts


# Accuracy


@steady
@given(answers)
def test_scores_are_those_of_a_plain_loop(drawn: tuple[Ints, Ints]) -> None:
    y, predicted = drawn
    found = score(y, predicted, C)
    each = plain_class_accuracies(y, predicted)
    assert found["per_class_mean"] == pytest.approx(100 * sum(each.values()) / len(each))
    assert found["per_class"] == [
        pytest.approx(100 * each[k]) if k in each else None for k in range(C)
    ]
    assert found["overall"] == pytest.approx(100 * sum(y == predicted) / len(y))
    assert found["worst"] == pytest.approx(100 * min(each.values()))
    assert each[found["worst_class"]] == min(each.values())
    assert found["images"] == len(y)


@steady
@given(answers)
def test_the_confusion_matrix_counts_true_class_by_row(drawn: tuple[Ints, Ints]) -> None:
    y, predicted = drawn
    counts = confusion(y, predicted, C)
    assert counts.shape == (C, C)
    for i in range(C):
        for j in range(C):
            assert counts[i, j] == sum((y == i) & (predicted == j))


def test_a_class_that_the_exam_does_not_have_is_left_out() -> None:
    y, predicted = np.array([0, 0, 3]), np.array([0, 1, 3])
    assert np.isnan(class_accuracy(confusion(y, predicted, 4))).tolist() == [
        False,
        True,
        True,
        False,
    ]
    found = score(y, predicted, 4)
    assert found["per_class_mean"] == 75
    assert found["per_class"] == [50, None, None, 100]
    assert (found["worst"], found["worst_class"]) == (50, 0)


def test_the_per_class_mean_ignores_how_large_a_class_is() -> None:
    y = np.repeat([0, 1], [98, 2])
    found = score(y, np.zeros(100, dtype=np.int64), 2)
    assert found["overall"] == 98
    assert found["per_class_mean"] == 50
    assert (found["worst"], found["worst_class"]) == (0, 1)


def test_scores_are_plain_values() -> None:
    found = score(np.array([0, 2]), np.array([0, 1]), 4)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


# The interval


def test_the_interval_is_about_that_of_drawing_the_images_again() -> None:
    sizes = [200, 80, 30, 10]
    y, predicted = answered(sizes, [0.95, 0.7, 0.5, 0.8])
    rng = np.random.default_rng(1)
    right = [(predicted[y == k] == k) for k in range(4)]
    means = [np.mean([rng.choice(r, len(r)).mean() for r in right]) for _ in range(4_000)]
    literal = np.quantile(means, [0.025, 0.975])
    np.testing.assert_allclose(bootstrap_interval(confusion(y, predicted, 4)), literal, atol=0.008)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    sizes, accuracy = [100, 60, 40], [0.9, 0.6, 0.75]
    covered = []
    for seed in range(300):
        low, high = bootstrap_interval(confusion(*answered(sizes, accuracy, seed), 3))
        covered.append(low <= np.mean(accuracy) <= high)
    assert 0.90 <= np.mean(covered) <= 0.99


def test_the_interval_shrinks_with_the_root_of_the_images() -> None:
    widths = []
    for n in (40, 160, 640):
        low, high = bootstrap_interval(counts_of([n] * 3, [n * 3 // 4] * 3))
        assert low < 0.75 < high
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(2, rel=0.1)
    assert widths[1] / widths[2] == pytest.approx(2, rel=0.1)


def test_a_higher_level_is_a_wider_interval() -> None:
    counts = counts_of([50, 50], [30, 40])
    (a, b), (c, d) = bootstrap_interval(counts, 0.99), bootstrap_interval(counts, 0.5)
    assert a < c < d < b


def test_the_interval_of_a_perfect_classifier_is_a_point() -> None:
    assert bootstrap_interval(np.diag([5, 0, 3])) == (1, 1)


def test_the_interval_is_the_same_every_time() -> None:
    counts = counts_of([503, 71], [301, 44])
    assert bootstrap_interval(counts) == bootstrap_interval(counts)


def test_scores_carry_the_interval_in_per_cent() -> None:
    y, predicted = answered([50, 30], [0.9, 0.5])
    low, high = bootstrap_interval(confusion(y, predicted, 2))
    assert score(y, predicted, 2)["interval"] == [100 * low, 100 * high]


# Test splits


def test_the_papers_test_split_is_scored_on_its_rows_alone() -> None:
    y = np.array([0, 0, 1, 1, 2])
    logits = np.eye(3)[[0, 1, 1, 1, 0]]
    test = TestLabels(y, np.array([0, 1, 4]), tuple("abc"))
    scores = score_test(test, logits)
    assert scores["whole"] == score(y, np.array([0, 1, 1, 1, 0]), 3)
    assert scores["paper"] == score(y[[0, 1, 4]], np.array([0, 1, 0]), 3)
    assert scores["paper"]["per_class"] == [50, None, 0]


def test_an_exam_without_a_papers_part_has_one_score() -> None:
    assert set(score_test(TestLabels(np.array([0, 1]), None, tuple("ab")), np.eye(2))) == {"whole"}
