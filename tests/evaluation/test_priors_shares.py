"""The label distribution that users are told: counted where images look different, and intervals
that hold more."""

from __future__ import annotations

import numpy as np
import pytest

from askew.evaluation.diagnosis import diagnose
from askew.evaluation.outputs import DomainOutputs, Floats
from askew.evaluation.priors import PriorEstimate, target_shares

EVEN = np.full(3, 1 / 3)
Z2 = 1.959964**2


def says(*classes: int) -> DomainOutputs:
    """A network for ten target images and three held-out ones."""
    return DomainOutputs.of(np.eye(3), np.arange(3), 5 * np.eye(3)[list(classes)], EVEN)


def estimated(prior: list[float], *draws: list[float]) -> PriorEstimate:
    return PriorEstimate("bbse", np.array(prior), np.array(draws or [prior, prior]), True)


A = says(0, 0, 0, 0, 0, 0, 1, 1, 1, 1)
B = says(0, 0, 0, 0, 1, 1, 1, 1, 1, 1)
OWN = estimated([0.5, 0.4, 0.1])


def test_where_images_look_different_the_shares_are_what_is_predicted() -> None:
    found = target_shares(A, [B], OWN, alike=False)
    assert found.estimator == "counting"
    np.testing.assert_allclose(found.prior, [0.6, 0.4, 0])
    assert not found.unsure, "counting hangs on no confusion of the source"


def test_where_they_look_alike_the_shares_are_estimated_from_what_is_confused() -> None:
    found = target_shares(A, [B], OWN, alike=True)
    assert found.estimator == "bbse"
    np.testing.assert_allclose(found.prior, OWN.prior)
    assert found.unsure


def test_an_interval_goes_from_what_all_say_to_what_any_says_by_wilsons_ends() -> None:
    """Of ten images both networks agree on four of class 0, and one of them at least names it for
    six."""
    found = target_shares(A, [B], estimated([0.5, 0.5, 0]), alike=False)

    def end(share: float, sign: int) -> float:  # roots of (x - share)² = z² x (1 - x)/n
        b, c = 2 * share + Z2 / 10, share**2
        return float((b + sign * np.sqrt(b**2 - 4 * c * (1 + Z2 / 10))) / (2 * (1 + Z2 / 10)))

    np.testing.assert_allclose(found.low, [end(0.4, -1), end(0.4, -1), 0], atol=1e-12)
    np.testing.assert_allclose(found.high, [end(0.6, 1), end(0.6, 1), end(0, 1)], atol=1e-12)
    assert found.high[2] > 0.2, "ten images without a class do not rule it out"


@pytest.mark.parametrize("alike", [False, True])
def test_an_interval_holds_the_estimate_under_label_shift_too(alike: bool) -> None:
    found = target_shares(
        A, [B], estimated([0.1, 0.1, 0.8], [0.0, 0.0, 1.0], [0.2, 0.2, 0.6]), alike
    )
    assert found.low[0] <= 0.01
    assert found.high[2] >= 0.98
    assert (found.low <= found.prior).all()
    assert (found.prior <= found.high).all()


def world(shift: float, q: list[float], seed: int = 0) -> tuple[DomainOutputs, Floats]:
    """Three Gaussian classes whose target may have moved, and the target's true shares."""
    rng = np.random.default_rng(seed)
    y, yt = rng.choice(3, 600, p=EVEN), rng.choice(3, 600, p=q)
    val, target = (2 * np.eye(3)[one] + rng.normal(size=(600, 3)) for one in (y, yt))
    return DomainOutputs.of(2 * val, y, 2 * (target + shift * np.eye(3)[0]), EVEN), np.bincount(
        yt
    ) / 600


def test_diagnosis_corrects_for_confusion_under_label_shift_alone() -> None:
    alike, truth = world(0.0, [0.7, 0.2, 0.1])
    told = diagnose(alike).target_prior
    counted = np.bincount(alike.target.argmax(axis=1), minlength=3) / 600
    assert told.estimator == "bbse"
    assert np.abs(told.prior - truth).sum() < np.abs(counted - truth).sum() / 2
    apart, _ = world(1.5, [0.7, 0.2, 0.1])
    assert diagnose(apart).target_prior.estimator == "counting"
