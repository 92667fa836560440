"""How many target images are right, by how often networks agree."""

from __future__ import annotations

import numpy as np
import pytest

from askew.evaluation.expected_accuracy import (
    accuracy_by_posterior,
    expected_accuracy,
    target_posterior,
)
from askew.evaluation.outputs import DomainOutputs, Floats


def network(answers: list[int], c: int = 3) -> DomainOutputs:
    z = 4.0 * np.eye(c)[answers]
    return DomainOutputs.of(np.eye(c), np.arange(c), z, np.full(c, 1 / c))


def test_expected_accuracy_is_the_agreement_of_pairs_of_networks() -> None:
    a, b, c = [0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 2, 2], [0, 1, 1, 0, 2, 2]
    predicted = np.array([0, 0, 1, 1, 1, 2])
    found = expected_accuracy([network(a), network(b), network(c)], predicted)
    assert found is not None
    pairs = [sum(x[i] == y[i] for x, y in ((a, b), (a, c), (b, c))) / 3 for i in range(6)]
    assert pairs == pytest.approx([1, 1 / 3, 1, 0, 1, 1])
    assert found.overall == pytest.approx(sum(pairs) / 6)
    assert found.per_class_mean == pytest.approx(
        (sum(pairs[:2]) / 2 + sum(pairs[2:5]) / 3 + pairs[5]) / 3
    )
    assert found.networks == 3
    assert "72 % of the target (78 % as a mean over classes)" in found.sentence


def test_the_answers_that_are_compared_are_those_under_a_uniform_prior() -> None:
    one, other = network([0, 1, 2]), network([0, 1, 2])
    seen = np.array([0.98, 0.01, 0.01])
    moved = DomainOutputs.of(
        other.source_val, other.source_val_y, other.target + np.log(seen), seen
    )
    found = expected_accuracy([one, moved], np.array([0, 1, 2]))
    assert found is not None
    assert found.overall == 1


def test_one_network_alone_tells_nothing() -> None:
    assert expected_accuracy([network([0, 1, 2])], np.array([0, 1, 2])) is None
    assert expected_accuracy([], np.array([0, 1, 2])) is None


def test_networks_that_err_as_often_as_they_say_agree_as_often_as_one_is_right() -> None:
    """Answers drawn from a posterior: two draws agree as often as one draw is the label, which is a
    third one."""
    rng, p = np.random.default_rng(0), rng_posterior(4000)
    draws = [[int(rng.choice(3, p=row)) for row in p] for _ in range(3)]
    y = np.array(draws[-1])
    found = expected_accuracy([network(draws[0]), network(draws[1])], np.array(draws[0]))
    assert found is not None
    assert found.overall == pytest.approx((np.array(draws[0]) == y).mean(), abs=0.03)


def rng_posterior(n: int) -> Floats:
    p: Floats = np.random.default_rng(1).dirichlet([0.4, 0.4, 0.4], n)
    return p


# --- by one posterior ---


def outputs_of(p: Floats) -> DomainOutputs:
    """A network whose probabilities for equal shares are these."""
    c = p.shape[1]
    return DomainOutputs.of(np.eye(c), np.arange(c), np.log(p), np.full(c, 1 / c))


def test_a_target_posterior_has_the_shares_of_greatest_likelihood() -> None:
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.3, 0.7]])
    posterior, shares = target_posterior(outputs_of(p))
    first = np.linspace(0.0005, 0.9995, 1000)
    likelihood = [np.log(p @ [a, 1 - a]).sum() for a in first]
    assert shares == pytest.approx(
        [first[np.argmax(likelihood)], 1 - first[np.argmax(likelihood)]], abs=0.02
    )
    wanted = [[pi * a for pi, a in zip(shares, row, strict=True)] for row in p]
    assert posterior == pytest.approx(np.array([[a / (a + b), b / (a + b)] for a, b in wanted]))


def test_a_posterior_tells_how_often_predictions_are_right() -> None:
    posterior = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    found = accuracy_by_posterior(posterior, np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0]))
    assert found.overall == pytest.approx((0.9 + 0.6 + 0.8 + 0.7) / 4)
    assert found.before == pytest.approx((0.9 + 0.4 + 0.8 + 0.3) / 4)
    # Of 2.0 images of either class, 1.5 are found.
    assert found.per_class_mean == pytest.approx((1.5 / 2 + 1.5 / 2) / 2)
    assert found.networks == 1
    assert found.sentence == (
        "Expected accuracy: 75 % (75 % as a mean over classes; without adaptation about 60 %), if "
        "the model describes the target."
    )


def test_a_class_of_less_than_one_expected_image_is_in_no_mean() -> None:
    posterior = np.array([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.2, 0.7, 0.1], [0.0, 0.9, 0.1]])
    found = accuracy_by_posterior(posterior, np.array([0, 0, 1, 1]), np.zeros(4, int))
    assert found.per_class_mean == pytest.approx((1.7 / 1.9 + 1.6 / 1.9) / 2)
