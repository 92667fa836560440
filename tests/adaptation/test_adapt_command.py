"""`askew adapt` and `askew diagnose`: the guide's data, methods in files, and requests that are
refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from adaptations import NAMES, SHORT, domains, rows_of
from commands import assert_refused
from conftest import Answer, Command
from own_methods import FILE

pytestmark = pytest.mark.usefixtures("small_maps")


def test_the_guide_s_table_is_adapted_predicted_and_audited(cli: Command, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text()
    section = guide.partition("## Tables and embeddings")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    exec(code, {})  # the page's own data, into this folder
    adapt_words, predict_words, audit_words = [
        line.split() for line in re.findall(r"^    askew (.*)$", section, flags=re.M)
    ]
    answer: Answer = cli(*adapt_words)
    assert answer.code == 0, answer.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "log.txt",
        "model",
        "predictions.csv",
        "report.html",
        "runs",
        "summary.json",
        "target.json",
    ]
    names = ("cat", "dog", "owl")
    assert all(name in answer.out for name in names)
    assert "Adaptation helped" in answer.out
    assert "report in out/report.html" in answer.err
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert [row["path"] for row in rows] == [str(i) for i in range(600)]
    for row in rows:
        shares = {name: float(row[f"p_{name}"]) for name in names}
        assert abs(sum(shares.values()) - 1) < 1e-3
        assert row["class"] == max(shares, key=shares.__getitem__)
    record = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [m["name"] for m in record["methods"]] == ["source", "student"]
    assert abs(sum(record["target_shares"]["shares"]) - 1) < 1e-6
    assert cli(*predict_words).code == 0
    predicted = rows_of(tmp_path / predict_words[-1])
    assert list(predicted[0]) == [
        "path",
        "class",
        "probability",
        "problem",
        *(f"p_{n}" for n in names),
    ]
    assert list(rows[0]) == [*predicted[0], "unknown"]
    same = [a["class"] == b["class"] for a, b in zip(rows, predicted, strict=True)]
    assert sum(same) >= 598, "but for the rounding of outputs that are kept in half precision"
    audited = cli(*audit_words)
    assert audited.code == 0, audited.err
    assert "600 of 600 target images are labelled" in audited.out
    assert "Adaptation (student) helped" in audited.out
    sampled = cli("audit", "out", "--sample", "100")
    assert "100 target images in out/to-label.csv" in sampled.out


# --- a method from a file ---

DOUBLED = """
    def predict(self, net, x):
        return 2 * super().predict(net, x)
"""


def test_a_method_from_a_file_is_adapted_saved_and_loaded_without_the_file(
    cli: Command, tmp_path: Path
) -> None:
    domains(tmp_path)
    (tmp_path / "mine.py").write_text(FILE)
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mine.py:Mine", *SHORT)
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["saved"] == "mine"
    (tmp_path / "mine.py").unlink()
    assert cli("predict", "out", "target.npz").code == 0, "its prediction is the usual one"


def test_a_model_that_predicts_by_a_file_s_code_asks_for_the_file(
    cli: Command, tmp_path: Path
) -> None:
    domains(tmp_path)
    (tmp_path / "mine.py").write_text(FILE + DOUBLED)
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mine.py:Mine", *SHORT)
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "out" / "summary.json").read_text())
    for place, file in (
        ("out", "mine.py:Mine"),
        (f"out/runs/{record['methods'][1]['run']}", "FILE.py:CLASS"),
    ):
        refused = cli("predict", place, "target.npz")
        assert_refused(refused)
        assert f"predicts by code of its own, {file}" in refused.err
    answer = cli("predict", "out", "target.npz", "--method", "mine.py:Mine", "-o", "p.csv")
    assert answer.code == 0, answer.err
    table, kept = (
        [row["class"] for row in rows_of(tmp_path / file)]
        for file in ("p.csv", "out/predictions.csv")
    )
    assert np.mean(np.array(table) == kept) > 0.98
    (tmp_path / "mine.py").write_text(FILE + DOUBLED.replace("2", "3"))
    changed_file = cli("predict", "out", "target.npz", "--method", "mine.py:Mine")
    assert_refused(changed_file)
    assert "is not the code that" in changed_file.err


# --- refusals: before any work, and nothing is left behind ---


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("-m", "cola"), "There is no method 'cola'."),
        (("-t", "lrr=1"), "There is no option of training 'lrr'."),
        (("--backbone", "resnet18"), "The data are rows of numbers, which resnet18 does not take."),
        (("--seed", "-1"), "--seed must be at least 0, found -1."),
        (("--device", "tpu"), "There is no device 'tpu'."),
    ],
)
def test_a_wrong_request_is_refused_and_leaves_nothing(
    cli: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    domains(tmp_path)
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out", *words)
    assert_refused(answer)
    assert answer.err.startswith(sentence)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_left_alone(cli: Command, tmp_path: Path) -> None:
    domains(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out")
    assert_refused(answer)
    assert answer.err.startswith("The folder out holds other things")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert_refused(cli("adapt", "source.npz", "target.npz", "-o", "source.npz"))


# --- diagnose ---


def test_diagnose_finds_the_label_shift_and_prints_json(cli: Command, tmp_path: Path) -> None:
    domains(tmp_path, 600)
    answer = cli("diagnose", "source.npz", "target.npz", "--json", *SHORT)
    assert answer.code == 0, answer.err
    record = json.loads(answer.out)
    assert record["classes"] == list(NAMES)
    assert record["kind"] in ("label", "both")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.npz", "target.npz"], (
        "what was trained is gone again"
    )
