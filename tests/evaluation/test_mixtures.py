"""The target's class mix: three estimators are their formulas, find what is there, and know how sure they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import EVEN, RARE, TAIL, world

from askew.evaluation.mixtures import (
    ESTIMATORS,
    PriorEstimator,
    calibrate,
    consensus_prior,
    em_prior,
    estimate_prior,
    estimate_priors,
    rlls_prior,
    target_prior_of,
)
from askew.evaluation.outputs import DomainOutputs, softmax
from askew.evaluation.priors import simplex_prior

few = settings(derandomize=True, deadline=None, max_examples=12, database=None)
Array = np.ndarray[Any, np.dtype[Any]]

# What was said


def test_said_takes_tensors_of_any_precision() -> None:
    z, y = torch.randn(6, 3).half(), torch.arange(6) % 3
    said = DomainOutputs.of(z, y, z[:4], torch.full((3,), 1 / 3))
    assert said.source_val.dtype == said.target.dtype == said.training_prior.dtype == np.float64
    np.testing.assert_array_equal(said.source_val, z.double().numpy())
    assert (said.classes, said.source_sizes.tolist(), said.source_prior.tolist()) == (3, [2, 2, 2], [1 / 3] * 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source_val_y": [0, 1]}, "shapes do not fit"),
        ({"target": np.zeros((4, 2))}, "shapes do not fit"),
        ({"training_prior": [0.5, 0.5]}, "shapes do not fit"),
        ({"target": np.zeros((0, 3))}, "may be empty"),
        ({"source_val_y": [0, 1, 3]}, "labels from 0 to 3 for 3 classes"),
        ({"target": np.full((4, 3), np.nan)}, "finite"),
        ({"source_features": np.zeros((3, 5))}, "one domain alone"),
    ],
)
def test_said_refuses_what_does_not_fit(change: dict[str, Any], words: str) -> None:
    whole = {
        "source_val": np.eye(3),
        "source_val_y": [0, 1, 2],
        "target": np.zeros((4, 3)),
        "training_prior": np.ones(3) / 3,
    }
    with pytest.raises(ValueError, match=words):
        DomainOutputs.of(**whole | change)


# Calibration


def test_calibration_finds_the_temperature_and_the_held_out_source_s_own_mix() -> None:
    """A network twice as sure as it should be, trained on equal classes, of a source in which they are 30 to 1."""
    said, _, x = world(4000, 10, sharp=2.0)
    fitted = calibrate(said)
    assert fitted.scale == pytest.approx(0.5, rel=0.1)
    right = softmax(3.0 * x + np.log(RARE))
    assert np.abs(fitted.posterior(said.source_val) - right).mean() < 0.01
    np.testing.assert_allclose(fitted.mix, said.source_prior, atol=0.002)


def test_calibration_is_the_point_of_greatest_likelihood_times_a_unit_normal() -> None:
    said = world(60, 10, sharp=3.0).said
    c, start = said.classes, np.log((said.source_sizes + 0.5) / (60 + 5) / said.training_prior)

    def worth(scale: float, extra: Array) -> float:
        p = softmax(scale * said.source_val + start + extra)
        return float(np.log(p[np.arange(60), said.source_val_y]).sum() - (np.log(scale) ** 2 + extra @ extra) / 2)

    fitted = calibrate(said)
    extra = fitted.bias - start
    best, rng = worth(fitted.scale, extra), np.random.default_rng(0)
    for _ in range(200):
        step = 0.05 * rng.normal(size=1 + c)
        assert worth(fitted.scale * np.exp(step[0]), extra + step[1:]) < best + 1e-4


def test_a_posterior_for_another_mix_is_bayes_rule() -> None:
    said = world(500, 300).said
    fitted = calibrate(said)
    plain = fitted.posterior(said.target) * TAIL / fitted.mix
    np.testing.assert_allclose(fitted.posterior(said.target, TAIL), plain / plain.sum(axis=1, keepdims=True), rtol=1e-9)


def test_a_class_without_held_out_images_and_a_perfect_network_leave_calibration_finite() -> None:
    y = np.arange(20) % 9
    said = DomainOutputs.of(50.0 * np.eye(10)[y], y, 50.0 * np.eye(10)[[9, 9, 0]], EVEN)
    fitted = calibrate(said)
    assert np.isfinite(fitted.bias).all()
    assert fitted.mix.min() > 0
    np.testing.assert_allclose(target_prior_of(said, "em")[[0, 9]], [1 / 3, 2 / 3], atol=0.1)


# The formulas


@few
@given(st.integers(2, 6), st.integers(0, 10**6))
def test_em_reaches_the_greatest_likelihood(c: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    posterior, mix = rng.dirichlet(np.full(c, 0.5), size=80), rng.dirichlet(np.full(c, 3.0))
    found = em_prior(posterior, mix, close=1e-9)

    def likelihood(q: Array) -> float:
        return float(np.log((posterior * q / mix).sum(axis=1)).mean())

    assert found.sum() == pytest.approx(1)
    best = likelihood(found)
    others = np.vstack([0.98 * found + 0.02 * np.eye(c), rng.dirichlet(np.ones(c), size=100)])
    assert all(likelihood(q) <= best + 1e-6 for q in others)


def test_em_of_weighted_images_is_em_of_repeated_ones() -> None:
    rng = np.random.default_rng(0)
    posterior, mix, times = rng.dirichlet(np.ones(4), size=30), np.full(4, 0.25), rng.integers(0, 4, size=30)
    np.testing.assert_allclose(
        em_prior(posterior, mix, times / times.sum()), em_prior(np.repeat(posterior, times, axis=0), mix), atol=1e-5
    )


@few
@given(st.integers(2, 6), st.integers(20, 5000), st.integers(0, 10**6))
def test_rlls_minimises_its_two_norms(c: int, images: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confusion = 0.6 * np.eye(c) + 0.4 * rng.dirichlet(np.ones(c), size=c).T
    mix, said = rng.dirichlet(np.full(c, 3.0)), rng.dirichlet(np.ones(c))
    deviation = np.log(2 * c / 0.05) / images
    rho = 0.01 * 3 * (2 * deviation / 3 + (2 * deviation) ** 0.5)

    def worth(w: Array) -> float:
        return float(np.linalg.norm(confusion @ np.diag(mix) @ w - said) + rho * np.linalg.norm(w - 1))

    q = rlls_prior(confusion, said, mix, images)
    # Shares sum to one and ratios need not: the best multiple of the ratios is the one that was found.
    scales = np.linspace(0.5, 1.5, 2001)
    best = min(worth(scale * q / mix) for scale in scales)
    others = [
        np.maximum(0, scale * q / mix + 0.02 * rng.normal(size=c)) for scale in (0.97, 1.0, 1.03) for _ in range(50)
    ]
    assert all(worth(w) >= best - 1e-3 for w in [*others, np.ones(c)])


def test_rlls_of_many_images_is_the_simplex_and_of_few_leans_to_the_source() -> None:
    """A norm that is not squared gives way altogether once its weight is below what the other can pay."""
    rng = np.random.default_rng(1)
    confusion = 0.7 * np.eye(10) + 0.3 * rng.dirichlet(np.ones(10), size=10).T
    said = confusion @ TAIL
    many, few_images, fewest = (rlls_prior(confusion, said, RARE, n) for n in (1000, 100, 30))
    np.testing.assert_allclose(many, simplex_prior(confusion, said), atol=1e-4)
    assert np.abs(fewest - RARE).sum() < np.abs(few_images - RARE).sum() - 0.3 < np.abs(many - RARE).sum() - 0.4


# What is found


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_mix_of_a_shifted_target_is_found(estimator: PriorEstimator) -> None:
    said, y, _ = world(4000, 4000, sharp=2.0)
    found = target_prior_of(said, estimator)
    assert np.abs(found - np.bincount(y) / len(y)).sum() < 0.12
    assert np.abs(said.source_prior - np.bincount(y) / len(y)).sum() > 1


def test_em_takes_account_of_the_mix_that_the_network_has_seen() -> None:
    """The same images by networks trained on different mixes: calibration undoes what the sampler did."""
    mixes = [target_prior_of(world(3000, 3000, seen=seen).said, "em") for seen in (EVEN, RARE, TAIL)]
    assert max(np.abs(mix - mixes[0]).max() for mix in mixes) < 0.02


def test_networks_that_collapsed_do_not_rule_the_consensus() -> None:
    good, also, bad = (world(500, 500, seed=s).said for s in range(3))
    collapsed = DomainOutputs.of(bad.source_val, bad.source_val_y, bad.target + 50 * np.eye(10)[5], bad.training_prior)
    found = consensus_prior([good, also, collapsed])
    assert found.sum() == pytest.approx(1)
    assert target_prior_of(collapsed)[5] > 0.9
    assert np.abs(found - TAIL).sum() < 0.25


# How sure


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_intervals_cover_the_truth_about_as_often_as_they_say(estimator: PriorEstimator) -> None:
    covered = []
    for seed in range(16):
        estimate = estimate_prior(world(400, 400, q=EVEN, seed=seed).said, estimator, resamples=50)
        covered.append(((estimate.low <= EVEN + 1e-12) & (estimate.high >= EVEN - 1e-12)).mean())
    assert 0.87 < np.mean(covered) <= 1, np.mean(covered)


def test_the_one_step_bootstrap_of_em_spreads_as_one_that_calibrates_again() -> None:
    said = world(300, 300, sharp=2.0, q=EVEN).said
    rng = np.random.default_rng(0)
    again = []
    for _ in range(60):
        rows = [np.flatnonzero(said.source_val_y == k) for k in range(10)]
        val = np.concatenate([rng.choice(own, len(own)) for own in rows if len(own)])
        target = said.target[rng.choice(300, 300)]
        again.append(
            target_prior_of(
                DomainOutputs.of(said.source_val[val], said.source_val_y[val], target, said.training_prior), "em"
            )
        )
    spread, honest = estimate_prior(said, "em").draws.std(axis=0), np.std(again, axis=0)
    assert 0.75 < spread.mean() / honest.mean() < 1.33


def test_estimates_are_seeded_and_plain_values() -> None:
    said = world().said
    first, second, other = (estimate_priors(said, resamples=20, seed=s) for s in (0, 0, 1))
    assert list(first) == list(ESTIMATORS)
    for name, estimate in first.items():
        np.testing.assert_array_equal(estimate.draws, second[name].draws)
        assert not np.array_equal(estimate.draws, other[name].draws)
        record = json.loads(json.dumps(estimate.as_dict()))
        assert record["estimator"] == name
        assert not record["unsure"]
        assert len(record["mix"]) == len(record["low"]) == len(record["high"]) == 10


def test_a_network_that_cannot_tell_classes_apart_is_unsure() -> None:
    said = world().said
    blind = said.source_val.copy()
    blind[:, 3] = blind[:, 8] - 1
    assert estimate_prior(
        DomainOutputs.of(blind, said.source_val_y, said.target, said.training_prior), "bbse", resamples=5
    ).unsure
    assert not estimate_prior(said, "bbse", resamples=5).unsure
