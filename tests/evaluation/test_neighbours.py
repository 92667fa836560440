"""Answers that listen to neighbours, held to the formula written out with loops, and to what they
are for."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from askew.evaluation import neighbours
from askew.evaluation.neighbours import NEAREST, STEPS, smooth_over_neighbours
from askew.evaluation.outputs import Floats


def clusters(sizes: list[int], seed: int = 0) -> tuple[Floats, Floats]:
    """Rows around one direction per class, and answers that are sure of it."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.eye(len(sizes) + 2)[y] + 0.1 * rng.normal(size=(len(y), len(sizes) + 2))
    return rows, 0.9 * np.eye(len(sizes))[y] + 0.1 / len(sizes)


def by_loops(answers: Floats, rows: Floats) -> Floats:
    n = len(rows)
    cosine = [[float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b)) for b in rows] for a in rows]
    nearest = [
        sorted((j for j in range(n) if j != i), key=lambda j, i=i: -cosine[i][j])[:NEAREST]
        for i in range(n)
    ]
    mutual = [[j for j in nearest[i] if i in nearest[j]] for i in range(n)]
    agree = [
        np.mean([answers[j] for j in mutual[i]], axis=0) @ answers[i] for i in range(n) if mutual[i]
    ]
    alpha, p = float(np.mean(agree)), answers
    for _ in range(STEPS):
        p = np.array(
            [
                (1 - alpha) * answers[i] + alpha * np.mean([p[j] for j in mutual[i]], axis=0)
                if mutual[i]
                else answers[i]
                for i in range(n)
            ]
        )
    return p


def test_answers_are_those_of_the_formula_written_out() -> None:
    rng = np.random.default_rng(1)
    rows, answers = rng.normal(size=(60, 7)), rng.dirichlet(np.ones(4), size=60)
    assert_allclose(smooth_over_neighbours(answers, rows), by_loops(answers, rows), atol=1e-6)


def test_they_stay_posteriors() -> None:
    rng = np.random.default_rng(2)
    found = smooth_over_neighbours(rng.dirichlet(np.ones(5), size=40), rng.normal(size=(40, 6)))
    assert (found >= 0).all()
    assert_allclose(found.sum(axis=1), 1)


def test_an_image_amidst_another_class_takes_that_class() -> None:
    rows, answers = clusters([30, 30])
    answers[0] = answers[0, ::-1]  # the first image is answered wrongly
    assert answers[0].argmax() == 1
    assert smooth_over_neighbours(answers, rows)[0].argmax() == 0


def test_a_rare_class_is_not_swallowed_by_a_frequent_one() -> None:
    rows, answers = clusters([200, 4])
    assert (smooth_over_neighbours(answers, rows)[200:].argmax(axis=1) == 1).all()


def test_neighbours_that_disagree_hardly_count() -> None:
    rng = np.random.default_rng(3)
    rows, answers = rng.normal(size=(100, 5)), np.eye(20)[rng.integers(20, size=100)]
    assert np.abs(smooth_over_neighbours(answers, rows) - answers).max() < 0.2


@pytest.mark.parametrize("images", [1, 2])
def test_one_or_two_images_have_no_neighbours_to_listen_to(images: int) -> None:
    rows, answers = np.ones((images, 3)), np.full((images, 2), 0.5)
    assert smooth_over_neighbours(answers, rows) is answers


def test_more_images_than_can_be_compared_keep_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(neighbours, "MOST_ROWS", 50)
    rows, answers = clusters([30, 30])
    assert smooth_over_neighbours(answers, rows) is answers


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, answers = clusters([30, 25])
    whole = smooth_over_neighbours(answers, rows)
    monkeypatch.setattr(neighbours, "_CHUNK", 7)
    assert_allclose(smooth_over_neighbours(answers, rows), whole)
