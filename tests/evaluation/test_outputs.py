"""A network's outputs on both domains: checked, and labelled under a uniform prior."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from askew.core.errors import UserError
from askew.core.files import write_tensors
from askew.evaluation.outputs import (
    ABSENT,
    DomainOutputs,
    adjust_logits,
    floor_prior,
    prior_bias,
    read_stored_outputs,
    softmax,
)


def test_outputs_take_tensors_of_any_precision() -> None:
    z, y = torch.randn(6, 3).half(), torch.arange(6) % 3
    outputs = DomainOutputs.of(z, y, z[:4], torch.full((3,), 1 / 3))
    assert (
        outputs.source_val.dtype
        == outputs.target.dtype
        == outputs.training_prior.dtype
        == np.float64
    )
    np.testing.assert_array_equal(outputs.source_val, z.double().numpy())
    assert (outputs.classes, outputs.source_sizes.tolist(), outputs.source_prior.tolist()) == (
        3,
        [2, 2, 2],
        [1 / 3] * 3,
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source_val_y": [0, 1]}, "shapes do not fit"),
        ({"target": np.zeros((4, 2))}, "shapes do not fit"),
        ({"training_prior": [0.5, 0.5]}, "shapes do not fit"),
        ({"target": np.zeros((0, 3))}, "may be empty"),
        ({"source_val_y": [0, 1, 3]}, "labels from 0 to 3 for 3 classes"),
        ({"target": np.full((4, 3), np.nan)}, "finite"),
        ({"source_features": np.zeros((3, 5))}, "both domains or for neither"),
    ],
)
def test_outputs_refuse_what_does_not_fit(change: dict[str, Any], words: str) -> None:
    whole = {
        "source_val": np.eye(3),
        "source_val_y": [0, 1, 2],
        "target": np.zeros((4, 3)),
        "training_prior": np.ones(3) / 3,
    }
    with pytest.raises(ValueError, match=words):
        DomainOutputs.of(**whole | change)


def test_target_images_are_labelled_as_if_classes_were_equally_frequent() -> None:
    logits = np.log([[0.7, 0.3], [0.95, 0.05]])
    outputs = DomainOutputs.of(logits, [0, 1], logits, [0.9, 0.1])
    np.testing.assert_allclose(
        np.exp(outputs.target_uniform[:, 1] - outputs.target_uniform[:, 0]), [27 / 7, 9 / 19]
    )
    assert outputs.target_uniform.argmax(axis=1).tolist() == [1, 0]


def test_a_class_that_training_lacked_does_not_win_every_image() -> None:
    """Its logit is low as that of a class never trained on; an even share must not lift it above
    all others."""
    rng = np.random.default_rng(0)
    logits = 6.0 * np.eye(4)[rng.integers(3, size=200)] + rng.normal(size=(200, 4))
    logits[:, 3] -= 4
    outputs = DomainOutputs.of(
        logits, rng.integers(4, size=200), logits, [1 / 3, 1 / 3, 1 / 3, 0.0]
    )
    assert (outputs.target_uniform.argmax(axis=1) == 3).mean() < 0.02


def test_the_predicted_distribution_counts_the_most_probable_classes() -> None:
    outputs = DomainOutputs.of(np.eye(3), [0, 1, 2], 5.0 * np.eye(3)[[0, 0, 0, 2]], np.ones(3) / 3)
    assert outputs.predicted_distribution.tolist() == [0.75, 0, 0.25]


# Logits under another class prior


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


def test_outputs_of_another_layout_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "outputs.safetensors", {"exam": torch.zeros(2, 3)}, {"form": "1"})
    with pytest.raises(UserError, match="of form 1, and this askew reads form 2"):
        read_stored_outputs(tmp_path)
