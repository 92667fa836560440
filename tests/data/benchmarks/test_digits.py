"""The real digits, where they are (ASKEW_DATA)."""

from __future__ import annotations

import numpy as np
import pytest

from askew.data.benchmarks import digits, load_task
from askew.data.benchmarks.digits import framed

real_data = pytest.mark.real_data


def test_a_frame_centres_the_resized_image_on_black() -> None:
    out = framed(np.full((2, 1, 16, 16), 255, np.uint8), box=20, size=28)
    assert out.shape == (2, 1, 28, 28)
    assert (out[:, :, 4:24, 4:24] == 255).all()
    assert out.sum() == 2 * 20 * 20 * 255


@pytest.mark.parametrize("found", [True, False])
def test_the_handwritten_digits_are_those_that_scikit_learn_loads(
    monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    from sklearn.datasets import load_digits

    if not found:
        monkeypatch.setattr(digits, "find_spec", lambda name: None)
    x, y = load_digits(return_X_y=True)
    assert (digits._uci_table() == np.column_stack([x, y])).all()


@real_data
@pytest.mark.parametrize(
    ("name", "source", "target", "test", "paper"),
    [
        ("usps-mnist", 1_432, 12_144, 10_000, 2_181),
        ("mnist-usps", 12_144, 1_432, 2_007, 390),
        ("svhn-mnist", 10_395 - 466, 12_144, 10_000, 2_181),  # 466 of the digit 9 go to validation
    ],
)
def test_a_task_of_the_paper_has_the_sizes_of_its_rule(
    name: str, source: int, target: int, test: int, paper: int
) -> None:
    task = load_task(f"digits/{name}")
    training_data = task.training_data
    assert (
        len(training_data.source),
        len(training_data.target),
        len(training_data.test_images),
    ) == (source, target, test)
    assert task.test.paper is not None
    assert len(task.test.paper) == paper
    assert set(np.unique(training_data.source_val.y)) == set(range(10))


@real_data
def test_usps_digits_are_as_tall_as_those_of_mnist() -> None:
    training_data = load_task("digits/usps-mnist").training_data

    def height(x: np.ndarray) -> float:
        return float(np.median((x[:, 0] > 64).any(axis=2).sum(axis=1)))

    assert abs(height(training_data.source.x) - height(training_data.target.x)) <= 2
