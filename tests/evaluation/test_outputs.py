"""A network's outputs on both domains: checked, and labelled under a uniform prior."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from askew.evaluation.outputs import DomainOutputs


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
