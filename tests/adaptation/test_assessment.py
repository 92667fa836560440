"""What is told of an adaptation: probabilities, expected accuracy, possible unknown classes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from adaptations import LENGTH, NAMES, Made, adapted, drawn, drawn_table, make, request_for

import askew
from askew.evaluation.calibration import temperature

pytestmark = pytest.mark.usefixtures("small_maps")


def test_the_expected_accuracy_is_how_often_two_candidates_agree(made: Made) -> None:
    found = made.found
    candidates = found.networks[1:-1]
    agreed = [np.mean(a.predicted == b.predicted) for a, b in itertools.combinations(candidates, 2)]
    assert found.expected is not None
    assert found.expected.overall == pytest.approx(np.mean(agreed))
    assert found.expected.networks == len(candidates)


def test_probabilities_are_as_high_as_the_expected_accuracy(made: Made) -> None:
    assert made.found.expected is not None
    sure = made.found.probabilities.max(axis=1).mean()
    assert sure == pytest.approx(made.found.expected.overall, abs=1e-6)


def test_a_report_says_the_expected_accuracy(made: Made) -> None:
    assert made.found.expected is not None
    assert made.found.expected.sentence in (made.out / "report.html").read_text()


def test_predictions_are_calibrated_and_for_a_uniform_prior(made: Made) -> None:
    outputs = made.found.final.outputs
    z = (outputs.target - np.log(outputs.training_prior)) / made.found.temperature
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(made.found.probabilities, expected, atol=1e-9)


@pytest.mark.parametrize("method", ["source", "coal"])
def test_one_method_alone_is_calibrated_on_the_source(made: Made, method: str) -> None:
    request = request_for(made.request.source, made.request.target, methods=(method,))
    found = adapted(request, made.out)
    assert found.expected is None
    assert found.temperature == temperature(found.final.outputs)


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A target whose last 40 of 140 rows are of a class that the source lacks."""
    folder = tmp_path_factory.mktemp("strange")
    xs, ys = drawn(240, [0.4, 0.3, 0.3], 0.0, 0)
    fourth = drawn(40, [1.0, 0.0, 0.0], 0.0, 2)[0][:, np.r_[3, 1, 2, 0, 4:104]]
    xt = np.concatenate([known_rows()[0], fourth]).astype(np.float32)
    np.savez(folder / "source.npz", x=4 * xs, y=NAMES[ys])
    np.savez(folder / "target.npz", x=4 * xt)
    request = request_for(
        folder / "source.npz",
        folder / "target.npz",
        methods=("coal", "teacher", "lda"),
        training=LENGTH | {"pretrain": 100},
    )
    return make(request, folder / "out")


def known_rows() -> tuple[np.ndarray, np.ndarray]:
    return drawn(100, [0.3, 0.3, 0.4], 0.2, 1)


def test_images_of_an_unknown_class_are_told_from_the_others(strange: Made) -> None:
    score = strange.found.unknown.score
    assert np.mean(score[100:, None] > score[:100]) > 0.8


def test_possible_unknown_images_are_marked_in_the_table(strange: Made) -> None:
    marked = strange.found.unknown.marked
    lines = (strange.out / "predictions.csv").read_text().splitlines()[1:]
    assert [line.endswith("yes") for line in lines] == marked.tolist()
    assert marked[100:].mean() > 2 * marked[:100].mean()


def test_possible_unknown_images_are_shown_in_the_report(strange: Made) -> None:
    assert "Possible unknown-class" in (strange.out / "report.html").read_text()


def test_an_unknown_class_does_not_spoil_the_saved_network(strange: Made) -> None:
    y = known_rows()[1]
    right = [np.mean(one.predicted[:100] == y) for one in strange.found.networks]
    assert right[strange.found.saved] > max(right) - 0.1


def test_a_class_that_the_target_lacks_is_predicted_nowhere(tmp_path: Path) -> None:
    """BBSE gives the class no weight in training, so the network never learns it."""
    xs, ys = drawn_table(180, [0.3, 0.3, 0.4], 0.0, 0)
    xt, yt = drawn_table(100, [0.5, 0.5, 0.0], 0.0, 1)
    result = askew.adapt(
        (4 * xs, NAMES[ys]),
        4 * xt,
        tmp_path / "out",
        methods="bbse",
        training=LENGTH | {"pretrain": 100, "rounds": 4},
        device="cpu",
    )
    assert result.adaptation.final.outputs.training_prior[2] == 0, "the case that this is about"
    assert np.mean(result.adaptation.predicted == yt) > 0.85
    again = askew.load(tmp_path / "out", "cpu").predict(4 * xt)
    assert np.mean(NAMES[result.adaptation.predicted] == again) > 0.99
