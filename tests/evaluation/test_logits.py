"""Logits under another class prior."""

from __future__ import annotations

import numpy as np
import pytest

from askew.evaluation.logits import ABSENT, adjust_logits, decide, floor_prior, prior_bias, softmax


def test_adjusting_logits_is_bayes_rule() -> None:
    """Two classes and three kinds of image, of which p(x|y) is known."""
    likelihood = np.array([[0.6, 0.3, 0.1], [0.1, 0.2, 0.7]])  # class, kind
    p, q = np.array([0.8, 0.2]), np.array([0.3, 0.7])
    posterior = [prior[:, None] * likelihood / (prior @ likelihood) for prior in (p, q)]
    logits = np.log(posterior[0]).T + 3.0  # an offset of all logits changes nothing
    np.testing.assert_allclose(softmax(adjust_logits(logits, q, p)), posterior[1].T)


def test_adjusting_to_the_prior_of_training_changes_nothing() -> None:
    z = np.random.default_rng(0).normal(size=(5, 4))
    for prior in ([0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]):
        np.testing.assert_array_equal(adjust_logits(z, np.array(prior), np.array(prior)), z)


def test_a_prior_of_zero_rules_no_class_out_for_good() -> None:
    shift = adjust_logits(np.zeros((1, 2)), np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    np.testing.assert_allclose(shift, np.log([[2.0, ABSENT]]))


@pytest.mark.parametrize("share", [0.0, 1e-9, 1e-5, 0.99 * ABSENT / 4])
def test_a_class_that_was_absent_from_training_keeps_its_logit(share: float) -> None:
    training = np.array([1 - share, 1.0, 1.0, share]) / np.array([3, 3, 3, 1])
    for prior in (np.full(4, 0.25), np.array([0.0, 0.0, 0.0, 1.0])):
        assert adjust_logits(np.zeros(4), prior, training)[3] == 0


def test_a_rare_class_of_training_is_weighed_up() -> None:
    training = np.array([0.99, 0.01])
    np.testing.assert_allclose(
        adjust_logits(np.zeros(2), np.array([0.5, 0.5]), training), np.log([0.5 / 0.99, 50])
    )


def test_a_floored_prior_has_no_share_below_a_thousandth_of_an_even_one() -> None:
    np.testing.assert_allclose(
        floor_prior(np.array([0.999, 0.001, 0.0, 0.0])), [0.999, 0.001, 2.5e-4, 2.5e-4]
    )


@pytest.mark.parametrize(
    "prior", [[0.2, 0.3, 0.5], [0.9, 0.05, 0.05], [0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]
)
def test_a_bias_gives_the_classes_just_their_known_shares(prior: list[float]) -> None:
    logits = 3 * np.random.default_rng(0).normal(size=(200, 3)) + np.array([4.0, 0.0, -2.0])
    bias = prior_bias(logits, np.array(prior))
    np.testing.assert_allclose(softmax(logits + bias).mean(axis=0), prior, atol=1e-3)
    assert abs(bias.sum()) < 1e-9
    assert np.isfinite(bias).all()


def test_known_shares_mend_a_network_that_prefers_one_class() -> None:
    rng = np.random.default_rng(0)
    prior, classes = np.array([0.2, 0.3, 0.5]), np.repeat([0, 1, 2], [200, 300, 500])
    sound = np.eye(3)[classes] * 3 + rng.normal(size=(1000, 3))
    biased = sound + np.array([5.0, 0.0, 0.0])
    mended, bias = decide(biased, prior)
    assert (adjust_logits(biased, prior, np.full(3, 1 / 3)).argmax(axis=1) == classes).mean() < 0.4
    assert (mended.argmax(axis=1) == classes).mean() > 0.9
    np.testing.assert_allclose(bias - bias[1], [-5.0, 0.0, 0.0], atol=0.5)
    as_it_is, none = decide(biased, None)
    assert as_it_is is biased
    assert not none.any()
