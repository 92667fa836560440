"""Adapting to data of one's own, from files to files."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import CPU, LENGTH, finish
from commands import assert_refused
from conftest import Answer, Command

from askew.adaptation import pipeline as adapting
from askew.adaptation.api import diagnosed
from askew.adaptation.artifacts import predictor, summary, write_artifacts
from askew.adaptation.audit import audit
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.pipeline import Adaptation, adapt
from askew.adaptation.setup import AUTO, AdaptRequest
from askew.core.errors import UserError
from askew.evaluation import scores
from askew.evaluation.calibration import temperature
from askew.evaluation.unknown import Unfamiliar
from askew.inference.predictor import load

SHORT = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
NAMES = np.array(["ant", "bee", "cat"])

ON_EMBEDDINGS = AUTO["rows"]
CANDIDATES = len(ON_EMBEDDINGS) + 1
"""With the ensemble."""


def drawn(n: int, prior: list[float], shift: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds, in these shares, moved by `shift`."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=prior)
    return (2.5 * np.eye(3, 8)[y] + rng.normal(size=(n, 8)) + shift).astype(np.float32), y


def domains(folder: Path, n: int = 120) -> tuple[Path, Path]:
    """n labelled rows, and rows without labels in other shares."""
    xs, ys = drawn(n, [0.6, 0.3, 0.1], 0.0, 0)
    xt, _ = drawn(102, [0.1, 0.3, 0.6], 0.4, 1)
    np.savez(folder / "source.npz", x=xs, y=NAMES[ys])
    np.savez(folder / "target.npz", x=xt)
    return folder / "source.npz", folder / "target.npz"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Adaptation, Path]:
    """One adaptation of rows, with all files that it writes."""
    folder = tmp_path_factory.mktemp("own")
    found = finish(adapt(AdaptRequest(*domains(folder), training=LENGTH), folder / "out", CPU))
    write_artifacts(found, folder / "out")
    return found, folder / "out"


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


# --- through the command ---


def test_the_guide_s_embeddings_become_a_model_predictions_a_report_and_a_summary(cli: Command, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text().partition("## Embeddings")[2]
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    exec(code, {})  # the page's own data, into this folder
    adapt_words, predict_words, draw_words, *_ = [
        line.split() for line in re.findall(r"^    askew (.*)$", text, flags=re.M)
    ]
    answer: Answer = cli(*adapt_words, *SHORT)
    assert answer.code == 0, answer.err
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "log.txt", "model", "predictions.csv", "report.html", "runs", "summary.json",
    ]  # fmt: skip
    names = ("cat", "dog", "owl")
    assert all(name in answer.out for name in ("source", "coal", "chosen", *names))
    assert "report in out/report.html" in answer.err
    rows = rows_of(tmp_path / "out" / "predictions.csv")
    assert [row["path"] for row in rows] == [str(i) for i in range(300)]
    for row in rows:
        shares = {name: float(row[f"p_{name}"]) for name in names}
        assert abs(sum(shares.values()) - 1) < 1e-3
        assert row["class"] == max(shares, key=shares.__getitem__)
    record = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [m["name"] for m in record["methods"]] == ["source", "coal"]
    assert abs(sum(record["target_mix"]["mix"]) - 1) < 1e-6
    assert cli(*predict_words).code == 0
    drawn = cli(*draw_words[: draw_words.index("#")])
    assert "100 target images in out/to-label.csv" in drawn.out
    audited = cli("audit", "out", "labels.npz")
    assert audited.code == 0, audited.err
    assert "300 of 300 target images are labelled" in audited.out
    predicted = rows_of(tmp_path / predict_words[-1])
    assert list(predicted[0]) == ["path", "class", "probability", "problem", *(f"p_{n}" for n in names)]
    assert list(rows[0]) == [*predicted[0], "unknown"]
    same = [a["class"] == b["class"] for a, b in zip(rows, predicted, strict=True)]
    assert sum(same) >= 298, "but for the rounding of outputs that are kept in half precision"


# --- the whole way, in this process ---


def test_auto_trains_source_only_first_and_chooses_among_all(made: tuple[Adaptation, Path]) -> None:
    found, _ = made
    names = [*(c.name for c in ON_EMBEDDINGS), "ensemble"]
    assert [t.candidate.name for t in found.trained] == names
    assert found.trained[0].candidate.method == "source"
    assert set(found.verdicts) == set(names[1:])
    assert len({t.run.key for t in found.trained[:-1]}) == len(ON_EMBEDDINGS)


def test_the_ensemble_of_the_adapted_networks_is_a_candidate_and_becomes_one_model(
    made: tuple[Adaptation, Path], tmp_path: Path
) -> None:
    found, _ = made
    ensemble = found.trained[-1]
    assert 2 <= len(ensemble.members) < len(ON_EMBEDDINGS)
    assert ensemble.members[0].candidate.name != "source"
    taken = dataclasses.replace(found, chosen=len(found.trained) - 1, temperature=1.0)
    model = predictor(taken)
    model.save(tmp_path / "model")
    rows = found.setup.task.training_data.target.x[:50]
    for one in (model, load(tmp_path / "model", "cpu")):
        probabilities = one.predict_proba(rows)
        expected = scores.softmax(ensemble.outputs.target_uniform[:50])
        np.testing.assert_allclose(probabilities, expected, atol=2e-2)  # kept outputs have half precision


def test_an_audit_evaluates_the_ensemble_by_its_members(made: tuple[Adaptation, Path], tmp_path: Path) -> None:
    found, out = made
    write_artifacts(dataclasses.replace(found, chosen=len(found.trained) - 1), out)
    names = found.setup.data.target.names
    labels = "".join(f"{name},{found.classes[k]}\n" for name, k in zip(names, found.trained[-1].predicted, strict=True))
    (tmp_path / "labels.csv").write_text(f"path,label\n{labels}")
    last = audit(out, tmp_path / "labels.csv").methods[-1]
    assert (last.name, last.chosen, last.accuracy.value) == ("ensemble", True, 100.0)


def test_the_predictions_are_calibrated_and_for_a_uniform_prior(made: tuple[Adaptation, Path]) -> None:
    found, _ = made
    outputs = found.winner.outputs
    z = (outputs.target - np.log(outputs.training_prior)) / temperature(outputs)
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-9)


def test_the_model_predicts_what_the_table_says(made: tuple[Adaptation, Path]) -> None:
    found, out = made
    model = load(out, "cpu")
    probabilities = model.predict_proba(np.load(out.parent / "target.npz")["x"])
    np.testing.assert_allclose(probabilities, found.probabilities, atol=5e-3)  # outputs are kept in half precision
    assert model.card.target_prior is not None
    np.testing.assert_allclose(model.card.target_prior.prior, found.diagnosis.target_prior.prior)


def test_nothing_is_trained_twice(made: tuple[Adaptation, Path], tmp_path: Path) -> None:
    found, out = made
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*")}
    again = finish(adapt(found.request, out, CPU))
    assert {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*")} == before
    assert np.array_equal(again.probabilities, found.probabilities)


def test_work_that_was_stopped_goes_on_where_it_was(made: tuple[Adaptation, Path], tmp_path: Path) -> None:
    request = dataclasses.replace(made[0].request, method="coal")
    found = finish(adapt(request, made[1], CPU))
    work = adapt(request, tmp_path / "out", CPU)
    first = found.trained[0].run.key
    for step in work:
        if (tmp_path / "out" / "runs" / first / "done").exists() and step.key != first:
            break
    work.close()
    stamp = (tmp_path / "out" / "runs" / first / "weights.safetensors").stat().st_mtime_ns
    again = finish(adapt(request, tmp_path / "out", CPU))
    assert (tmp_path / "out" / "runs" / first / "weights.safetensors").stat().st_mtime_ns == stamp
    assert np.array_equal(again.probabilities, found.probabilities)


def test_a_target_without_one_class_is_predicted_alike_by_the_table_and_the_model(tmp_path: Path) -> None:
    """BBSE gives the class no weight in training, so the network never learns it; a floor must not bring it back."""
    xs, ys = drawn(240, [0.3, 0.3, 0.4], 0.0, 0)
    xt, yt = drawn(200, [0.5, 0.5, 0.0], 0.0, 1)
    np.savez(tmp_path / "source.npz", x=4 * xs, y=NAMES[ys])
    np.savez(tmp_path / "target.npz", x=4 * xt)
    length = LENGTH | {"pretrain": 100, "rounds": 4}
    request = AdaptRequest(tmp_path / "source.npz", tmp_path / "target.npz", "bbse", training=length)
    found = finish(adapt(request, tmp_path / "out", CPU))
    write_artifacts(found, tmp_path / "out")
    assert found.winner.outputs.training_prior[2] == 0, "the case that this is about"
    table = [row["class"] for row in rows_of(tmp_path / "out" / "predictions.csv")]
    assert np.mean(np.array(table) == NAMES[yt]) > 0.85
    assert np.mean(np.array(table) == load(tmp_path / "out", "cpu").predict(4 * xt)) > 0.99


def test_the_two_coals_have_labels_of_their_own_while_they_train(tmp_path: Path) -> None:
    request = AdaptRequest(*domains(tmp_path), training=LENGTH)
    labels = {step.label for step in adapt(request, tmp_path / "out", CPU)}
    assert {c.name for c in ON_EMBEDDINGS} <= labels


OWN_METHOD = """
from dataclasses import dataclass

import askew
from askew.methods.source import SourceOnly


@dataclass(frozen=True, kw_only=True)
class Mine(SourceOnly):
    id = "mine"
"""
DOUBLED = """
    def predict(self, net, x):
        return 2 * super().predict(net, x)
"""


def test_a_method_from_a_file_is_adapted_saved_and_loaded_without_the_file(cli: Command, tmp_path: Path) -> None:
    domains(tmp_path)
    (tmp_path / "mine.py").write_text(OWN_METHOD)
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mine.py:Mine", *SHORT)
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["chosen"] == "mine"
    (tmp_path / "mine.py").unlink()
    assert cli("predict", "out", "target.npz").code == 0, "its prediction is the usual one"


def test_a_model_that_predicts_by_a_file_s_code_asks_for_the_file(cli: Command, tmp_path: Path) -> None:
    domains(tmp_path)
    (tmp_path / "mine.py").write_text(OWN_METHOD + DOUBLED)
    answer = cli("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mine.py:Mine", *SHORT)
    assert answer.code == 0, answer.err
    record = json.loads((tmp_path / "out" / "summary.json").read_text())
    for place, file in (("out", "mine.py:Mine"), (f"out/runs/{record['methods'][1]['run']}", "FILE.py:CLASS")):
        refused = cli("predict", place, "target.npz")
        assert_refused(refused)
        assert f"predicts by code of its own, {file}" in refused.err
    answer = cli("predict", "out", "target.npz", "--method", "mine.py:Mine", "-o", "p.csv")
    assert answer.code == 0, answer.err
    table, kept = ([row["class"] for row in rows_of(tmp_path / file)] for file in ("p.csv", "out/predictions.csv"))
    assert np.mean(np.array(table) == kept) > 0.98
    (tmp_path / "mine.py").write_text(OWN_METHOD + DOUBLED.replace("2", "3"))
    changed_file = cli("predict", "out", "target.npz", "--method", "mine.py:Mine")
    assert_refused(changed_file)
    assert "is not the code that" in changed_file.err


def judged(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch, answer: str, method: str = "auto"
) -> Adaptation:
    """The adaptation as if its scores had preferred the third candidate (or the method), with such a verdict on all."""
    found, out = made
    one = dataclasses.replace(next(iter(found.verdicts.values())), verdict=answer, sentence=f"It seems {answer}.")
    monkeypatch.setattr(adapting, "choose", lambda networks: min(2, len(networks) - 1))
    monkeypatch.setattr(adapting, "judge_transfers", lambda networks: iter([one] * (len(networks) - 1)))
    return finish(adapt(dataclasses.replace(found.request, method=method), out, CPU))


@pytest.mark.parametrize("answer", ["helped", "unclear"])
def test_auto_saves_what_the_scores_prefer_unless_it_looks_harmful(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    found = judged(made, monkeypatch, answer)
    assert (found.chosen, found.rejected, found.sentence) == (CANDIDATES - 1, "", f"It seems {answer}.")


def test_auto_saves_source_only_where_its_choice_looks_harmful(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = judged(made, monkeypatch, "hurt")
    name = "ensemble"
    assert (found.chosen, found.rejected, found.verdict) == (0, name, None)
    assert found.sentence == (
        f"The network without adaptation was saved: {name} had the best scores, but looks harmful when compared "
        "with it. It seems hurt."
    )
    kept = found.trained[0].outputs
    calibrated = kept.target_uniform / temperature(kept)
    np.testing.assert_allclose(found.probabilities, scores.softmax(calibrated), rtol=1e-6)
    assert not codes(found) & {"A109", "A110"}
    write_artifacts(found, tmp_path)
    record = json.loads((tmp_path / "summary.json").read_text())
    assert (record["chosen"], record["rejected"], record["sentence"]) == ("source", name, found.sentence)
    assert "looks harmful" in (tmp_path / "report.html").read_text()


def test_a_method_that_was_asked_for_is_saved_with_a_warning_where_it_looks_harmful(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(made, monkeypatch, "hurt", "dann")
    assert (found.winner.candidate.name, found.rejected) == ("dann", "")
    assert found.sentence == (
        "It seems hurt. The network of dann was saved because it was asked for; `--method source` gives the one "
        "without adaptation."
    )
    assert "A109" in codes(found)


def test_scores_are_computed_once_for_each_network(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = made
    calls, plain = [], scores.ScoreInputs.of
    monkeypatch.setattr(scores.ScoreInputs, "of", lambda *args: calls.append(args) or plain(*args))
    finish(adapt(found.request, out, CPU))
    assert len(calls) == CANDIDATES


def test_a_method_that_fails_is_named_and_the_others_go_on(
    made: tuple[Adaptation, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = made
    whole = adapting.execute

    def failing(run: Any, task: Any, how: Any) -> Any:
        if run.method.id == "mcc":
            raise UserError("a loss is not finite.", "lower the rate.")
        return whole(run, task, how)

    monkeypatch.setattr(adapting, "execute", failing)
    again = finish(adapt(found.request, out, CPU))
    assert again.failed == {"mcc": "a loss is not finite."}
    assert len(again.trained) == CANDIDATES - 1
    assert "A115" in {r.code for r in adaptation_findings(again)}


# --- images of no known class ---


def test_images_of_a_class_taken_out_of_the_source_are_found_marked_and_do_not_break_the_choice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    xs, ys = drawn(240, [0.4, 0.3, 0.3], 0.0, 0)
    xt, yt = drawn(160, [0.3, 0.3, 0.4], 0.2, 1)
    strange = 2.5 * np.eye(8)[3] + rng.normal(size=(40, 8))  # a fourth class, which the source lacks
    np.savez(tmp_path / "source.npz", x=4 * xs, y=NAMES[ys])
    np.savez(tmp_path / "target.npz", x=4 * np.concatenate([xt, strange]).astype(np.float32))
    length = LENGTH | {"pretrain": 100}
    request = AdaptRequest(tmp_path / "source.npz", tmp_path / "target.npz", training=length)
    found = finish(adapt(request, tmp_path / "out", CPU))
    write_artifacts(found, tmp_path / "out")
    known = np.arange(200) < 160
    auc = np.mean(found.unfamiliar.score[~known][:, None] > found.unfamiliar.score[known])
    assert auc > 0.8
    marked = np.array([row["unknown"] == "yes" for row in rows_of(tmp_path / "out" / "predictions.csv")])
    assert (marked == found.unfamiliar.marked).all()
    assert marked[~known].mean() > 2 * marked[known].mean()
    assert "Like no known class" in (tmp_path / "out" / "report.html").read_text()
    right = [np.mean(t.predicted[:160] == yt) for t in found.trained]
    assert right[found.chosen] > max(right) - 0.1, "the choice is still one of the best"


# --- remarks ---


def codes(found: Adaptation) -> set[str]:
    return {finding.code for finding in adaptation_findings(found)}


def changed(found: Adaptation, **verdict: Any) -> Adaptation:
    """As if the first method beside source-only had been chosen, with such a verdict."""
    name = found.trained[1].candidate.name
    own = dataclasses.replace(found.verdicts[name], **({"verdict": "helped", "collapsed": False} | verdict))
    return dataclasses.replace(found, chosen=1, verdicts=dict(found.verdicts) | {name: own})


def test_each_remark_is_made_where_it_holds_and_only_there(made: tuple[Adaptation, Path]) -> None:
    found, _ = made
    fine = changed(found)
    data, setup = fine.setup.data, fine.setup
    assert not codes(fine) & {"A101", "A102", "A103", "A104", "A106", "A108", "A109", "A110", "A114", "A115", "A117"}
    cases: dict[str, Callable[[], Adaptation]] = {
        "A102": lambda: _with_data(fine, target=dataclasses.replace(data.target, broken=("x.jpg: torn",))),
        "A103": lambda: _with_data(fine, unknown=("zebra",)),
        "A104": lambda: _with_data(fine, shared=3),
        "A108": lambda: changed(found, verdict="unclear"),
        "A109": lambda: changed(found, verdict="hurt"),
        "A110": lambda: changed(found, collapsed=True),
        "A113": lambda: dataclasses.replace(fine, probabilities=np.eye(3)[[0, 1] * 51]),
        "A114": lambda: dataclasses.replace(fine, request=dataclasses.replace(fine.request, quick=True)),
        "A116": lambda: _with_source_only_logits(fine, np.eye(3)[[2] * 102]),
        "A115": lambda: dataclasses.replace(fine, failed={"dann": "no"}),
        "A117": lambda: dataclasses.replace(fine, unfamiliar=Unfamiliar(np.arange(102.0), 50.0)),
    }
    before = codes(dataclasses.replace(fine, probabilities=np.eye(3)[[0, 1, 2] * 34], setup=setup))
    for code, case in cases.items():
        assert code not in before, code
        assert code in codes(case()), code


def _with_source_only_logits(found: Adaptation, logits: np.ndarray) -> Adaptation:
    first = found.trained[0]
    first = dataclasses.replace(first, outputs=dataclasses.replace(first.outputs, target=logits))
    return dataclasses.replace(found, trained=(first, *found.trained[1:]))


def _with_data(found: Adaptation, **changes: Any) -> Adaptation:
    data = dataclasses.replace(found.setup.data, **changes)
    return dataclasses.replace(found, setup=dataclasses.replace(found.setup, data=data))


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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source.npz", "target.npz"], "what was trained is gone again"


def test_diagnose_takes_a_given_model(made: tuple[Adaptation, Path], tmp_path: Path) -> None:
    found, out = made
    request = dataclasses.replace(found.request, method="source")
    diagnosis, data = finish(diagnosed(request, tmp_path / "no", CPU, out))
    assert not (tmp_path / "no").exists()
    assert data.task.training_data.classes == found.classes
    if not found.chosen:
        np.testing.assert_allclose(diagnosis.target_prior.prior, found.diagnosis.target_prior.prior, atol=0.02)
    with np.load(request.source) as arrays:
        np.savez(tmp_path / "other.npz", x=arrays["x"], y=np.array([f"{name}s" for name in arrays["y"]]))
    with pytest.raises(UserError, match="The model knows the classes ant, bee, cat; the source has ants, bees, cats"):
        finish(diagnosed(dataclasses.replace(request, source=tmp_path / "other.npz"), tmp_path, CPU, out))


def test_the_summary_is_plain_json_with_every_number(made: tuple[Adaptation, Path]) -> None:
    found, out = made
    record = json.loads((out / "summary.json").read_text())
    assert record == json.loads(json.dumps(summary(found)))
    assert record["predicted"] == np.bincount(found.predicted, minlength=3).tolist()
    assert [set(m["scores"]) for m in record["methods"]] == [set(found.scores[0])] * CANDIDATES


# --- the guide ---


def test_the_guide_lists_every_finding() -> None:
    import inspect

    from askew.adaptation import findings as module

    page = (Path(__file__).parents[2] / "docs" / "reading-the-report.md").read_text()
    made = re.findall(r'"(A1\d\d)"', inspect.getsource(module))
    assert len(set(made)) == len(made) > 10
    assert re.findall(r"^\| (A1\d\d) \|", page, flags=re.M) == sorted(made)
