"""The label-shift rule against the published counts, and what every sample drawn by it keeps to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.core.errors import UserError
from askew.data.label_shift import (
    DIGITS_TAIL,
    IntArray,
    balanced_counts,
    degree_counts,
    dirichlet_counts,
    draw,
    hold_out,
    js_distance,
    long_tail,
    picture_tail,
    rs_counts,
    total,
    ut_counts,
)

OFFICE_HOME: dict[str, Any] = json.loads(
    Path(__file__).with_name("office_home_sizes.json").read_text()
)
OFFICE_HOME_TAIL = picture_tail(65)
DOMAINS = ("Clipart", "Product", "RealWorld")

MNIST_TRAIN = [
    5444,
    6179,
    5470,
    5638,
    5307,
    4987,
    5417,
    5715,
    5389,
    5454,
]  # without its first 5,000
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
USPS_TRAIN = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
USPS_TEST = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]

Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")
FIGURE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

steady = settings(derandomize=True, deadline=None, max_examples=80, database=None)
sizes = st.lists(st.integers(1, 400), min_size=2, max_size=30)
roomy = st.lists(st.integers(300, 400), min_size=2, max_size=12)  # hardly a class runs out
shapes = st.floats(0.2, 100)
degrees = st.floats(0, 1)
seeds = st.integers(0, 2**64 - 1)
labels = st.lists(st.integers(0, 4), min_size=5, max_size=120).map(np.array)


def tail(n: list[int], shape: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    return long_tail(len(n), shape, 1, 5)


def counts_of(y: IntArray, classes: int = 5) -> IntArray:
    return np.bincount(y, minlength=classes)


# The published numbers


def test_the_digits_tail_is_the_inverse_square() -> None:
    inverse = 1 / np.arange(2, 12) ** 2
    np.testing.assert_allclose(DIGITS_TAIL, inverse / inverse.sum(), rtol=1e-14)
    assert DIGITS_TAIL[0] / DIGITS_TAIL[-1] == pytest.approx(30.25)
    assert OFFICE_HOME_TAIL[0] / OFFICE_HOME_TAIL[-1] == pytest.approx(5.04, abs=0.01)


def test_classes_are_in_case_insensitive_order() -> None:
    names = OFFICE_HOME["classes"]
    assert len(set(names)) == 65
    assert names == sorted(names, key=str.lower)
    assert names[-3:] == ["Trash_Can", "TV", "Webcam"]


@pytest.mark.parametrize(
    ("domain", "n"), [("Clipart", 1051), ("Product", 2075), ("RealWorld", 1287)]
)
def test_totals_are_those_of_the_spec(domain: str, n: int) -> None:
    assert total(OFFICE_HOME[domain]["sizes"], OFFICE_HOME_TAIL) == n


@pytest.mark.parametrize("domain", DOMAINS)
def test_all_published_office_home_counts_are_equal(domain: str) -> None:
    published = OFFICE_HOME[domain]
    assert rs_counts(published["sizes"], OFFICE_HOME_TAIL).tolist() == published["rs"]
    assert ut_counts(published["sizes"], OFFICE_HOME_TAIL).tolist() == published["ut"]


def test_office_home_sums_are_those_of_the_lists() -> None:
    sums = {d: (sum(OFFICE_HOME[d]["rs"]), sum(OFFICE_HOME[d]["ut"])) for d in DOMAINS}
    assert sums == {"Clipart": (1017, 1017), "Product": (1984, 1985), "RealWorld": (1253, 1253)}


@pytest.mark.parametrize(
    ("n", "images"),
    [
        (MNIST_TRAIN, 12_144),
        (MNIST_TEST, 2_181),
        (SVHN_TRAIN, 10_395),
        (USPS_TRAIN, 1_432),
        (USPS_TEST, 390),
    ],
)
def test_digit_sums_are_those_of_the_spec(n: list[int], images: int) -> None:
    assert rs_counts(n, DIGITS_TAIL).sum() == images
    assert ut_counts(n, DIGITS_TAIL).sum() == images


def test_the_usps_exam_has_the_counts_of_the_spec() -> None:
    assert ut_counts(USPS_TEST, DIGITS_TAIL).tolist() == [176, 78, 44, 28, 19, 14, 11, 8, 7, 5]
    assert rs_counts(USPS_TEST, DIGITS_TAIL).tolist() == [5, 7, 8, 11, 14, 19, 28, 44, 78, 176]


@pytest.mark.parametrize(("n", "side"), [(USPS_TRAIN, "source"), (MNIST_TRAIN, "target")])
def test_the_figures_degrees_go_steadily_from_balanced_to_the_tail(
    n: list[int], side: Side
) -> None:
    path = np.array([degree_counts(n, DIGITS_TAIL, d, side) for d in FIGURE])
    assert (path.sum(axis=1) == path[0].sum()).all()
    towards = np.sign(path[-1] - path[0])
    assert (np.diff(path, axis=0) * towards >= 0).all()


# Counts


@steady
@given(st.integers(1, 100), shapes, st.floats(0, 10), st.floats(0, 10))
def test_a_long_tail_is_a_falling_distribution(
    c: int, shape: float, low: float, span: float
) -> None:
    p = long_tail(c, shape, low, low + span)
    assert p.sum() == pytest.approx(1)
    assert (p > 0).all()
    assert (np.diff(p) <= 0).all()


@steady
@given(sizes, shapes)
def test_rs_and_ut_never_take_more_than_a_class_has(n: list[int], shape: float) -> None:
    for counts in (rs_counts(n, tail(n, shape)), ut_counts(n, tail(n, shape))):
        assert (counts >= 0).all()
        assert (counts <= n).all()
        assert counts.sum() <= total(n, tail(n, shape))


@steady
@given(st.integers(2, 30), st.integers(1, 400), shapes)
def test_ut_falls_and_rs_is_its_mirror_when_no_class_runs_out(
    c: int, size: int, shape: float
) -> None:
    n = [size] * c
    ut = ut_counts(n, tail(n, shape))
    assert (np.diff(ut) <= 0).all()
    assert rs_counts(n, tail(n, shape)).tolist() == ut[::-1].tolist()


def test_a_product_that_is_whole_loses_nothing_to_rounding() -> None:
    for c in range(1, 60):
        flat = np.full(c, 1 / c)
        assert ut_counts([7] * c, flat).tolist() == [7] * c


@steady
@given(sizes, st.integers(0, 8000))
def test_balanced_keeps_the_total_and_the_caps_and_is_level_elsewhere(
    n: list[int], images: int
) -> None:
    counts = balanced_counts(n, images)
    assert counts.sum() == min(images, sum(n))
    assert (counts <= n).all()
    free = counts[counts < n]
    if len(free):
        assert free.max() - free.min() <= 1
        assert (np.diff(free) <= 0).all(), "the first classes take the remainder"
        assert counts.max() <= free.min() + 1, "a full class is not above the level"


@steady
@given(sizes, shapes, st.sampled_from(SIDES))
def test_degrees_end_at_balanced_and_at_the_tail(n: list[int], shape: float, side: Side) -> None:
    p = tail(n, shape)
    end = rs_counts(n, p) if side == "source" else ut_counts(n, p)
    assert degree_counts(n, p, 1, side).tolist() == end.tolist()
    assert degree_counts(n, p, 0, side).tolist() == balanced_counts(n, int(end.sum())).tolist()


@steady
@given(sizes, shapes, degrees, st.sampled_from(SIDES))
def test_every_degree_keeps_the_total_and_the_caps(
    n: list[int], shape: float, d: float, side: Side
) -> None:
    p = tail(n, shape)
    counts = degree_counts(n, p, d, side)
    assert counts.sum() == degree_counts(n, p, 1, side).sum()
    assert (counts >= 0).all()
    assert (counts <= n).all()


@steady
@given(roomy, degrees, st.sampled_from(SIDES))
def test_a_degree_is_the_mix_rounded_by_less_than_one(n: list[int], d: float, side: Side) -> None:
    p = tail(n, 100)
    end = degree_counts(n, p, 1, side)
    quota = (1 - d) * end.sum() / len(n) + d * end
    if (quota <= n).all():
        assert (np.abs(degree_counts(n, p, d, side) - quota) < 1).all()


@steady
@given(sizes, shapes, degrees, degrees, st.sampled_from(SIDES))
def test_more_degree_is_nearer_to_the_tail(
    n: list[int], shape: float, d: float, e: float, side: Side
) -> None:
    p = tail(n, shape)
    d, e = sorted((d, e))
    less, more, end = (degree_counts(n, p, x, side) for x in (d, e, 1))
    # Largest remainders may hand one image back and forth between two classes, never more.
    assert (np.abs(more - end) <= np.abs(less - end) + 1).all()


@steady
@given(sizes, st.sampled_from((0.5, 1.0, 3.0, 10.0)), st.integers(0, 1000))
def test_dirichlet_counts_fit_the_domain(n: list[int], strength: float, seed: int) -> None:
    counts = dirichlet_counts(n, strength, seed)
    assert (counts >= 0).all()
    assert (counts <= n).all()
    assert (counts >= np.array(n) - 1).any(), "the limiting class is used up"
    assert counts.tolist() == dirichlet_counts(n, strength, seed).tolist()


def test_a_smaller_dirichlet_strength_shifts_more() -> None:
    far = [
        np.mean([js_distance(dirichlet_counts(USPS_TRAIN, s, i), USPS_TRAIN) for i in range(40)])
        for s in (0.5, 1, 3, 10)
    ]
    assert far == sorted(far, reverse=True)


def test_an_empty_class_stays_empty_under_dirichlet() -> None:
    assert all(dirichlet_counts([50, 0, 50], 0.5, seed)[1] == 0 for seed in range(20))


# Draws


@steady
@given(labels, st.lists(st.floats(0, 1), min_size=5, max_size=5), seeds)
def test_a_draw_is_sorted_without_duplicates_and_has_the_counts(
    y: IntArray, part: list[float], seed: int
) -> None:
    counts = (counts_of(y) * part).astype(int)
    i = draw(y, counts, seed)
    assert (np.diff(i) > 0).all()
    assert counts_of(y[i]).tolist() == counts.tolist()
    assert i.tolist() == draw(y, counts, seed).tolist()


@steady
@given(labels, st.lists(st.floats(0, 1), min_size=10, max_size=10), seeds)
def test_drawing_fewer_draws_among_the_same(y: IntArray, part: list[float], seed: int) -> None:
    a, b = (counts_of(y) * part[:5]).astype(int), (counts_of(y) * part[5:]).astype(int)
    few, many = draw(y, np.minimum(a, b), seed), draw(y, np.maximum(a, b), seed)
    assert set(few) <= set(many)


@steady
@given(labels, seeds)
def test_a_class_is_drawn_without_regard_to_the_others(y: IntArray, seed: int) -> None:
    counts = (counts_of(y) + 1) // 2
    alone = np.where(np.arange(5) == 2, counts, 0)
    merged = np.where(y == 2, 2, 0)  # the same indices of class 2; all others relabelled
    both = draw(y, counts, seed)
    assert both[y[both] == 2].tolist() == draw(merged, alone, seed).tolist()


def test_another_seed_draws_other_images() -> None:
    y = np.repeat(np.arange(5), 200)
    drawn = [set(draw(y, [20] * 5, seed)) for seed in range(30)]
    assert len({frozenset(d) for d in drawn}) == 30
    shared = np.mean([len(drawn[i] & drawn[j]) for i in range(30) for j in range(i)])
    assert shared == pytest.approx(10, abs=1)  # as chance has it: 100 · 100/1000


def test_every_image_is_drawn_equally_often() -> None:
    y = np.zeros(10, dtype=int)
    often = np.mean([np.bincount(draw(y, [3], seed), minlength=10) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(often, 0.3, atol=0.05)  # five standard errors


def test_a_draw_is_the_same_on_every_machine() -> None:
    assert draw(np.arange(40) % 2, [4, 3], 0).tolist() == [0, 4, 22, 29, 33, 34, 35]


@steady
@given(labels, st.lists(st.floats(0, 1), min_size=5, max_size=5), seeds, seeds)
def test_a_hold_out_is_disjoint_and_has_every_class_that_is_left(
    y: IntArray, part: list[float], seed: int, other: int
) -> None:
    counts = (counts_of(y) * part).astype(int)
    taken = draw(y, counts, seed)
    i = hold_out(y, taken, counts, other)
    left = counts_of(y) - counts
    held = counts_of(y[i])
    assert (np.diff(i) > 0).all()
    assert not set(i) & set(taken)
    assert ((held > 0) == ((left > 0) & (counts > 0))).all()


@steady
@given(labels, st.lists(st.integers(0, 9), min_size=5, max_size=5), seeds)
def test_a_hold_out_is_in_proportion_and_as_large_as_fits(
    y: IntArray, counts: list[int], seed: int
) -> None:
    held, has, asked = counts_of(y[hold_out(y, [], counts, seed)]), counts_of(y), np.array(counts)
    used = (has > 0) & (asked > 0)
    share = (
        np.arange(121 * 45)[:, None] * asked // max(1, asked.sum())
    )  # no m beyond fits 120 images
    largest = share[(share <= has)[:, used].all(axis=1)][-1]
    want = np.where(used, np.maximum(1, largest), 0)
    assert held.tolist() == want.tolist()


def test_a_class_with_nothing_left_does_not_limit_the_others() -> None:
    y = np.repeat(np.arange(3), (10, 30, 30))
    taken = draw(y, [10, 10, 10], 0)
    assert counts_of(y[hold_out(y, taken, [10, 10, 10], 0)], 3).tolist() == [0, 20, 20]
    assert hold_out(y, np.arange(70), [10, 10, 10], 0).tolist() == []


# Distance


@steady
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=20))
def test_js_distance_is_symmetric_between_zero_and_one(pairs: list[tuple[int, int]]) -> None:
    p, q = np.array(pairs).T + np.eye(2, len(pairs), dtype=int)  # neither all zero
    assert js_distance(p, p) == 0
    assert js_distance(p, 3 * p) == pytest.approx(0, abs=1e-7)
    assert 0 <= js_distance(p, q) <= 1
    assert js_distance(p, q) == pytest.approx(js_distance(q, p), abs=1e-7)


def test_js_distance_is_in_bits() -> None:
    assert js_distance([1, 0], [0, 1]) == 1
    m = np.array([0.75, 0.25])  # of (1, 0) and (1/2, 1/2)
    js = 0.5 * np.log2(1 / m[0]) + 0.25 * np.log2(0.5 / m[0]) + 0.25 * np.log2(0.5 / m[1])
    assert js_distance([1, 0], [1, 1]) == pytest.approx(np.sqrt(js))


# Mistakes

P3 = long_tail(3, 1, 1, 3)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda: long_tail(0, 1, 1, 10), "at least one class, found 0"),
        (lambda: long_tail(10, 0, 1, 10), "shape > 0"),
        (lambda: long_tail(10, 1, 10, 1), "low <= high"),
        (lambda: total([], P3), "non-empty"),
        (lambda: total([3, 4], P3), "2 class sizes for a tail of 3."),
        (lambda: ut_counts([0, 4, 4], P3), "found 0 and 4"),
        (lambda: rs_counts([4, 4, 0], P3), "found 4 and 0"),
        (lambda: ut_counts([4, -1, 4], P3), "not negative"),
        (lambda: ut_counts([4, 1.5, 4], P3), "whole"),
        (lambda: ut_counts([4, 4, 4], [3, 2, 1]), "sum to one"),
        (lambda: balanced_counts([4, 4], -1), "found -1"),
        (lambda: degree_counts([4, 4, 4], P3, -0.1, "source"), "[0, 1], found -0.1"),
        (lambda: degree_counts([4, 4, 4], P3, 1.1, "target"), "[0, 1], found 1.1"),
        (lambda: degree_counts([4, 4, 4], P3, float("nan"), "target"), "found nan"),
        # type: ignore[arg-type]
        (lambda: degree_counts([4, 4, 4], P3, 0.5, "middle"), "found 'middle'"),
        (lambda: dirichlet_counts([4, 4], 0, 0), "must be positive, found 0"),
        (lambda: dirichlet_counts([0, 0], 1, 0), "All 2 classes are empty"),
        (lambda: draw([0, 0, 1], [3, 1], 0), "Class 0 has 2 images; 3 were asked for"),
        (lambda: draw([0, 0, 2], [1, 1], 0), "from 0 to 1"),
        (lambda: draw([0, 1], [1, 1], -1), "seed"),
        (lambda: hold_out([0, 1], [2], [1, 1], 0), "outside the 2 labels"),
        (lambda: js_distance([1, 1], [1, 1, 1]), "2 and 3 classes"),
        (lambda: js_distance([0, 0], [1, 1]), "not all zero"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence(mistake: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        mistake()
    assert sentence in caught.value.sentence
    assert caught.value.hint
