"""Calibrated posteriors: the point of greatest likelihood, and Bayes' rule from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import EVEN, RARE, TAIL, world

from askew.evaluation.calibration import SOFTEST, SUREST, calibrate, impose_prior, temperature_for
from askew.evaluation.outputs import DomainOutputs, adjust_logits, softmax
from askew.evaluation.priors import target_prior

Array = np.ndarray[Any, np.dtype[Any]]


def test_calibration_finds_the_temperature_and_the_held_out_source_s_own_prior() -> None:
    """A network twice as sure as it should be, trained on equal classes, of a source in which they
    are 30 to 1."""
    outputs, _, x = world(4000, 10, sharp=2.0)
    calibration = calibrate(outputs)
    assert calibration.scale == pytest.approx(0.5, rel=0.1)
    right = softmax(3.0 * x + np.log(RARE))
    assert np.abs(calibration.posterior(outputs.source_val) - right).mean() < 0.01
    np.testing.assert_allclose(calibration.prior, outputs.source_prior, atol=0.002)


def test_calibration_is_the_point_of_greatest_likelihood_times_a_unit_normal() -> None:
    outputs = world(60, 10, sharp=3.0).outputs
    c, start = (
        outputs.classes,
        np.log((outputs.source_sizes + 0.5) / (60 + 5) / outputs.training_prior),
    )

    def worth(scale: float, extra: Array) -> float:
        p = softmax(scale * outputs.source_val + start + extra)
        return float(
            np.log(p[np.arange(60), outputs.source_val_y]).sum()
            - (np.log(scale) ** 2 + extra @ extra) / 2
        )

    calibration = calibrate(outputs)
    extra = calibration.bias - start
    best, rng = worth(calibration.scale, extra), np.random.default_rng(0)
    for _ in range(200):
        step = 0.05 * rng.normal(size=1 + c)
        assert worth(calibration.scale * np.exp(step[0]), extra + step[1:]) < best + 1e-4


def test_a_posterior_under_another_prior_is_bayes_rule() -> None:
    outputs = world(500, 300).outputs
    calibration = calibrate(outputs)
    wanted = calibration.posterior(outputs.target) * TAIL / calibration.prior
    np.testing.assert_allclose(
        calibration.posterior(outputs.target, TAIL),
        wanted / wanted.sum(axis=1, keepdims=True),
        rtol=1e-9,
    )


def test_calibration_is_finite_for_an_empty_class_and_a_perfect_network() -> None:
    y = np.arange(20) % 9
    outputs = DomainOutputs.of(50.0 * np.eye(10)[y], y, 50.0 * np.eye(10)[[9, 9, 0]], EVEN)
    calibration = calibrate(outputs)
    assert np.isfinite(calibration.bias).all()
    assert calibration.prior.min() > 0
    np.testing.assert_allclose(target_prior(outputs, "em")[[0, 9]], [1 / 3, 2 / 3], atol=0.1)


def test_a_class_that_training_lacked_starts_without_a_bias() -> None:
    """Held-out images of it, and nothing else, decide how probable it is."""
    y = np.arange(40) % 4
    outputs = DomainOutputs.of(
        8.0 * np.eye(4)[y % 3], y, 8.0 * np.eye(4)[[0, 1, 2]], [1 / 3, 1 / 3, 1 / 3, 0.0]
    )
    posterior = calibrate(outputs).posterior(outputs.target, np.full(4, 0.25))
    assert posterior.argmax(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize("accuracy", [0.4, 0.6, 0.9])
def test_probabilities_are_made_as_high_as_predictions_are_right(accuracy: float) -> None:
    z = world(50, 300, EVEN, EVEN).outputs.target
    t = temperature_for(z, accuracy)
    assert softmax(z / t).max(axis=1).mean() == pytest.approx(accuracy, abs=1e-6)
    assert (softmax(z / t).argmax(axis=1) == z.argmax(axis=1)).all()


def test_what_no_temperature_reaches_is_approached() -> None:
    z = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    assert temperature_for(z, 1.0) == SUREST, "an image of equal logits stays undecided"
    assert temperature_for(z, 0.2) == SOFTEST, (
        "less than one class in three is no most probable one"
    )


def test_known_shares_mend_a_network_that_prefers_one_class() -> None:
    rng = np.random.default_rng(0)
    prior, classes = np.array([0.2, 0.3, 0.5]), np.repeat([0, 1, 2], [200, 300, 500])
    sound = np.eye(3)[classes] * 3 + rng.normal(size=(1000, 3))
    biased = sound + np.array([5.0, 0.0, 0.0])
    mended, bias = impose_prior(biased, prior)
    assert (adjust_logits(biased, prior, np.full(3, 1 / 3)).argmax(axis=1) == classes).mean() < 0.4
    assert (mended.argmax(axis=1) == classes).mean() > 0.9
    np.testing.assert_allclose(bias - bias[1], [-5.0, 0.0, 0.0], atol=0.5)
    as_it_is, none = impose_prior(biased, None)
    assert as_it_is is biased
    assert not none.any()
