"""The files of an adaptation: the model, the table, summary.json; and `askew choose`."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from adaptations import LENGTH, Made, domains, rows_of
from commands import assert_refused, files
from conftest import Command

import askew
from askew import AdaptationResult, UserError
from askew.adaptation.artifacts import earlier_request, request_as_json, summary

pytestmark = pytest.mark.usefixtures("small_maps")

KEYS = [
    "form",
    "source",
    "target",
    "images",
    "classes",
    "network",
    "saved",
    "rejected",
    "verdict",
    "sentence",
    "expected_accuracy",
    "methods",
    "failures",
    "labels",
    "known_shares",
    "source_shares",
    "target_shares",
    "predicted",
    "unknown",
    "diagnosis",
    "findings",
    "seconds",
    "request",
    "identity",
    "files",
]


def test_the_keys_of_summary_json_are_these(made: Made) -> None:
    record = json.loads((made.out / "summary.json").read_text())
    assert list(record) == KEYS
    assert list(record["methods"][0]) == ["name", "run", "scores", "verdict"]
    assert list(record["target_shares"]) == ["estimator", "shares", "low", "high", "unsure"]


def test_summary_json_holds_every_number_as_plain_values(made: Made) -> None:
    record = json.loads((made.out / "summary.json").read_text())
    assert record.pop("files")
    assert record == json.loads(json.dumps(summary(made.found)))
    assert record["predicted"] == np.bincount(made.found.predicted, minlength=3).tolist()


def test_the_model_predicts_what_the_table_says(made: Made) -> None:
    model = askew.load(made.out, "cpu")
    p = model.predict_proba(np.load(made.out.parent / "target.npz")["x"])
    told = [[float(row[f"p_{name}"]) for name in model.classes] for row in table(made.out)]
    np.testing.assert_allclose(p, told, atol=5e-3)  # outputs are kept in half precision


def test_the_model_knows_the_estimated_class_shares(made: Made) -> None:
    told = askew.load(made.out, "cpu").card.target_prior
    assert told is not None
    np.testing.assert_allclose(told.prior, made.found.diagnosis.target_prior.prior)


def test_a_request_is_the_same_after_it_was_written_and_read(made: Made) -> None:
    again = earlier_request(made.out)
    for field in fields(made.request):
        if field.name not in ("source", "target"):
            assert getattr(again, field.name) == getattr(made.request, field.name), field.name


def test_a_request_in_memory_cannot_be_repeated_from_its_folder(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    source = (rows, np.array(["ant", "bee"] * 15))
    result = askew.adapt(
        source, rows + 1, tmp_path / "out", methods="source", training=LENGTH, device="cpu"
    )
    assert result.adaptation.request is not None
    assert request_as_json(result.adaptation.request) is None
    with pytest.raises(UserError, match="not a finished adaptation"):
        earlier_request(tmp_path / "out")


# --- choose ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> AdaptationResult:
    """Two methods combined, in a folder."""
    folder = tmp_path_factory.mktemp("choose")
    return askew.adapt(
        *domains(folder, 60), folder / "out", methods=["coal", "lda"], training=LENGTH, device="cpu"
    )


@pytest.fixture
def out(place: AdaptationResult, tmp_path: Path) -> Path:
    """A copy of its folder, to write into."""
    return shutil.copytree(place.folder, tmp_path / "out")


def table(folder: Path) -> list[dict[str, str]]:
    return rows_of(folder / "predictions.csv")


@pytest.mark.parametrize("method", ["source", "coal"])
def test_choose_saves_another_network_without_training(
    cli: Command, out: Path, method: str
) -> None:
    before, first = files(out / "runs"), table(out)
    answer = cli("choose", "out", method)
    assert answer.code == 0, answer.err
    assert files(out / "runs") == before
    assert json.loads((out / "summary.json").read_text())["saved"] == method
    assert askew.load(out, "cpu").card.made["method"] == method
    assert table(out) != first


def test_choose_of_the_student_gives_the_first_predictions_again(cli: Command, out: Path) -> None:
    first = table(out)
    assert cli("choose", "out", "source").code == 0
    assert cli("choose", "out", "student").code == 0
    assert table(out) == first


def test_a_report_says_that_a_network_was_requested(cli: Command, out: Path) -> None:
    assert cli("choose", "out", "coal").code == 0
    assert "The model is that of <b>coal</b>, as requested." in (out / "report.html").read_text()


def test_choose_refuses_a_network_that_was_not_trained(cli: Command, out: Path) -> None:
    before = files(out)
    answer = cli("choose", "out", "dann")
    assert_refused(answer)
    assert "There is no method 'dann'." in answer.err
    assert files(out / "model") == {
        name.removeprefix("model/"): t for name, t in before.items() if name.startswith("model/")
    }


@pytest.mark.parametrize("name", ["methods", "backbone"])
def test_choose_runs_no_file_that_a_stranger_s_summary_names(
    cli: Command, out: Path, tmp_path: Path, name: str
) -> None:
    code = f"from pathlib import Path\nPath('ran').touch()  # {name}\n"
    code += "from torch.nn import Identity as Evil\n"
    (out / "evil.py").write_text(code)
    told = json.loads((out / "summary.json").read_text())
    evil = "out/evil.py:Evil"
    told["request"][name] = [evil] if name == "methods" else evil
    (out / "summary.json").write_text(json.dumps(told))
    answer = cli("choose", "out", "source")
    assert_refused(answer)
    assert f"{evil}, which is code of somebody's file." in answer.err
    assert not (tmp_path / "ran").exists()
    cli("choose", "out", "source", "--allow-code")
    assert (tmp_path / "ran").exists(), "it was read and allowed"


def test_an_adaptation_leaves_these_files(out: Path) -> None:
    assert sorted(p.name for p in out.iterdir()) == [
        "log.txt",
        "model",
        "predictions.csv",
        "report.html",
        "runs",
        "summary.json",
        "target.json",
    ]
