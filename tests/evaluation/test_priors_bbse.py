"""Black-box shift estimation finds the target prior, and warns when it cannot."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from askew.data.label_shift import DIGITS_TAIL
from askew.evaluation.priors import (
    PredictionRates,
    Solver,
    UnsurePriorWarning,
    bbse_prior,
    confusion_by_class,
    ridge_prior,
    simplex_prior,
)

steady = settings(derandomize=True, deadline=None, max_examples=60, database=None)
Floats = np.ndarray[Any, np.dtype[np.float64]]
TAIL, RARE = np.array(DIGITS_TAIL), np.array(DIGITS_TAIL)[::-1]
"""Priors of target and source under RS-UT: what is common in one is rare in the other, 30 to 1."""


@st.composite
def shifts(draw: st.DrawFn) -> tuple[Floats, Floats]:
    """Columns C(ŷ|y) of a classifier that is not blind, and a target prior in which classes may be
    missing."""
    c = draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    confusion = draw(st.floats(0, 0.9)) * rng.dirichlet(np.ones(c), size=c).T
    confusion += np.eye(c) * (1 - confusion.sum(axis=0))
    assume(np.linalg.svd(confusion, compute_uv=False)[-1] > 0.05)
    prior = rng.dirichlet(np.full(c, draw(st.sampled_from([0.2, 1.0, 5.0]))))
    return confusion, prior


def sure(y: Any) -> Tensor:
    """Logits of a classifier that predicts y, of ten classes."""
    return 20.0 * torch.eye(10)[torch.as_tensor(np.asarray(y))]


# Predictions


def test_a_soft_prediction_is_the_softmax_and_a_hard_one_the_most_probable_class() -> None:
    z, y = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.5, 0.4]]), torch.tensor([0, 1])
    e = np.exp(z.double().numpy())
    soft, hard = (PredictionRates.of(z, y, z, soft=s) for s in (True, False))
    np.testing.assert_allclose(soft.confusion[:, :2].T, e / e.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(soft.target, (e / e.sum(axis=1, keepdims=True)).mean(axis=0))
    assert (hard.confusion.tolist(), hard.target.tolist()) == (np.eye(3).tolist(), [0.5, 0.5, 0])
    assert (hard.sizes.tolist(), hard.images) == ([1, 1, 0], 2)


def test_confusion_takes_a_class_without_images_as_recognised() -> None:
    predicted = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.2, 0.3, 0.5]])
    found = confusion_by_class(predicted, np.array([0, 0, 2]))
    assert found.tolist() == [[0.5, 0, 0.2], [0.5, 1, 0.3], [0, 0, 0.5]]


# Estimates


@steady
@given(shifts())
def test_the_simplex_recovers_any_prior_from_an_exact_confusion_matrix(
    shift: tuple[Floats, Floats],
) -> None:
    confusion, prior = shift
    np.testing.assert_allclose(simplex_prior(confusion, confusion @ prior), prior, atol=1e-6)


@steady
@given(shifts(), st.integers(0, 10**6))
def test_the_simplex_finds_the_nearest_prior_where_none_fits(
    shift: tuple[Floats, Floats], seed: int
) -> None:
    confusion, _ = shift
    rng = np.random.default_rng(seed)
    c = len(confusion)
    predicted = rng.dirichlet(np.full(c, 0.3))
    found = simplex_prior(confusion, predicted)
    assert found.sum() == pytest.approx(1)
    assert (found >= 0).all()
    distance = ((predicted - confusion @ found) ** 2).sum()
    near = np.vstack([0.99 * found + 0.01 * np.eye(c), rng.dirichlet(np.ones(c), size=50)])
    assert all(distance <= ((predicted - confusion @ other) ** 2).sum() + 1e-7 for other in near)


@steady
@given(shifts())
def test_the_target_prior_is_recovered_from_logits(shift: tuple[Floats, Floats]) -> None:
    """One held-out image per class, whose softmax is its column, and one target image that looks
    like all of them."""
    confusion, prior = (torch.from_numpy(v) for v in shift)
    held_out, target = (
        confusion.T.clamp(min=1e-30).log(),
        (confusion @ prior)[None].clamp(min=1e-30).log(),
    )
    found = bbse_prior(held_out, torch.arange(len(prior)), target, soft=True)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, prior, atol=1e-5)


def classified(y: Floats, confusion: Floats, rng: np.random.Generator) -> Floats:
    """What a classifier of this confusion predicts for images of classes y."""
    return np.array([rng.choice(len(confusion), p=confusion[:, k]) for k in y])


@pytest.mark.parametrize("soft", [False, True])
def test_a_sampled_target_s_prior_is_found_where_counting_predictions_goes_wrong(
    soft: bool,
) -> None:
    rng = np.random.default_rng(0)
    confusion = 0.7 * np.eye(10) + 0.3 * rng.dirichlet(np.full(10, 0.3), size=10).T
    val_y, y = rng.choice(10, 2000, p=RARE), rng.choice(10, 2000, p=TAIL)
    held_out, target = sure(classified(val_y, confusion, rng)), sure(classified(y, confusion, rng))
    found = bbse_prior(held_out, torch.from_numpy(val_y), target, soft=soft).numpy()
    counted = target.argmax(dim=1).bincount(minlength=10).numpy() / len(target)
    assert np.abs(found - TAIL).sum() < 0.1 < 0.2 < np.abs(counted - TAIL).sum()


def test_hard_and_soft_predictions_differ() -> None:
    """Unsure, but always right: hard predictions count the target as it is, soft ones need the
    confusion for it."""
    z, y = torch.eye(3).repeat(20, 1), torch.arange(60) % 3
    target = torch.eye(3)[[0] * 6 + [1] * 3 + [2]]
    for soft in (False, True):
        np.testing.assert_allclose(bbse_prior(z, y, target, soft=soft), [0.6, 0.3, 0.1], atol=1e-5)
    mistaken = torch.cat(
        [z[:-1], 5 * torch.eye(3)[:1]]
    )  # one image of class 2, taken for 0 without a doubt
    hard, soft = (bbse_prior(mistaken, y, target, soft=s).numpy() for s in (False, True))
    confusion = np.array([[1, 0, 1 / 20], [0, 1, 0], [0, 0, 19 / 20]])
    np.testing.assert_allclose(hard, np.linalg.solve(confusion, [0.6, 0.3, 0.1]), atol=1e-5)
    assert np.abs(hard - soft).max() > 1e-3


def test_a_class_without_a_held_out_image_is_found_if_it_is_recognised() -> None:
    found = bbse_prior(sure([0, 1, 2]), torch.tensor([0, 1, 2]), sure([0, 0, 1, 3]))
    np.testing.assert_allclose(found, [0.5, 0.25, 0, 0.25, 0, 0, 0, 0, 0, 0], atol=1e-5)


# The published ridge


@steady
@given(shifts(), st.integers(1, 5000), st.integers(0, 10**6))
def test_the_ridge_is_its_formula_of_the_joint_matrix(
    shift: tuple[Floats, Floats], images: int, seed: int
) -> None:
    """w = argmin ‖μ − Jw‖² + λ‖w‖², by least squares; what is negative counts as nothing; shares
    sum to one."""
    confusion, prior = shift
    rng = np.random.default_rng(seed)
    p, predicted = rng.dirichlet(np.ones(len(prior))), rng.dirichlet(np.ones(len(prior)))
    rows = np.vstack([confusion @ np.diag(p), np.eye(len(p)) / images**0.5])
    w = np.linalg.lstsq(rows, np.append(predicted, np.zeros(len(p))), rcond=None)[0]
    q = np.clip(w, 0, None) * p
    np.testing.assert_allclose(ridge_prior(confusion, predicted, p, images), q / q.sum(), atol=1e-8)


def test_the_ridge_shrinks_a_ratio_of_30_to_7_even_for_a_perfect_classifier() -> None:
    """Of w = p·q/(p² + 1/n), at 1,432 images; the shares that are made of it keep how classes
    compare."""
    true, w = TAIL / RARE, RARE * TAIL / (RARE**2 + 1 / 1432)
    assert (true[0], w[0]) == pytest.approx((30.25, 7.23), abs=0.01)
    found = ridge_prior(np.eye(10), TAIL, RARE, 1432) / RARE
    np.testing.assert_allclose(found / found[-1], w / w[-1])
    assert w[-1] == pytest.approx(true[-1], rel=0.01), (
        "a class that is common in the source is not shrunk"
    )
    np.testing.assert_allclose(simplex_prior(np.eye(10), TAIL) / RARE, true, rtol=1e-6)


def test_the_ridge_takes_the_held_out_images_prior_and_the_fewer_images() -> None:
    counts = np.array([40, 4, 20, 10, 8, 6, 4, 4, 2, 2])
    y = np.repeat(np.arange(10), counts)
    for target, n in ((sure([1] * 30 + [0] * 30), 60), (sure([1] * 300 + [0] * 300), 100)):
        found = bbse_prior(sure(y), torch.from_numpy(y), target, solver="ridge")
        want = ridge_prior(np.eye(10), np.array([0.5, 0.5] + [0.0] * 8), counts / 100, n)
        np.testing.assert_allclose(found, want, atol=1e-6)


def test_the_ridge_of_a_target_that_contradicts_the_source_is_the_source_s_prior() -> None:
    prior = np.array([0.5, 0.5])
    assert ridge_prior(np.eye(2), np.zeros(2), prior, 10) is prior


# Warnings


@pytest.mark.parametrize("estimator", ["simplex", "ridge"])
def test_classes_that_are_alike_to_the_classifier_are_warned_about(estimator: Solver) -> None:
    y = torch.arange(40) % 10
    alike = torch.where(y == 3, 8, y)
    with pytest.warns(
        UnsurePriorWarning, match=r"smallest singular value .*cannot tell some classes apart"
    ):
        found = bbse_prior(sure(alike), y, sure(alike), solver=estimator)
    assert found.sum().item() == pytest.approx(1)
    assert (found[:3] - 0.1).abs().max() < 0.08


def test_a_classifier_that_errs_but_tells_all_classes_apart_is_not_warned_about() -> None:
    y = torch.arange(100) % 10
    often = torch.where(torch.arange(100) < 40, (y + 1) % 10, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bbse_prior(sure(often), y, sure(often))
