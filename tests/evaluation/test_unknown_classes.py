"""Images of no known class: networks that disagree, and a threshold that held-out source images
set."""

from __future__ import annotations

import numpy as np
import pytest

from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.unknown_classes import ALARMS, MOST, UnknownImages, find_unknown_images


def network(target: np.ndarray, seed: int) -> DomainOutputs:
    rng = np.random.default_rng(seed)
    y = np.arange(400) % 4
    return DomainOutputs.of(
        6 * np.eye(4)[y] + rng.normal(size=(400, 4)), y, target, np.full(4, 0.25)
    )


def test_images_on_which_confident_networks_disagree_are_possibly_unknown() -> None:
    agreed, apart = 6 * np.eye(4)[[0] * 20], (6 * np.eye(4)[[k] * 3] for k in range(1, 4))
    found = find_unknown_images(
        [network(np.concatenate([agreed, own]), k) for k, own in enumerate(apart)]
    )
    assert not found.marked[:20].any()
    assert found.marked[20:].all()
    assert found.share == pytest.approx(3 / 23)
    assert ((found.score >= 0) & (found.score <= 1)).all()


def test_where_much_of_the_target_would_be_unknown_the_strangest_are_marked() -> None:
    found = UnknownImages(np.linspace(0, 1, 41)[np.random.default_rng(0).permutation(41)], 0.31)
    assert found.share == pytest.approx(28 / 41)
    assert found.marked.sum() == round(MOST * 41)
    assert found.score[found.marked].min() > found.score[~found.marked].max()
    assert found.as_dict()["images"] == found.marked.sum()


def test_doubt_that_all_networks_share_is_no_disagreement() -> None:
    doubt = np.tile([6.0, 6.0, 0.0, 0.0], (20, 1))  # between two classes
    found = find_unknown_images([network(doubt, k) for k in range(3)])
    assert found.score == pytest.approx(0, abs=1e-9)
    assert not found.marked.any()


def test_a_twentieth_of_the_held_out_source_would_be_marked() -> None:
    one = network(np.zeros((1, 4)), 0)
    again = DomainOutputs.of(one.source_val, one.source_val_y, one.source_val, one.training_prior)
    assert find_unknown_images([again]).share == pytest.approx(ALARMS, abs=0.005)
    assert find_unknown_images([one]).score == pytest.approx([1.0]), (
        "none more probable than others"
    )
