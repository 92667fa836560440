"""Label-free scores are their formulas, and mean what they are said to mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import TAIL, World, noisy_worlds, world

from askew.evaluation.calibration import at_temperature, temperature
from askew.evaluation.outputs import DomainOutputs, softmax
from askew.evaluation.priors import consensus_prior, target_prior
from askew.evaluation.scores import SCORES, ScoreInputs, neighbourhood_densities, score_networks
from askew.evaluation.selection import CHOOSERS, choose

Array = np.ndarray[Any, np.dtype[Any]]
OF_POSTERIOR = ("expected", "prior-information")
"""Scores of the calibrated posterior under the estimated prior."""


@pytest.fixture(scope="module")
def shifted() -> World:
    return world(1500, 1500, apart=2.5, sharp=2.0)


@pytest.fixture(scope="module")
def inputs(shifted: World) -> ScoreInputs:
    return ScoreInputs.of(shifted.outputs, TAIL)


def value(name: str, inputs: ScoreInputs) -> float:
    return SCORES[name].value(inputs)


def scores_alone(outputs: DomainOutputs, prior: Array | None = None) -> dict[str, float]:
    """The scores of a network as it is, beside no other; without a prior, under the one that it
    estimates."""
    inputs = ScoreInputs.of(outputs, target_prior(outputs) if prior is None else prior)
    return {name: value(name, inputs) for name in SCORES}


# The formulas


def test_source_accuracy_is_a_mean_over_classes(shifted: World, inputs: ScoreInputs) -> None:
    outputs = shifted.outputs
    right = outputs.source_val.argmax(axis=1) == outputs.source_val_y
    by_class = [right[outputs.source_val_y == k].mean() for k in range(10)]
    assert value("source", inputs) == pytest.approx(np.mean(by_class))


def test_prior_information_is_written_out(inputs: ScoreInputs) -> None:
    p = inputs.posterior
    entropy = -np.mean([sum(v * np.log(v) for v in row if v > 0) for row in p])
    mean = p.mean(axis=0)
    assert value("prior-information", inputs) == pytest.approx(
        -sum(mean * np.log(mean / TAIL)) - entropy
    )


def test_snd_and_corr_c_are_written_out(inputs: ScoreInputs) -> None:
    p = inputs.target[:120]
    few = inputs.rows(np.arange(5), np.arange(120))
    densities = []
    for i in range(120):
        near = [
            p[i] @ p[j] / np.linalg.norm(p[i]) / np.linalg.norm(p[j]) for j in range(120) if j != i
        ]
        share = np.exp(np.array(near) / 0.05)
        share /= share.sum()
        densities.append(-(share * np.log(share)).sum())
    assert value("snd", few) == pytest.approx(np.mean(densities))
    square = sum(np.outer(row, row) for row in p)
    cosine = (square * np.eye(10)).sum() / np.linalg.norm(square) / np.linalg.norm(np.eye(10))
    assert value("corr-c", few) == pytest.approx(cosine)


def test_snd_of_several_subsets_is_that_of_each_by_itself(inputs: ScoreInputs) -> None:
    rng, val = np.random.default_rng(0), np.arange(5)
    for size in (1, 2, 40):
        subsets = np.array([rng.permutation(len(inputs.target))[:size] for _ in range(3)])
        alone = [value("snd", inputs.rows(val, rows)) for rows in subsets]
        assert neighbourhood_densities(inputs.target, subsets) == pytest.approx(alone, abs=1e-12)


def test_atc_is_the_share_beyond_the_threshold_that_source_accuracy_sets() -> None:
    val = np.log([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    outputs = DomainOutputs.of(
        val,
        [0, 0, 1, 1],
        np.log([[0.95, 0.05], [0.85, 0.15], [0.75, 0.25], [0.2, 0.8]]),
        [0.5, 0.5],
    )
    # Half of the held-out images are right, and half are above 0.8: so are two of the target's, and
    # one at 0.8.
    assert value("atc", ScoreInputs.of(outputs, np.array([0.5, 0.5]))) == 0.75


def test_expected_accuracy_is_the_posterior_s_own_recall(inputs: ScoreInputs) -> None:
    recalls = []
    for k in range(10):
        mine = [
            row[k]
            for row, p in zip(inputs.posterior, inputs.target, strict=True)
            if p.argmax() == k
        ]
        recalls.append(sum(mine) / inputs.posterior[:, k].sum())
    assert value("expected", inputs) == pytest.approx(np.mean(recalls))


def test_agreement_is_with_the_mean_of_all_networks() -> None:
    first = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    second = np.array([[0.8, 0.2], [0.4, 0.6], [0.8, 0.2], [0.4, 0.6]])
    third = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.6, 0.4]])
    networks = score_networks(  # together they predict 0, 0, 0, 1
        [DomainOutputs.of(np.eye(2), [0, 1], np.log(p), [0.5, 0.5]) for p in (first, second, third)]
    )
    assert [network.scores["ensemble"] for network in networks] == [1.0, 0.75, 0.75]


# What they say


def test_confidence_by_class_is_near_the_accuracy_under_label_shift_alone(shifted: World) -> None:
    found = scores_alone(shifted.outputs)
    assert 0.7 < shifted.accuracy < 0.9
    assert found["expected"] == pytest.approx(shifted.accuracy, abs=0.05)


def test_a_network_s_temperature_does_not_move_the_calibrated_scores(shifted: World) -> None:
    cold, hot = (
        scores_alone(
            DomainOutputs.of(k * s.source_val, s.source_val_y, k * s.target, s.training_prior), TAIL
        )
        for s in [shifted.outputs]
        for k in (1.0, 3.0)
    )
    assert abs(cold["snd"] - hot["snd"]) > 0.05
    for name in OF_POSTERIOR:
        assert cold[name] == pytest.approx(hot[name], abs=0.01), name


def test_a_soft_head_has_as_much_of_a_vote_as_a_confident_one() -> None:
    given = [one.outputs for one in noisy_worlds()]
    soft = [
        DomainOutputs.of(k * o.source_val, o.source_val_y, k * o.target, o.training_prior)
        for k, o in zip((1.0, 0.05, 20.0), given, strict=True)
    ]
    plain, changed = score_networks(given), score_networks(soft)
    assert choose(plain) == choose(changed)
    for a, b in zip(plain, changed, strict=True):
        assert b.scores == pytest.approx(a.scores, rel=1e-3, abs=1e-3)
        assert (b.outputs.target.argmax(axis=1) == a.outputs.target.argmax(axis=1)).all()


def test_a_network_that_is_right_on_all_held_out_images_keeps_a_finite_temperature() -> None:
    y = np.arange(30) % 3
    z = 5.0 * np.eye(3)[y]
    t = temperature(DomainOutputs.of(z, y, z, np.full(3, 1 / 3)))
    sure = softmax(z / t).max(axis=1).mean()
    assert sure == pytest.approx(31 / 32, abs=1e-3)


def test_every_score_is_finite_of_hard_cases() -> None:
    """Very sure, a class without held-out images, one target image, fewer images than folds."""
    outputs = DomainOutputs.of(
        1000.0 * np.eye(4)[[0, 1, 1]], [0, 1, 1], [[0.0, 1000.0, 0.0, 0.0]], np.full(4, 0.25)
    )
    assert all(np.isfinite(v) for v in scores_alone(outputs).values())
    assert all(score.title and score.meaning for score in SCORES.values())


# Choice


def test_networks_are_compared_under_one_prior_and_with_their_ensemble() -> None:
    given = [one.outputs for one in noisy_worlds()]
    found = score_networks(given)
    networks = [at_temperature(outputs, temperature(outputs)) for outputs in given]
    prior = consensus_prior(networks)
    ensemble = np.mean([softmax(outputs.target) for outputs in networks], axis=0).argmax(axis=1)
    for scored, outputs in zip(found, networks, strict=True):
        alone = scores_alone(outputs, prior)
        assert (scored.outputs.target == outputs.target).all()
        assert {n: v for n, v in scored.scores.items() if n != "ensemble"} == {
            n: v for n, v in alone.items() if n != "ensemble"
        }
        assert scored.scores["ensemble"] == (outputs.target.argmax(axis=1) == ensemble).mean()
        assert alone["ensemble"] == 1
    assert set(CHOOSERS) <= set(SCORES)


def test_networks_with_different_target_images_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different target images: 600, 500"):
        score_networks([world(n_target=600).outputs, world(n_target=500).outputs])
