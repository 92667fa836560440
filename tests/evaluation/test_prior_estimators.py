"""Estimates of the target prior: three estimators are their formulas, near the truth, and know
their uncertainty."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import EVEN, RARE, TAIL, world

from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.prior_estimators import (
    ESTIMATORS,
    PriorEstimator,
    consensus_prior,
    em_prior,
    estimate_prior,
    estimate_priors,
    rlls_prior,
    simplex_prior,
    target_prior,
)

few = settings(derandomize=True, deadline=None, max_examples=12, database=None)
Array = np.ndarray[Any, np.dtype[Any]]

# The formulas


@few
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_em_reaches_the_greatest_likelihood(c: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    posterior, prior = rng.dirichlet(np.full(c, 0.5), size=80), rng.dirichlet(np.full(c, 3.0))
    found = em_prior(posterior, prior, close=1e-9)

    def likelihood(q: Array) -> float:
        return float(np.log((posterior * q / prior).sum(axis=1)).mean())

    assert found.sum() == pytest.approx(1)
    best = likelihood(found)
    others = np.vstack([0.98 * found + 0.02 * np.eye(c), rng.dirichlet(np.ones(c), size=100)])
    assert all(likelihood(q) <= best + 1e-6 for q in others)


def test_em_of_weighted_images_is_em_of_repeated_ones() -> None:
    rng = np.random.default_rng(0)
    posterior, prior, times = (
        rng.dirichlet(np.ones(4), size=30),
        np.full(4, 0.25),
        rng.integers(0, 4, size=30),
    )
    np.testing.assert_allclose(
        em_prior(posterior, prior, times / times.sum()),
        em_prior(np.repeat(posterior, times, axis=0), prior),
        atol=1e-5,
    )


@few
@given(st.integers(2, 6), st.integers(20, 5000), st.integers(0, 10**6))
def test_rlls_minimises_its_two_norms(c: int, images: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confusion = 0.6 * np.eye(c) + 0.4 * rng.dirichlet(np.ones(c), size=c).T
    prior, predicted = rng.dirichlet(np.full(c, 3.0)), rng.dirichlet(np.ones(c))
    deviation = np.log(2 * c / 0.05) / images
    rho = 0.01 * 3 * (2 * deviation / 3 + (2 * deviation) ** 0.5)

    def worth(w: Array) -> float:
        return float(
            np.linalg.norm(confusion @ np.diag(prior) @ w - predicted) + rho * np.linalg.norm(w - 1)
        )

    q = rlls_prior(confusion, predicted, prior, images)
    # Shares sum to one and ratios need not: the best multiple of the ratios is the one that was
    # found.
    scales = np.linspace(0.5, 1.5, 2001)
    best = min(worth(scale * q / prior) for scale in scales)
    others = [
        np.maximum(0, scale * q / prior + 0.02 * rng.normal(size=c))
        for scale in (0.97, 1.0, 1.03)
        for _ in range(50)
    ]
    assert all(worth(w) >= best - 1e-3 for w in [*others, np.ones(c)])


def test_rlls_of_many_images_is_the_simplex_and_of_few_leans_to_the_source() -> None:
    """A norm that is not squared gives way altogether once its weight is below what the other can
    pay."""
    rng = np.random.default_rng(1)
    confusion = 0.7 * np.eye(10) + 0.3 * rng.dirichlet(np.ones(10), size=10).T
    predicted = confusion @ TAIL
    many, few_images, fewest = (rlls_prior(confusion, predicted, RARE, n) for n in (1000, 100, 30))
    np.testing.assert_allclose(many, simplex_prior(confusion, predicted), atol=1e-4)
    assert (
        np.abs(fewest - RARE).sum()
        < np.abs(few_images - RARE).sum() - 0.3
        < np.abs(many - RARE).sum() - 0.4
    )


# Accuracy


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_prior_of_a_shifted_target_is_found(estimator: PriorEstimator) -> None:
    outputs, y, _ = world(4000, 4000, sharp=2.0)
    found = target_prior(outputs, estimator)
    assert np.abs(found - np.bincount(y) / len(y)).sum() < 0.12
    assert np.abs(outputs.source_prior - np.bincount(y) / len(y)).sum() > 1


def test_em_takes_account_of_the_prior_that_the_network_was_trained_on() -> None:
    """The same images by networks trained on different priors: calibration undoes what the sampler
    did."""
    priors = [
        target_prior(world(3000, 3000, seen=seen).outputs, "em") for seen in (EVEN, RARE, TAIL)
    ]
    assert max(np.abs(prior - priors[0]).max() for prior in priors) < 0.02


def test_networks_that_collapsed_do_not_move_the_consensus() -> None:
    good, also, bad = (world(500, 500, seed=s).outputs for s in range(3))
    collapsed = DomainOutputs.of(
        bad.source_val, bad.source_val_y, bad.target + 50 * np.eye(10)[5], bad.training_prior
    )
    found = consensus_prior([good, also, collapsed])
    assert found.sum() == pytest.approx(1)
    assert target_prior(collapsed)[5] > 0.9
    assert np.abs(found - TAIL).sum() < 0.25


# Intervals


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_intervals_cover_the_truth_about_as_often_as_they_say(estimator: PriorEstimator) -> None:
    covered = []
    for seed in range(16):
        estimate = estimate_prior(
            world(400, 400, q=EVEN, seed=seed).outputs, estimator, resamples=50
        )
        covered.append(((estimate.low <= EVEN + 1e-12) & (estimate.high >= EVEN - 1e-12)).mean())
    assert 0.87 < np.mean(covered) <= 1, np.mean(covered)


def test_the_one_step_bootstrap_of_em_spreads_as_one_that_calibrates_again() -> None:
    outputs = world(300, 300, sharp=2.0, q=EVEN).outputs
    rng = np.random.default_rng(0)
    again = []
    for _ in range(60):
        rows = [np.flatnonzero(outputs.source_val_y == k) for k in range(10)]
        val = np.concatenate([rng.choice(own, len(own)) for own in rows if len(own)])
        target = outputs.target[rng.choice(300, 300)]
        again.append(
            target_prior(
                DomainOutputs.of(
                    outputs.source_val[val],
                    outputs.source_val_y[val],
                    target,
                    outputs.training_prior,
                ),
                "em",
            )
        )
    spread, honest = (
        estimate_prior(outputs, "em", resamples=200).draws.std(axis=0),
        np.std(again, axis=0),
    )
    assert 0.75 < spread.mean() / honest.mean() < 1.33


def test_estimates_are_seeded_and_plain_values() -> None:
    outputs = world().outputs
    first, second, other = (estimate_priors(outputs, resamples=20, seed=s) for s in (0, 0, 1))
    assert list(first) == list(ESTIMATORS)
    for name, estimate in first.items():
        np.testing.assert_array_equal(estimate.draws, second[name].draws)
        assert not np.array_equal(estimate.draws, other[name].draws)
        record = json.loads(json.dumps(estimate.as_dict()))
        assert record["estimator"] == name
        assert not record["unsure"]
        assert len(record["shares"]) == len(record["low"]) == len(record["high"]) == 10


def test_a_network_that_cannot_tell_classes_apart_is_unsure() -> None:
    outputs = world().outputs
    blind = outputs.source_val.copy()
    blind[:, 3] = blind[:, 8] - 1
    assert estimate_prior(
        DomainOutputs.of(blind, outputs.source_val_y, outputs.target, outputs.training_prior),
        "bbse",
        resamples=5,
    ).unsure
    assert not estimate_prior(outputs, "bbse", resamples=5).unsure
