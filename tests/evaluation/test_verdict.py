"""The verdict: hurt where adaptation hurt, helped where it helped, and unclear where nobody can
tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds import EVEN, World, world

from askew.evaluation.outputs import DomainOutputs, Floats
from askew.evaluation.scores import SCORES, score_another, score_networks
from askew.evaluation.verdict import (
    COLLAPSED,
    MARGIN,
    UNRELIABLE,
    VOTERS,
    Answer,
    Evidence,
    _resamples,
    _sentence,
    judge,
    judge_by_posterior,
    judge_transfer,
    judge_transfers,
    resample_scores,
)


def blurred(whole: World, keep: float, seed: int) -> World:
    """The same images by a network to which the target looks fainter, under noise: less right and
    less sure."""
    noise = 2.0 * np.random.default_rng(seed).normal(size=whole.outputs.target.shape)
    return whole._replace(
        outputs=DomainOutputs.of(
            whole.outputs.source_val,
            whole.outputs.source_val_y,
            keep * whole.outputs.target + noise,
            EVEN,
        )
    )


def mistaken(whole: World, images: int) -> DomainOutputs:
    """The same network, but for some images that it gives another class, as surely."""
    target = whole.outputs.target.copy()
    target[:images] = np.roll(target[:images], 1, axis=1)
    return DomainOutputs.of(whole.outputs.source_val, whole.outputs.source_val_y, target, EVEN)


@pytest.fixture(scope="module")
def good() -> World:
    return world(500, 500)


@pytest.fixture(scope="module")
def bad(good: World) -> World:
    return blurred(good, 0.4, 1)


def test_an_adaptation_that_helps_is_said_to_have_helped(good: World, bad: World) -> None:
    assert good.accuracy > bad.accuracy + 0.1
    for others in ([], [blurred(good, 0.8, 2).outputs]):
        found = judge_transfer(bad.outputs, good.outputs, others, resamples=30)
        assert found.verdict == "helped", found.sentence
        assert not found.collapsed
        assert found.sentence.startswith("Adaptation seems to have helped: ")
        assert " of 4 scores without target labels improved (SND" in found.sentence
        assert f"from the average of {2 + len(others)} networks" in found.sentence


@pytest.mark.parametrize("vote", [(0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1)])
def test_a_headline_never_says_that_a_network_agrees_with_its_own_ensemble(
    vote: tuple[float, float],
) -> None:
    evidence = [evidence_of("ensemble", 0.98, vote), evidence_of("expected", 0.9, (0, 0))]
    for answer in ("helped", "unclear", "hurt"):
        sentence = _sentence(answer, evidence, 6, 0.0, collapsed=False)
        assert "agree" not in sentence
        assert "98 %" not in sentence


def test_a_network_scored_later_is_not_part_of_the_ensemble(good: World, bad: World) -> None:
    networks = score_networks([bad.outputs, good.outputs, blurred(good, 0.8, 2).outputs])
    *_, last = judge_transfers([*networks, score_another(networks, good.outputs)], resamples=10)
    assert "the average of 3 networks" in last.sentence


def test_an_adaptation_that_hurts_is_said_to_have_hurt(good: World, bad: World) -> None:
    for others in ([], [blurred(good, 0.8, 2).outputs]):
        found = judge_transfer(good.outputs, bad.outputs, others, resamples=30)
        assert found.verdict == "hurt", found.sentence
        assert " fell (SND" in found.sentence


def test_a_network_is_neither_better_nor_worse_than_itself(good: World) -> None:
    found = judge_transfer(good.outputs, good.outputs, resamples=10)
    assert found.verdict == "unclear"
    assert all(
        (e.before, e.low, e.high, e.votes) == (e.after, 0, 0, "unclear") for e in found.evidence
    )
    assert found.sentence == (
        "Adaptation may have helped or hurt: 0 of 4 scores without target labels improved."
    )


def evidence_of(score: str, value: float, ends: tuple[float, float]) -> Evidence:
    return Evidence(score=score, before=value, after=value, low=ends[0], high=ends[1])


@pytest.mark.parametrize(
    ("agreement", "rest", "among", "alone"),
    [
        ((0.06, 0.2), "0000", "helped", "unclear"),
        ((0.04, 0.2), "0000", "unclear", "unclear"),
        ((-0.2, -0.06), "0000", "hurt", "unclear"),
        ((-0.2, -0.04), "0000", "unclear", "unclear"),
        ((0.06, 0.2), "----", "helped", "hurt"),
        ((0.04, 0.2), "++00", "helped", "helped"),
        ((0.04, 0.2), "+++-", "helped", "helped"),
        ((0.04, 0.2), "++-0", "unclear", "unclear"),
        ((-0.1, 0.1), "+++0", "helped", "helped"),
        ((-0.1, 0.1), "---0", "hurt", "hurt"),
        ((-0.1, 0.1), "---+", "unclear", "unclear"),
    ],
)
def test_a_verdict_takes_agreement_beyond_the_margin_or_a_lead_of_three(
    agreement: tuple[float, float], rest: str, among: Answer, alone: Answer
) -> None:
    """Five scores; of two networks alone, agreement only counts as one of them."""
    ends = {"+": (0.1, 0.2), "0": (-0.1, 0.1), "-": (-0.2, -0.1)}
    names = [name for name in VOTERS if name != "ensemble"]
    found = [evidence_of("ensemble", 0.7, agreement)]
    found += [evidence_of(name, 0.7, ends[vote]) for name, vote in zip(names, rest, strict=True)]
    assert (judge(found, alone=False), judge(found, alone=True)) == (among, alone)


def test_to_depart_from_an_unreliable_source_only_is_not_said_to_have_hurt() -> None:
    """It is said to have helped all the same where the scores rose."""
    for expects, down, up in (
        (UNRELIABLE + 0.01, "hurt", "helped"),
        (UNRELIABLE - 0.01, "unclear", "helped"),
    ):
        for ends, answer in (((-0.2, -0.1), down), ((0.1, 0.2), up)):
            found = [evidence_of(name, expects, ends) for name in VOTERS]
            assert judge(found, alone=False) == judge(found, alone=True) == answer


def test_an_unreliable_source_only_is_named_in_the_sentence(good: World) -> None:
    faint = DomainOutputs.of(
        good.outputs.source_val, good.outputs.source_val_y, 0.1 * good.outputs.target, EVEN
    )
    found = judge_transfer(faint, good.outputs, [blurred(good, 0.8, 2).outputs], resamples=10)
    (expected,) = (e.before for e in found.evidence if e.score == "expected")
    assert expected < UNRELIABLE
    assert (
        "source-only itself is unreliable on the target: its confidence by class is "
        f"{100 * expected:.0f} %." in found.sentence
    )


@pytest.mark.parametrize(("images", "beyond"), [(20, False), (80, True)])
def test_agreement_is_the_share_of_images_on_which_the_others_side_with_one(
    good: World, images: int, beyond: bool
) -> None:
    """Of 500 images, 4 % are a sure difference and too few to matter; 16 % are enough."""
    others = [blurred(good, 0.8, seed).outputs for seed in (2, 3)]
    found = judge_transfer(mistaken(good, images), good.outputs, others, resamples=30)
    (agreed,) = (e for e in found.evidence if e.score == "ensemble")
    assert 0 < agreed.low < images / 500 < agreed.high
    assert (agreed.low > MARGIN) == beyond


def test_guesses_without_a_doubt_are_not_believed(good: World) -> None:
    """An ensemble of two follows the more confident one; a third knows better."""
    guesses = 60 * np.eye(10)[np.random.default_rng(0).choice(10, len(good.target_y))]
    sure = DomainOutputs.of(good.outputs.source_val, good.outputs.source_val_y, guesses, EVEN)
    alone = judge_transfer(good.outputs, sure, resamples=30)
    by = {e.score: e.votes for e in alone.evidence}
    assert (by["ensemble"], by["snd"]) == ("helped", "hurt")
    assert alone.verdict == "unclear", alone.sentence
    others = [mistaken(good, n) for n in (20, 40)]
    assert judge_transfer(good.outputs, sure, others, resamples=30).verdict == "hurt"


def test_a_network_that_collapsed_hurt_however_sure_it_is(good: World) -> None:
    """Everything is the target's rarest class, without a doubt: entropy could not be better."""
    collapsed = DomainOutputs.of(
        good.outputs.source_val,
        good.outputs.source_val_y,
        good.outputs.target + 60 * np.eye(10)[5],
        EVEN,
    )
    found = judge_transfer(good.outputs, collapsed, [collapsed, collapsed], resamples=10)
    assert (found.verdict, found.collapsed) == ("hurt", True), (
        "though most networks predict the same"
    )
    assert found.far > 0.8
    assert "collapsed" in found.sentence


def test_finding_classes_that_source_only_missed_is_no_collapse(good: World) -> None:
    wrong = DomainOutputs.of(
        good.outputs.source_val,
        good.outputs.source_val_y,
        good.outputs.target + 60 * np.eye(10)[5],
        EVEN,
    )
    found = judge_transfer(wrong, good.outputs, [mistaken(good, n) for n in (20, 40)], resamples=10)
    assert found.far > COLLAPSED
    assert (found.verdict, found.collapsed) == ("helped", False)


def test_predicting_a_frequent_class_beside_all_others_is_no_collapse(good: World) -> None:
    """Three fifths of the target are a class that source-only took for several others."""
    z, most = good.outputs.target.copy(), np.arange(len(good.outputs.target)) % 5 < 3
    z[most] = 60 * np.eye(10)[5] + z[most] / 100
    frequent = DomainOutputs.of(good.outputs.source_val, good.outputs.source_val_y, z, EVEN)
    taken = z.copy()
    taken[most] = 60 * np.eye(10)[np.arange(most.sum()) % 4] + z[most] / 100
    source_only = DomainOutputs.of(good.outputs.source_val, good.outputs.source_val_y, taken, EVEN)
    found = judge_transfer(source_only, frequent, resamples=2)
    assert found.far > COLLAPSED
    assert frequent.predicted_distribution.max() > source_only.predicted_distribution.max() + 0.1
    assert not found.collapsed


def test_far_is_the_total_variation_to_the_nearest_plausible_prior(good: World) -> None:
    """The target's own network predicts what it predicts; half of it in one class is half as far as
    all of it."""
    outputs = good.outputs
    halfway = outputs.target.copy()
    halfway[::2] += 60 * np.eye(10)[5]
    nothing, half, all_of_it = (
        judge_transfer(
            outputs,
            DomainOutputs.of(outputs.source_val, outputs.source_val_y, target, EVEN),
            resamples=2,
        ).far
        for target in (outputs.target, halfway, outputs.target + 60 * np.eye(10)[5])
    )
    assert nothing == 0
    assert half == pytest.approx(all_of_it / 2, abs=0.05)


def test_evidence_is_the_voters_scores_of_the_two_among_all() -> None:
    good = world(300, 200)
    worse, between = blurred(good, 0.4, 1).outputs, blurred(good, 0.7, 2).outputs
    found = judge_transfer(worse, good.outputs, [between], resamples=20).evidence
    assert tuple(e.score for e in found) == VOTERS
    before, after, _ = (
        network.scores for network in score_networks([worse, good.outputs, between])
    )
    for e in found:
        assert (e.before, e.after) == (before[e.score], after[e.score])
        assert e.low <= e.high
    by = {e.score: e for e in found}
    assert by["source"].votes == "unclear", "both know the source alike"
    assert by["expected"].low < by["expected"].after - by["expected"].before < by["expected"].high


def test_resampled_scores_are_those_of_the_images_drawn_again(good: World) -> None:
    (network,) = score_networks([good.outputs])
    inputs, found = network.inputs, resample_scores(network.inputs, 3, seed=4)
    drawn = _resamples(inputs.source_val_y, len(inputs.target), 3, np.random.default_rng(4))
    for values, (val, target) in zip(found, drawn, strict=True):
        sample = inputs.rows(val, target)
        assert values == pytest.approx([SCORES[name].value(sample) for name in VOTERS], abs=1e-12)


def test_intervals_shrink_with_more_images_as_one_over_the_root() -> None:
    width = []
    for n in (100, 400):
        whole = world(500, n, seed=2)
        found = judge_transfer(blurred(whole, 0.5, 1).outputs, whole.outputs, resamples=60)
        (one,) = (e for e in found.evidence if e.score == "expected")
        width.append(one.high - one.low)
    assert 1.4 < width[0] / width[1] < 3.2


def test_a_verdict_is_seeded_and_plain_values(good: World, bad: World) -> None:
    first, second = (
        json.dumps(judge_transfer(bad.outputs, good.outputs, resamples=5, seed=1).as_dict())
        for _ in range(2)
    )
    assert first == second
    assert set(json.loads(first)) == {"verdict", "sentence", "evidence", "far", "collapsed"}
    assert {e["votes"] for e in json.loads(first)["evidence"]} <= {"helped", "unclear", "hurt"}


def test_verdicts_on_several_networks_are_those_of_each_beside_the_others(
    good: World, bad: World
) -> None:
    networks = [bad.outputs, good.outputs, blurred(good, 0.8, 2).outputs]
    together = list(judge_transfers(score_networks(networks), resamples=20))
    alone = [
        judge_transfer(networks[0], networks[i], [networks[3 - i]], resamples=20) for i in (1, 2)
    ]
    for one, other in zip(together, alone, strict=True):
        assert (one.verdict, one.far, one.collapsed) == (other.verdict, other.far, other.collapsed)
        for e, f in zip(one.evidence, other.evidence, strict=True):
            assert (e.before, e.after, e.low, e.high) == pytest.approx(
                (f.before, f.after, f.low, f.high)
            )


# --- by one posterior ---


def alike(n: int, first: float) -> Floats:
    """A posterior that gives each of n images so much to the first of two classes."""
    return np.tile([first, 1 - first], (n, 1))


@pytest.mark.parametrize(("first", "answer"), [(0.9, "helped"), (0.1, "hurt"), (0.5, "unclear")])
def test_a_posterior_tells_whether_changed_predictions_helped(first: float, answer: str) -> None:
    before, after = np.ones(20, int), np.r_[np.zeros(10, int), np.ones(10, int)]
    found, _ = judge_by_posterior(alike(20, first), before, after)
    assert found == answer


@pytest.mark.parametrize(("images", "answer"), [(2, "unclear"), (3, "unclear"), (5, "helped")])
def test_a_gain_by_posterior_has_to_exceed_chance(images: int, answer: str) -> None:
    """Of n images that differ, 0.8 n is gained, and 1.64 √n is chance: n above 4.2 is enough."""
    after = np.r_[np.zeros(images, int), np.ones(30, int)]
    found, _ = judge_by_posterior(alike(30 + images, 0.9), np.ones(30 + images, int), after)
    assert found == answer


def test_equal_predictions_are_unclear_by_posterior() -> None:
    same = np.zeros(5, int)
    assert judge_by_posterior(alike(5, 0.9), same, same)[0] == "unclear"


def test_a_verdict_by_posterior_names_both_expected_accuracies() -> None:
    before, after = np.ones(20, int), np.r_[np.zeros(10, int), np.ones(10, int)]
    _, sentence = judge_by_posterior(alike(20, 0.9), before, after)
    assert sentence == (
        "Adaptation helped: it changes 50 % of the predictions, and about 50 % are expected to be "
        "right, instead of 10 %."
    )
