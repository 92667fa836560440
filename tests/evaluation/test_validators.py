"""Label-free scores are their formulas, and say what they are said to say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import EVEN, RARE, TAIL, World, world

from askew.evaluation.mixtures import consensus_prior, target_prior_of
from askew.evaluation.outputs import DomainOutputs, softmax
from askew.evaluation.validators import CHOOSERS, ENSEMBLE, SCORES, Reading, agreement, choose, score_all, scores

Array = np.ndarray[Any, np.dtype[Any]]
BY_CLASS = ("atc-class", "expected", "transport", "prior-information")
"""Scores of the calibrated posterior under the estimated mix."""


@pytest.fixture(scope="module")
def shifted() -> World:
    return world(1500, 1500, apart=2.5, sharp=2.0)


@pytest.fixture(scope="module")
def reading(shifted: World) -> Reading:
    return Reading.of(shifted.said, TAIL)


def value(name: str, reading: Reading) -> float:
    return SCORES[name].value(reading)


# The formulas


def test_source_accuracy_is_a_mean_over_classes(shifted: World, reading: Reading) -> None:
    said = shifted.said
    right = said.source_val.argmax(axis=1) == said.source_val_y
    assert value("source", reading) == pytest.approx(np.mean([right[said.source_val_y == k].mean() for k in range(10)]))


def test_entropy_information_and_its_prior_aware_form_are_written_out(reading: Reading) -> None:
    p, post = reading.target, reading.posterior
    entropy = -np.mean([sum(v * np.log(v) for v in row if v > 0) for row in p])
    mean = p.mean(axis=0)
    assert value("entropy", reading) == pytest.approx(-entropy)
    assert value("information", reading) == pytest.approx(-sum(mean * np.log(mean)) - entropy)
    mean, entropy = post.mean(axis=0), -np.mean([sum(v * np.log(v) for v in row if v > 0) for row in post])
    assert value("prior-information", reading) == pytest.approx(-sum(mean * np.log(mean / TAIL)) - entropy)


def test_bnm_snd_and_corr_c_are_written_out(reading: Reading) -> None:
    p = reading.target[:120]
    few = reading.rows(np.arange(5), np.arange(120))
    assert value("bnm", few) == pytest.approx(np.linalg.norm(p, ord="nuc") / (120 * 10) ** 0.5)
    densities = []
    for i in range(120):
        near = [p[i] @ p[j] / np.linalg.norm(p[i]) / np.linalg.norm(p[j]) for j in range(120) if j != i]
        share = np.exp(np.array(near) / 0.05)
        share /= share.sum()
        densities.append(-(share * np.log(share)).sum())
    assert value("snd", few) == pytest.approx(np.mean(densities))
    square = sum(np.outer(row, row) for row in p)
    cosine = (square * np.eye(10)).sum() / np.linalg.norm(square) / np.linalg.norm(np.eye(10))
    assert value("corr-c", few) == pytest.approx(cosine)


def test_atc_is_the_share_beyond_the_threshold_that_source_accuracy_sets() -> None:
    val = np.log([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    said = DomainOutputs.of(
        val, [0, 0, 1, 1], np.log([[0.95, 0.05], [0.85, 0.15], [0.75, 0.25], [0.2, 0.8]]), [0.5, 0.5]
    )
    # Half of the held-out images are right, and half are above 0.8: so are two of the target's, and one at 0.8.
    assert value("atc", Reading.of(said, np.array([0.5, 0.5]))) == 0.75


def test_expected_accuracy_is_the_posterior_s_own_recall(reading: Reading) -> None:
    recalls = []
    for k in range(10):
        mine = [row[k] for row, p in zip(reading.posterior, reading.target, strict=True) if p.argmax() == k]
        recalls.append(sum(mine) / reading.posterior[:, k].sum())
    assert value("expected", reading) == pytest.approx(np.mean(recalls))


def test_transport_is_the_cheapest_by_linear_programming(reading: Reading) -> None:
    from scipy.optimize import linprog

    n = 40
    few = reading.rows(np.arange(5), np.arange(n))
    sizes = np.array([18, 8, 4, 3, 2, 1, 1, 1, 1, 1])
    mixed = Reading(**{**vars(few), "mix": sizes / n})
    p = few.posterior
    rows, columns = np.kron(np.eye(n), np.ones(10)), np.kron(np.ones(n), np.eye(10))
    plan = linprog(1 - p.ravel(), np.empty((0, 400)), [], np.vstack([rows, columns]), np.append(np.ones(n), sizes))
    gain = (plan.x.reshape(n, 10) * p).sum(axis=0) / sizes
    assert value("transport", mixed) == pytest.approx(gain.mean(), abs=1e-6)


def test_dev_of_a_target_that_is_the_source_is_the_held_out_error() -> None:
    said = world(600, 600, p=EVEN, q=EVEN, apart=2.0).said
    error = 1 - (said.source_val.argmax(axis=1) == said.source_val_y).mean()
    assert value("dev", Reading.of(said, EVEN)) == pytest.approx(-error, abs=0.03)


def test_dev_weighs_the_source_images_that_look_like_the_target() -> None:
    """Two kinds of image; the target is all of one kind, on which the first network is right and the second is not."""
    rng = np.random.default_rng(0)
    y, kind = rng.integers(2, size=800), rng.integers(2, size=800)
    features, target = rng.normal(size=(800, 2)) + 3 * kind[:, None], rng.normal(size=(800, 2)) + 3
    found = []
    for good in (1, 0):
        right = np.where(kind == good, 1, -1)
        logits = 4.0 * np.eye(2)[y] * right[:, None]
        said = DomainOutputs.of(logits, y, 4.0 * np.eye(2)[y], [0.5, 0.5], features, target)
        found.append(value("dev", Reading.of(said, np.array([0.5, 0.5]))))
    assert found[0] > -0.15
    assert found[1] < -0.8


def test_agreement_is_with_the_mean_of_all_and_by_class_every_class_counts_the_same() -> None:
    first = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.4, 0.6]])
    second = np.array([[0.8, 0.2], [0.4, 0.6], [0.8, 0.2], [0.4, 0.6]])
    third = np.array([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.6, 0.4]])
    together = [first, second, third]  # say 0, 0, 0, 1
    assert agreement(together) == [1.0, 0.75, 0.75]
    assert agreement(together, by_class=True) == pytest.approx([1.0, (2 / 3 + 1) / 2, 0.5])


# What they say


def test_the_usual_information_praises_equal_classes_under_label_shift_and_the_prior_aware_one_does_not() -> None:
    """A right network, and one that spreads the target's common class over all: as sure, but wrong."""
    rng = np.random.default_rng(0)
    y, target_y = rng.choice(10, 800, p=RARE), rng.choice(10, 800, p=TAIL)
    spread = np.where((target_y == 0) & (rng.random(800) < 0.8), rng.integers(10, size=800), target_y)
    right, wrong = (
        DomainOutputs.of(6.0 * np.eye(10)[y], y, 6.0 * np.eye(10)[said], EVEN) for said in (target_y, spread)
    )
    mix = np.bincount(target_y, minlength=10) / 800
    usual, aware = ([scores(said, mix)[n] for said in (right, wrong)] for n in ("information", "prior-information"))
    assert usual[0] < usual[1]
    assert aware[0] > aware[1]


def test_estimated_accuracies_by_class_are_near_the_truth_under_label_shift_alone(shifted: World) -> None:
    found = scores(shifted.said)
    assert 0.7 < shifted.accuracy < 0.9
    assert found["expected"] == pytest.approx(shifted.accuracy, abs=0.05)
    assert found["atc-class"] == pytest.approx(shifted.accuracy, abs=0.07)


def test_a_network_s_temperature_does_not_move_the_calibrated_scores(shifted: World) -> None:
    cold, hot = (
        scores(DomainOutputs.of(k * s.source_val, s.source_val_y, k * s.target, s.training_prior), TAIL)
        for s in [shifted.said]
        for k in (1.0, 3.0)
    )
    assert abs(cold["entropy"] - hot["entropy"]) > 0.05
    for name in BY_CLASS:
        assert cold[name] == pytest.approx(hot[name], abs=0.01), name


def test_every_score_is_finite_of_hard_cases() -> None:
    """Very sure, a class without held-out images, one target image, fewer images than folds."""
    said = DomainOutputs.of(1000.0 * np.eye(4)[[0, 1, 1]], [0, 1, 1], [[0.0, 1000.0, 0.0, 0.0]], np.full(4, 0.25))
    assert all(np.isfinite(v) for v in scores(said).values())
    assert all(score.title and score.says for score in SCORES.values())


# Choice


def candidates() -> list[World]:
    """Three networks of one world, from the worst to the best: noise in what they say, each its own."""
    whole, rng = world(400, 700), np.random.default_rng(1)

    def blurred(noise: float) -> World:
        val, target = (v + noise * rng.normal(size=v.shape) for v in (whole.said.source_val, whole.said.target))
        return whole._replace(said=DomainOutputs.of(val, whole.said.source_val_y, target, EVEN))

    return [blurred(noise) for noise in (8.0, 4.0, 1.0)]


def test_the_best_network_is_chosen_wherever_it_stands() -> None:
    worlds = candidates()
    assert worlds[0].accuracy < worlds[1].accuracy < worlds[2].accuracy
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert order[choose([worlds[i].said for i in order])] == 2


def test_of_equals_the_first_is_chosen() -> None:
    said = candidates()[0].said
    assert choose([said, said, said]) == 0


def test_scores_among_others_use_one_mix_and_add_agreement() -> None:
    saids = [one.said for one in candidates()]
    found = score_all(saids)
    mix = consensus_prior(saids)
    assert [{n: v for n, v in each.items() if n not in ENSEMBLE} for each in found] == [scores(s, mix) for s in saids]
    assert [each["ensemble"] for each in found] == agreement([softmax(said.target) for said in saids])
    assert scores(saids[0]) == scores(saids[0], target_prior_of(saids[0]))
    assert set(CHOOSERS) <= set(found[0])


def test_networks_that_speak_of_different_images_are_not_compared() -> None:
    with pytest.raises(ValueError, match="different target images: 600, 500"):
        score_all([world(n_target=600).said, world(n_target=500).said])
