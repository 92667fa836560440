"""The diagnosis: each test keeps its level where there is nothing, and finds what there is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds import EVEN, RARE, TAIL, Array, world

from askew.evaluation.diagnosis import diagnose, outputs_differ, prior_differs, remaining_difference
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.priors import estimate_prior

# Level, where there is nothing to find


def test_outputs_of_one_distribution_seldom_differ() -> None:
    rejected = [
        outputs_differ(world(200, 300, RARE, RARE, seed=s).outputs).significant for s in range(40)
    ]
    assert np.mean(rejected) <= 0.125


def test_a_prior_that_is_the_source_s_is_seldom_called_another() -> None:
    worlds = [world(200, 300, RARE, RARE, seed=s).outputs for s in range(40)]
    rejected = [
        prior_differs(outputs, estimate_prior(outputs, "bbse", resamples=60)).significant
        for outputs in worlds
    ]
    assert np.mean(rejected) <= 0.1


@pytest.mark.parametrize(("n_val", "apart"), [(60, 3.0), (300, 3.0), (300, 1.5)])
def test_label_shift_alone_however_strong_seldom_leaves_a_difference(
    n_val: int, apart: float
) -> None:
    """The prior is estimated, from few held-out images of the classes that the target mostly has;
    the level holds."""
    p = [remaining_difference(world(n_val, 400, apart=apart, seed=s).outputs).p for s in range(80)]
    assert np.mean(np.array(p) < 0.05) <= 0.11
    assert np.mean(np.array(p) < 0.5) > 0.1, "it is not silent altogether"


def test_one_held_out_image_of_each_class_is_no_evidence_of_a_difference() -> None:
    """They do not vary within their class, and by that measure any difference would be infinitely
    large."""
    found = []
    for seed in range(40):
        whole = world(300, 400, seed=seed).outputs
        _, first = np.unique(whole.source_val_y, return_index=True)
        few = DomainOutputs.of(
            whole.source_val[first], whole.source_val_y[first], whole.target, EVEN
        )
        found.append(remaining_difference(few))
    assert max(test.size for test in found) < 20
    assert np.mean([test.significant for test in found]) <= 0.15


def test_held_out_images_in_other_proportions_leave_no_difference() -> None:
    outputs = world(200, 10).outputs
    times = np.array([40, 20, 10, 8, 6, 4, 3, 2, 2, 1])[outputs.source_val_y]
    mixed = DomainOutputs.of(
        outputs.source_val, outputs.source_val_y, np.repeat(outputs.source_val, times, axis=0), EVEN
    )
    found = remaining_difference(mixed)
    assert found.size == pytest.approx(0, abs=1e-6)
    assert found.p == 1


# Power, where there is something


def test_label_shift_is_found_in_outputs_and_prior() -> None:
    for seed in range(5):
        outputs = world(200, 300, seed=seed).outputs
        assert outputs_differ(outputs).significant
        prior = prior_differs(outputs, estimate_prior(outputs, "bbse", resamples=60))
        assert prior.significant
        assert prior.size == pytest.approx(np.abs(TAIL - RARE).sum() / 2, abs=0.12)


@pytest.mark.parametrize("q", [RARE, TAIL])
def test_images_that_look_different_leave_a_difference_whatever_the_prior(q: Array) -> None:
    rejected = [
        remaining_difference(world(600, 600, q=q, moved=0.7, seed=s).outputs).significant
        for s in range(10)
    ]
    assert np.mean(rejected) >= 0.9


def test_features_show_what_logits_do_not() -> None:
    whole, rng = world(400, 400), np.random.default_rng(0)
    outputs = whole.outputs
    features, target = rng.normal(size=(400, 30)), rng.normal(size=(400, 30)) + 1.0
    kept = DomainOutputs.of(
        outputs.source_val, outputs.source_val_y, outputs.target, EVEN, features, target
    )
    assert not remaining_difference(outputs).significant
    assert remaining_difference(kept).significant
    assert remaining_difference(kept).size > 1


# The verdict


@pytest.mark.parametrize(
    ("q", "moved", "kind", "begins"),
    [
        (RARE, 0.0, "none", "No shift was found"),
        (TAIL, 0.0, "label", "Label shift: "),
        (RARE, 0.4, "feature", "Feature shift: "),
        (TAIL, 0.6, "both", "Both: "),
    ],
)
def test_each_kind_of_shift_is_told(q: Array, moved: float, kind: str, begins: str) -> None:
    found = diagnose(world(800, 800, q=q, moved=moved, seed=1).outputs, resamples=60)
    assert found.kind == kind, found.sentence
    assert found.sentence.startswith(begins)
    assert found.sure != ("sure" if kind in ("none", "both") else ""), (
        "neither absence nor a mix amid more is sure"
    )


def test_an_adapted_network_adds_its_estimates_and_does_not_change_the_verdict() -> None:
    before, after = (
        world(800, 800, moved=0.6, knows=knows, seed=1).outputs for knows in (0.0, 1.0)
    )
    alone, found = diagnose(before, resamples=40), diagnose(before, after, resamples=40)
    assert (found.kind, alone.kind) == ("both", "both")
    assert set(found.priors) == set(found.remains) == {"unadapted", "adapted"}
    assert found.remains["unadapted"] == alone.remains["unadapted"] == remaining_difference(before)
    assert found.remains["adapted"] == remaining_difference(after)
    assert not found.remains["adapted"].significant
    assert found.sentence.startswith(alone.sentence)
    assert "The adapted network sees no such difference" in found.sentence
    counted = np.bincount(after.target_uniform.argmax(axis=1), minlength=10) / 800
    np.testing.assert_allclose(
        found.target_prior.prior, counted, err_msg="one that was to see none proves nothing"
    )


def test_how_sure_it_is_grows_with_the_images() -> None:
    few, many = (diagnose(world(n, n, seed=1).outputs, resamples=120) for n in (60, 1500))
    assert (few.kind, few.sure) == ("label", "likely")
    assert "so few held-out images" in few.sentence
    assert (many.kind, many.sure) == ("label", "sure")


def test_a_network_that_cannot_tell_classes_apart_says_so() -> None:
    outputs = world(300, 300).outputs
    val, target = outputs.source_val.copy(), outputs.target.copy()
    val[:, 3], target[:, 3] = val[:, 8] - 1, target[:, 8] - 1
    found = diagnose(DomainOutputs.of(val, outputs.source_val_y, target, EVEN), resamples=20)
    assert "cannot tell some classes apart" in found.sentence
    assert found.sure != "sure"


def test_a_diagnosis_is_plain_values() -> None:
    outputs = world(100, 100).outputs
    record = json.loads(json.dumps(diagnose(outputs, outputs, resamples=10).as_dict()))
    assert set(record) == {
        "kind",
        "sure",
        "sentence",
        "source_shares",
        "shares",
        "outputs",
        "shares_differ",
        "remains",
    }
    assert set(record["shares"]["adapted"]) == {"bbse", "em"}
    assert set(record["outputs"]) == {"question", "p", "size", "unit", "significant"}


def test_few_held_out_images_leave_the_predicted_shares_marked_unsure() -> None:
    whole = world(300, 400, seed=3).outputs
    rows = np.arange(0, 300, 10)
    few = DomainOutputs.of(whole.source_val[rows], whole.source_val_y[rows], whole.target, EVEN)
    for outputs, unsure in ((few, True), (whole, False)):
        shares = diagnose(outputs, resamples=20).target_prior
        counted = np.bincount(outputs.target_uniform.argmax(axis=1), minlength=len(EVEN)) / 400
        assert shares.unsure == unsure
        assert (shares.estimator == "counting") == unsure
        assert (shares.prior == pytest.approx(counted)) == unsure
    adapted = diagnose(few, whole, resamples=20).target_prior
    assert not adapted.unsure
