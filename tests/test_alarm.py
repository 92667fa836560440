"""The alarm: it says hurt where adaptation hurt, helped where it helped, and unclear where nobody can tell."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds import EVEN, World, world

from askew.alarm import VOTERS, alarm, evidence
from askew.said import Said
from askew.validators import SCORES, Reading


def blurred(whole: World, keep: float, seed: int) -> World:
    """The same images by a network to which the target looks fainter, under noise: less right and less sure."""
    noise = 2.0 * np.random.default_rng(seed).normal(size=whole.said.target.shape)
    return whole._replace(
        said=Said.of(whole.said.source_val, whole.said.source_val_y, keep * whole.said.target + noise, EVEN)
    )


@pytest.fixture(scope="module")
def good() -> World:
    return world(500, 500)


@pytest.fixture(scope="module")
def bad(good: World) -> World:
    return blurred(good, 0.4, 1)


def test_an_adaptation_that_helps_is_said_to_have_helped(good: World, bad: World) -> None:
    assert good.accuracy > bad.accuracy + 0.1
    found = alarm(bad.said, good.said, resamples=30)
    assert found.verdict == "helped", found.sentence
    assert not found.collapsed
    assert found.sentence.startswith("Adaptation seems to have helped: better by")


def test_an_adaptation_that_hurts_is_said_to_have_hurt(good: World, bad: World) -> None:
    found = alarm(good.said, bad.said, resamples=30)
    assert found.verdict == "hurt", found.sentence
    assert "worse by" in found.sentence


def test_a_network_is_neither_better_nor_worse_than_itself(good: World) -> None:
    found = alarm(good.said, good.said, resamples=10)
    assert found.verdict == "unclear"
    assert all((e.before, e.low, e.high, e.votes) == (e.after, 0, 0, "unclear") for e in found.evidence)
    assert found.sentence == "Adaptation may have helped or hurt: no score moved."


def test_a_network_that_collapsed_hurt_however_sure_it_is(good: World) -> None:
    """Everything is the target's rarest class, without a doubt: entropy could not be better."""
    collapsed = Said.of(good.said.source_val, good.said.source_val_y, good.said.target + 60 * np.eye(10)[5], EVEN)
    found = alarm(good.said, collapsed, resamples=10)
    assert (found.verdict, found.collapsed) == ("hurt", True)
    assert found.far > 0.8
    assert "collapsed" in found.sentence


def test_far_is_the_total_variation_to_the_nearest_plausible_mix(good: World) -> None:
    """The target's own network says what it says; half of it in one class is half as far as all of it."""
    said = good.said
    halfway = said.target.copy()
    halfway[::2] += 60 * np.eye(10)[5]
    nothing, half, all_of_it = (
        alarm(said, Said.of(said.source_val, said.source_val_y, target, EVEN), resamples=2).far
        for target in (said.target, halfway, said.target + 60 * np.eye(10)[5])
    )
    assert nothing == 0
    assert half == pytest.approx(all_of_it / 2, abs=0.05)


def test_evidence_holds_each_voter_before_and_after_under_one_mix(good: World, bad: World) -> None:
    from askew.mixtures import consensus_mix

    found = evidence(bad.said, good.said, 20, 0)
    assert tuple(e.score for e in found) == VOTERS
    mix = consensus_mix([bad.said, good.said])
    for e in found:
        assert e.before == SCORES[e.score].value(Reading.of(bad.said, mix))
        assert e.after == SCORES[e.score].value(Reading.of(good.said, mix))
        assert e.low <= e.high
    by = {e.score: e for e in found}
    assert by["source"].votes == "unclear", "both know the source alike"
    assert by["expected"].low < by["expected"].after - by["expected"].before < by["expected"].high


def test_intervals_shrink_with_more_images_as_one_over_the_root() -> None:
    width = []
    for n in (100, 400):
        whole = world(500, n, seed=2)
        (one,) = (e for e in evidence(blurred(whole, 0.5, 1).said, whole.said, 60, 0) if e.score == "expected")
        width.append(one.high - one.low)
    assert 1.4 < width[0] / width[1] < 3.2


def test_a_verdict_is_seeded_and_plain_values(good: World, bad: World) -> None:
    first, second = (json.dumps(alarm(bad.said, good.said, resamples=5, seed=1).as_dict()) for _ in range(2))
    assert first == second
    assert set(json.loads(first)) == {"verdict", "sentence", "evidence", "far", "collapsed"}
    assert {e["votes"] for e in json.loads(first)["evidence"]} <= {"helped", "unclear", "hurt"}
