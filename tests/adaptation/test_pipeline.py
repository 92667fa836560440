"""Adapting to data of one's own, from files to files."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import CPU, LENGTH, NAMES, Adapted, codes, drawn, finish, rows_of

from askew.adaptation import candidates, members
from askew.adaptation import pipeline as adapting
from askew.adaptation.api import diagnosed
from askew.adaptation.artifacts import predictor, summary, write_artifacts
from askew.adaptation.audit import audit
from askew.adaptation.candidates import AUTO, ENSEMBLE, REFIT
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.pipeline import Adaptation, adapt
from askew.adaptation.setup import AdaptRequest
from askew.core.errors import UserError
from askew.evaluation import scores
from askew.evaluation.calibration import temperature
from askew.evaluation.smoothing import smoothed
from askew.inference.predictor import load

ON_EMBEDDINGS = AUTO["embeddings"]
CANDIDATES = len(ON_EMBEDDINGS) + 2
"""Those, the one that is fitted to their answers, and the ensemble."""


# --- the whole way, in this process ---


def test_auto_trains_source_only_first_and_chooses_among_all(made: Adapted) -> None:
    found = made.found
    names = [*(c.name for c in ON_EMBEDDINGS), REFIT.name, "ensemble"]
    assert [t.candidate.name for t in found.trained] == names
    assert found.trained[0].candidate.method == "source"
    assert set(found.verdicts) == set(names[1:])
    assert len({t.run.key for t in found.trained[:-1]}) == CANDIDATES - 1


@pytest.mark.usefixtures("all_candidates")
def test_mcc_on_rows_sees_every_class_twice_in_a_batch_unless_the_user_wants_another() -> None:
    mcc = next(one for one in AUTO["embeddings"] if one.method == "mcc")
    assert [mcc.trained_with({}, classes).get("batch") for classes in (7, 16, 31, 345)] == [
        None,
        None,
        62,
        128,
    ]
    assert mcc.trained_with({"batch": 24, "lr": 0.1}, 31) == {"batch": 24, "lr": 0.1}
    others = [one for one in AUTO["embeddings"] if one.method != "mcc"] + list(AUTO["images"])
    assert not any("batch" in one.trained_with({}, 31) for one in others)


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize(
    ("method", "net"), [("lda", "centred"), ("prototypes", "bare"), ("subspace", "centred")]
)
def test_a_closed_form_that_is_asked_for_takes_rows_as_auto_s_does(
    made: Adapted, method: str, net: str
) -> None:
    setup, request = made.found.setup, dataclasses.replace(made.found.request, method=method)
    wanted = [one for one in AUTO["embeddings"] if one.method == method]
    asked, *own = [
        one.run(setup.task, setup.network, setup.training, 0)
        for one in (setup.candidates(request)[-1], *wanted)
    ]
    assert asked.net.name == net
    assert {run.key for run in own} <= {asked.key}


def test_the_ensemble_of_the_adapted_networks_is_a_candidate_and_becomes_one_model(
    made: Adapted, tmp_path: Path
) -> None:
    found = made.found
    ensemble = found.trained[-1]
    assert 3 <= len(ensemble.members) <= len(ON_EMBEDDINGS)
    *others, refit = ensemble.members
    assert refit.candidate.weight == REFIT.weight * sum(t.candidate.weight for t in others)
    assert ensemble.members[0].candidate.name != "source"
    taken = dataclasses.replace(found, chosen=len(found.trained) - 1, temperature=1.0)
    model = predictor(taken)
    model.save(tmp_path / "model")
    rows = found.setup.task.training_data.target.x[:50]
    for one in (model, load(tmp_path / "model", "cpu")):
        probabilities = one.predict_proba(rows)
        expected = scores.softmax(ensemble.outputs.target_uniform[:50])
        np.testing.assert_allclose(
            probabilities, expected, atol=2e-2
        )  # kept outputs have half precision


@pytest.mark.usefixtures("all_candidates")
def test_a_network_that_does_not_repeat_the_answers_it_was_fitted_to_is_no_member(
    made: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ensemble = made.found.trained[-2], made.found.trained[-1]
    answers = scores.softmax(
        members.together(ENSEMBLE, ensemble.members[:-1]).outputs.target_uniform
    )
    heard = smoothed(answers, np.asarray(made.found.setup.task.training_data.target.x))
    same = (plain.predicted == heard.argmax(axis=1)).mean()
    for least, joins in ((same, True), (same + 0.001, False)):
        monkeypatch.setattr(candidates, "REPEATS", least)
        found = finish(adapt(made.found.request, made.out, CPU))
        assert (found.trained[-1].members[-1].candidate.name == REFIT.name) == joins
        assert len(found.trained) == CANDIDATES


@pytest.mark.usefixtures("all_candidates")
def test_on_a_narrow_table_no_network_is_fitted_to_the_answers(
    made: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = made.found.setup.task.training_data.target.x.shape[1]
    for wide, joins in ((columns, True), (columns + 1, False)):
        monkeypatch.setattr(candidates, "WIDE", wide)
        found = finish(adapt(made.found.request, made.out, CPU))
        assert (found.trained[-1].members[-1].candidate.name == REFIT.name) == joins
        assert len(found.trained) == CANDIDATES - (not joins)


def test_a_model_and_an_audit_know_how_much_each_member_of_the_ensemble_counts(
    made: Adapted, tmp_path: Path
) -> None:
    found, plain = made.found, made.found.trained[-1]
    first, *others = plain.members
    heavy = dataclasses.replace(first, candidate=dataclasses.replace(first.candidate, weight=50.0))
    ensemble = members.together(plain.candidate, [heavy, *others])
    assert (ensemble.predicted != plain.predicted).any(), "or the weight says nothing"
    assert (ensemble.predicted == first.predicted).mean() > 0.95
    taken = dataclasses.replace(
        found, trained=(*found.trained[:-1], ensemble), chosen=len(found.trained) - 1
    )
    out = shutil.copytree(made.out, tmp_path / "out")
    write_artifacts(taken, out)
    predicted = (
        load(out, "cpu").predict_proba(found.setup.task.training_data.target.x).argmax(axis=1)
    )
    assert (predicted == ensemble.predicted).mean() > 0.99, "kept outputs have half precision"
    alike = [
        dataclasses.replace(t, candidate=dataclasses.replace(t.candidate, weight=1.0))
        for t in plain.members
    ]
    even = members.together(plain.candidate, alike)
    for weights, labels in (
        (True, ensemble.predicted),
        (False, even.predicted),
    ):  # earlier versions wrote no weights
        told = json.loads((out / "summary.json").read_text())
        if not weights:
            del told["methods"][-1]["weights"]
            (out / "summary.json").write_text(json.dumps(told))
        names = found.setup.data.target.names
        lines = "".join(
            f"{name},{found.classes[k]}\n" for name, k in zip(names, labels, strict=True)
        )
        (tmp_path / "labels.csv").write_text(f"path,label\n{lines}")
        last = audit(out, tmp_path / "labels.csv").methods[-1]
        assert (last.name, last.chosen, last.accuracy.value) == ("ensemble", True, 100.0)


def test_the_predictions_are_calibrated_and_for_a_uniform_prior(made: Adapted) -> None:
    found = made.found
    outputs = found.winner.outputs
    z = (outputs.target - np.log(outputs.training_prior)) / found.temperature
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-9)


def test_probabilities_are_as_high_as_two_of_the_adapted_methods_agree(made: Adapted) -> None:
    found = made.found
    adapted = [t for t in found.trained[1:] if not t.members and not t.candidate.is_refit]
    assert len(adapted) == len(ON_EMBEDDINGS) - 1
    agreed = [
        np.mean(a.predicted == b.predicted) for i, a in enumerate(adapted) for b in adapted[i + 1 :]
    ]
    assert found.expected is not None
    assert found.expected.overall == pytest.approx(np.mean(agreed))
    assert found.probabilities.max(axis=1).mean() == pytest.approx(np.mean(agreed), abs=1e-6)
    told = json.loads((made.out / "summary.json").read_text())["expected_accuracy"]
    assert told == {**found.expected.as_dict()}
    assert found.expected.sentence in (made.out / "report.html").read_text()


@pytest.mark.parametrize("method", ["source", "coal"])
def test_without_other_methods_to_compare_probabilities_are_calibrated_on_the_source(
    made: Adapted, method: str
) -> None:
    found = finish(adapt(dataclasses.replace(made.found.request, method=method), made.out, CPU))
    assert found.expected is None
    assert found.temperature == temperature(found.winner.outputs)


def test_the_model_predicts_what_the_table_says(made: Adapted) -> None:
    found, out, _ = made
    model = load(out, "cpu")
    probabilities = model.predict_proba(np.load(out.parent / "target.npz")["x"])
    np.testing.assert_allclose(
        probabilities, found.probabilities, atol=5e-3
    )  # outputs are kept in half precision
    assert model.card.target_prior is not None
    np.testing.assert_allclose(model.card.target_prior.prior, found.diagnosis.target_prior.prior)


@pytest.mark.usefixtures("all_candidates")
def test_nothing_is_trained_twice(made: Adapted) -> None:
    found, out, _ = made
    before = {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*")}
    again = finish(adapt(found.request, out, CPU))
    assert {p: p.stat().st_mtime_ns for p in (out / "runs").rglob("*")} == before
    assert np.array_equal(again.probabilities, found.probabilities)


def test_the_two_coals_have_labels_of_their_own_while_they_train(made: Adapted) -> None:
    assert {c.name for c in ON_EMBEDDINGS} <= made.labels


def test_work_that_was_stopped_goes_on_where_it_was(made: Adapted, tmp_path: Path) -> None:
    request = dataclasses.replace(made.found.request, method="coal")
    found = finish(adapt(request, made.out, CPU))
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


def test_a_target_without_one_class_is_predicted_alike_by_the_table_and_the_model(
    tmp_path: Path,
) -> None:
    """BBSE gives the class no weight in training, so the network never learns it; a floor must not
    bring it back."""
    xs, ys = drawn(240, [0.3, 0.3, 0.4], 0.0, 0)
    xt, yt = drawn(200, [0.5, 0.5, 0.0], 0.0, 1)
    np.savez(tmp_path / "source.npz", x=4 * xs, y=NAMES[ys])
    np.savez(tmp_path / "target.npz", x=4 * xt)
    length = LENGTH | {"pretrain": 100, "rounds": 4}
    request = AdaptRequest(
        tmp_path / "source.npz", tmp_path / "target.npz", "bbse", training=length
    )
    found = finish(adapt(request, tmp_path / "out", CPU))
    write_artifacts(found, tmp_path / "out")
    assert found.winner.outputs.training_prior[2] == 0, "the case that this is about"
    table = [row["class"] for row in rows_of(tmp_path / "out" / "predictions.csv")]
    assert np.mean(np.array(table) == NAMES[yt]) > 0.85
    assert np.mean(np.array(table) == load(tmp_path / "out", "cpu").predict(4 * xt)) > 0.99


def judged(
    made: Adapted, monkeypatch: pytest.MonkeyPatch, answer: str, method: str = "auto"
) -> Adaptation:
    """The adaptation as if its scores had preferred the third candidate (or the method), with such
    a verdict on all."""
    found, out, _ = made
    one = dataclasses.replace(
        next(iter(found.verdicts.values())), verdict=answer, sentence=f"It seems {answer}."
    )
    monkeypatch.setattr(adapting, "choose", lambda networks: min(2, len(networks) - 1))
    monkeypatch.setattr(
        adapting, "judge_transfers", lambda networks: iter([one] * (len(networks) - 1))
    )
    return finish(adapt(dataclasses.replace(found.request, method=method), out, CPU))


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("answer", ["helped", "unclear"])
def test_auto_saves_what_the_scores_prefer_unless_it_looks_harmful(
    made: Adapted, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    found = judged(made, monkeypatch, answer)
    assert (found.chosen, found.rejected, found.sentence) == (
        CANDIDATES - 1,
        "",
        f"It seems {answer}.",
    )


def test_auto_saves_source_only_where_its_choice_looks_harmful(
    made: Adapted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = judged(made, monkeypatch, "hurt")
    name = "ensemble"
    assert (found.chosen, found.rejected, found.verdict) == (0, name, None)
    assert found.sentence == (
        f"The network without adaptation was saved: {name} had the best scores, but looks "
        "harmful when compared "
        "with it. It seems hurt."
    )
    kept = found.trained[0].outputs
    calibrated = kept.target_uniform / temperature(kept)
    np.testing.assert_allclose(found.probabilities, scores.softmax(calibrated), rtol=1e-6)
    assert not codes(found) & {"A109", "A110"}
    write_artifacts(found, tmp_path)
    record = json.loads((tmp_path / "summary.json").read_text())
    assert (record["chosen"], record["rejected"], record["sentence"]) == (
        "source",
        name,
        found.sentence,
    )
    assert "looks harmful" in (tmp_path / "report.html").read_text()


def test_a_method_that_was_asked_for_is_saved_with_a_warning_where_it_looks_harmful(
    made: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(made, monkeypatch, "hurt", "dann")
    assert (found.winner.candidate.name, found.rejected) == ("dann", "")
    assert found.sentence == (
        "It seems hurt. The network of dann was saved because it was asked for; `--method "
        "source` gives the one "
        "without adaptation."
    )
    assert "A109" in codes(found)


@pytest.mark.usefixtures("all_candidates")
def test_scores_are_computed_once_for_each_network(
    made: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out, _ = made
    calls, plain = [], scores.ScoreInputs.of
    monkeypatch.setattr(scores.ScoreInputs, "of", lambda *args: calls.append(args) or plain(*args))
    finish(adapt(found.request, out, CPU))
    assert len(calls) == CANDIDATES


@pytest.mark.usefixtures("all_candidates")
def test_a_method_that_fails_is_named_and_the_others_go_on(
    made: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out, _ = made
    whole = members.execute

    def failing(run: Any, task: Any, how: Any) -> Any:
        if run.method.id == "mcc":
            raise UserError("a loss is not finite.", "lower the rate.")
        return whole(run, task, how)

    monkeypatch.setattr(members, "execute", failing)
    again = finish(adapt(found.request, out, CPU))
    assert again.failed == {"mcc": "a loss is not finite."}
    alone = [t.candidate.name for t in again.trained if not t.members]
    assert alone == [*(one.name for one in AUTO["embeddings"] if one.method != "mcc"), REFIT.name]
    assert "A115" in {r.code for r in adaptation_findings(again)}


# --- images of no known class ---


def test_images_of_a_class_taken_out_of_the_source_are_found_marked_and_do_not_break_the_choice(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    xs, ys = drawn(240, [0.4, 0.3, 0.3], 0.0, 0)
    xt, yt = drawn(160, [0.3, 0.3, 0.4], 0.2, 1)
    strange = 2.5 * np.eye(8)[3] + rng.normal(
        size=(40, 8)
    )  # a fourth class, which the source lacks
    np.savez(tmp_path / "source.npz", x=4 * xs, y=NAMES[ys])
    np.savez(tmp_path / "target.npz", x=4 * np.concatenate([xt, strange]).astype(np.float32))
    length = LENGTH | {"pretrain": 100}
    request = AdaptRequest(tmp_path / "source.npz", tmp_path / "target.npz", training=length)
    found = finish(adapt(request, tmp_path / "out", CPU))
    write_artifacts(found, tmp_path / "out")
    known = np.arange(200) < 160
    auc = np.mean(found.unfamiliar.score[~known][:, None] > found.unfamiliar.score[known])
    assert auc > 0.8
    marked = np.array(
        [row["unknown"] == "yes" for row in rows_of(tmp_path / "out" / "predictions.csv")]
    )
    assert (marked == found.unfamiliar.marked).all()
    assert marked[~known].mean() > 2 * marked[known].mean()
    assert "Perhaps of no known class" in (tmp_path / "out" / "report.html").read_text()
    right = [np.mean(t.predicted[:160] == yt) for t in found.trained]
    assert right[found.chosen] > max(right) - 0.1, "the choice is still one of the best"


# --- diagnose ---


def test_diagnose_takes_a_given_model(made: Adapted, tmp_path: Path) -> None:
    found, out, _ = made
    request = dataclasses.replace(found.request, method="source")
    diagnosis, data = finish(diagnosed(request, tmp_path / "no", CPU, out))
    assert not (tmp_path / "no").exists()
    assert data.task.training_data.classes == found.classes
    if not found.chosen:
        given, own = (one.priors["unadapted"]["bbse"].prior for one in (diagnosis, found.diagnosis))
        np.testing.assert_allclose(given, own, atol=0.02)
    with np.load(request.source) as arrays:
        np.savez(
            tmp_path / "other.npz", x=arrays["x"], y=np.array([f"{name}s" for name in arrays["y"]])
        )
    with pytest.raises(
        UserError,
        match="The model knows the classes ant, bee, cat; the source has ants, bees, cats",
    ):
        finish(
            diagnosed(
                dataclasses.replace(request, source=tmp_path / "other.npz"), tmp_path, CPU, out
            )
        )


def test_the_summary_is_plain_json_with_every_number(made: Adapted) -> None:
    found, out, _ = made
    record = json.loads((out / "summary.json").read_text())
    assert record == json.loads(json.dumps(summary(found)))
    assert record["predicted"] == np.bincount(found.predicted, minlength=3).tolist()
    assert [set(m["scores"]) for m in record["methods"]] == [set(found.scores[0])] * CANDIDATES
