"""`auto` on tables: logistic regression, and one linear layer that is judged by its posterior."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from adaptations import LENGTH, NAMES, Made, drawn_table, make, request_for
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import askew
from askew.adaptation.assessment import Adaptation
from askew.evaluation.expected_accuracy import target_posterior
from askew.evaluation.outputs import DomainOutputs

pytestmark = pytest.mark.usefixtures("small_maps")

SCALES = 10.0 ** np.array([-5, 5, 0, 2, -2, 1, 3, -1])


class Table(NamedTuple):
    made: Made
    source: tuple[np.ndarray, np.ndarray]
    target: np.ndarray
    truth: np.ndarray


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Three classes in columns of very different scales, adapted to a target in other shares."""
    folder = tmp_path_factory.mktemp("tables")
    xs, ys = drawn_table(200, [0.6, 0.3, 0.1], 0.0, 0)
    xt, yt = drawn_table(150, [0.1, 0.3, 0.6], 0.8, 1)
    xs, xt = xs * SCALES + SCALES, xt * SCALES + SCALES
    np.savez(folder / "s.npz", x=xs.astype(np.float32), y=NAMES[ys])
    np.savez(folder / "t.npz", x=xt.astype(np.float32))
    made = make(request_for(folder / "s.npz", folder / "t.npz"), folder / "out")
    return Table(made, (xs, NAMES[ys]), xt.astype(np.float32), NAMES[yt])


def test_source_only_and_one_student_are_trained(table: Table) -> None:
    networks = table.made.found.networks
    assert [(one.name, one.run.method.id) for one in networks] == [
        ("source", "logistic"),
        ("student", "shares"),
    ]
    assert table.made.found.inputs.kind == "tables"
    assert table.made.found.final is networks[1]


def test_source_only_is_logistic_regression(table: Table) -> None:
    found = table.made.found
    data = found.networks[0].task.training_data
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
    wanted = model.fit(data.source.x, data.source.y).predict(data.target.x)
    assert (found.networks[0].predicted == wanted).mean() > 0.99


def test_the_student_is_one_linear_layer_on_raw_columns(table: Table) -> None:
    model = askew.load(table.made.out, "cpu")
    layers = [name for name, value in model.weights.items() if value.ndim == 2]
    assert layers == ["head.weight"]
    assert model.weights["head.weight"].shape == (3, 8)


def test_the_loaded_student_predicts_what_the_table_says(table: Table) -> None:
    model = askew.load(table.made.out, "cpu")
    p = model.predict_proba(table.target)
    np.testing.assert_allclose(p, table.made.found.probabilities, atol=5e-3)
    assert (p.argmax(axis=1) == table.made.found.predicted).mean() > 0.99


def test_a_saved_student_predicts_rows_one_by_one_as_together(table: Table) -> None:
    model = askew.load(table.made.out, "cpu")
    alone = np.concatenate([model.predict_proba(table.target[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(alone, model.predict_proba(table.target)[:5], atol=1e-6)


def calibrated(found: Adaptation) -> DomainOutputs:
    """The outputs of the final model, divided by its temperature."""
    outputs = found.final.outputs
    return replace(
        outputs,
        target=outputs.target_uniform / found.temperature,
        training_prior=np.full(outputs.classes, 1 / outputs.classes),
    )


def test_the_expected_accuracy_is_that_of_the_student_s_posterior(table: Table) -> None:
    found, rows = table.made.found, np.arange(len(table.target))
    posterior, _ = target_posterior(calibrated(found))
    assert found.expected is not None
    assert found.expected.networks == 1
    assert found.expected.overall == pytest.approx(posterior[rows, found.predicted].mean())
    assert found.expected.before == pytest.approx(
        posterior[rows, found.networks[0].predicted].mean()
    )
    assert found.expected.sentence in (table.made.out / "report.html").read_text()


def test_the_verdict_is_by_the_student_s_posterior(table: Table) -> None:
    verdict = table.made.found.verdict
    assert verdict is not None
    assert "of the predictions, and about" in verdict.sentence
    assert verdict.verdict == "helped"


def test_the_student_s_shares_are_shown_within_their_intervals(table: Table) -> None:
    found = table.made.found
    _, shares = target_posterior(calibrated(found))
    shown = found.diagnosis.target_prior
    assert shown.prior == pytest.approx(shares)
    assert (shown.low <= shown.prior).all()
    assert (shown.prior <= shown.high).all()


def per_class_mean(predicted: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean([(predicted[y == k] == k).mean() for k in np.unique(y)]))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_table_with_reversed_shares_is_improved_over_logistic_regression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ys, yt = np.repeat([0, 1], [270, 30]), np.repeat([0, 1], [30, 270])
    apart, aside = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 10)))
    xs, xt = (2 * apart * (2 * y - 1)[:, None] + rng.normal(size=(300, 10)) for y in (ys, yt))
    result = askew.adapt((xs, ys), xt - 0.9 * apart + aside, device="cpu", seed=seed)
    source, student = (per_class_mean(one.predicted, yt) for one in result.adaptation.networks)
    assert result.summary["saved"] == "student"
    assert student > source + 0.03
    shares = np.array(result.summary["target_shares"]["shares"])
    assert np.abs(shares - [0.1, 0.9]).sum() < 0.15


@pytest.mark.parametrize("method", ["coal", "lda", "logistic", "shares"])
def test_a_named_method_works_on_a_table(table: Table, method: str) -> None:
    result = askew.adapt(table.source, table.target, methods=method, training=LENGTH, device="cpu")
    assert [one["name"] for one in result.summary["methods"]] == ["source", method]
    assert result.summary["saved"] == method
    assert result.model.predict(table.target).shape == table.truth.shape


def test_named_methods_are_combined_on_a_table(table: Table) -> None:
    result = askew.adapt(
        table.source, table.target, methods=["coal", "lda"], training=LENGTH, device="cpu"
    )
    assert [one["name"] for one in result.summary["methods"]] == [
        "source",
        "coal",
        "lda",
        "student",
    ]
    assert result.adaptation.networks[-1].run.method.id == "lda"


def test_a_row_of_a_hundred_numbers_is_an_embedding(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for width, source in ((99, "logistic"), (100, "source")):
        x = rng.normal(size=(40, width)).astype(np.float32)
        result = askew.adapt((x, [0, 1] * 20), x, methods="source", training=LENGTH, device="cpu")
        assert result.adaptation.networks[0].run.method.id == source
