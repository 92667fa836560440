"""`auto`: what it trains, combines and saves; methods that the user names; and what may fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import CPU, LENGTH, NAMES, Made, adapted, codes, drawn, request_for
from own_methods import FILE, Broken, Louder

import askew
from askew import AdaptationResult, UserError
from askew.adaptation import recipe
from askew.adaptation.api import adapt_steps
from askew.adaptation.recipe import CANDIDATES, STUDENT
from askew.adaptation.session import Candidate
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.neighbours import smooth_over_neighbours
from askew.evaluation.outputs import softmax

pytestmark = pytest.mark.usefixtures("small_maps")

CLOUDS = drawn(60, [0.4, 0.3, 0.3], 0.0, 0)
SOURCE = (CLOUDS[0], NAMES[CLOUDS[1]])
TARGET = drawn(40, [0.2, 0.3, 0.5], 0.4, 1)[0]
USUAL = [one.name for one in CANDIDATES["embeddings"]]


def adapt(methods: Any, **more: Any) -> AdaptationResult:
    return askew.adapt(SOURCE, TARGET, methods=methods, training=LENGTH, device="cpu", **more)


def names_in(result: AdaptationResult) -> list[str]:
    return [method["name"] for method in result.summary["methods"]]


# --- auto ---


def test_source_only_is_trained_first_then_the_candidates_then_the_student(made: Made) -> None:
    names = [one.name for one in made.found.networks]
    assert names == ["source", *USUAL, "student"]


def test_source_only_is_reported_with_scores_and_without_a_verdict(made: Made) -> None:
    first, *others = json.loads((made.out / "summary.json").read_text())["methods"]
    assert (first["name"], first["verdict"]) == ("source", None)
    assert set(first["scores"]) == set(made.found.scores[0])
    assert all(one["verdict"] in ("helped", "unclear", "hurt") for one in others)


def test_the_student_is_saved_as_one_network_of_one_linear_layer(made: Made) -> None:
    model = askew.load(made.out, "cpu")
    student = made.found.networks[-1]
    assert made.found.final is student
    assert model.card.made["method"] == "student"
    assert model.card.net.name == "centred"
    assert sum(name.endswith("head.weight") for name in model.weights) == 1


def test_the_student_learns_the_smoothed_mean_of_the_candidates(made: Made) -> None:
    *others, student = made.found.networks
    mean = softmax(mean_outputs([one.outputs for one in others[1:]]).target_uniform)
    soft = smooth_over_neighbours(mean, np.asarray(student.task.training_data.target.x))
    assert student.task.training_data.soft_labels == pytest.approx(soft, abs=1e-6)


def test_the_student_agrees_with_its_soft_labels(made: Made) -> None:
    student = made.found.networks[-1]
    soft = student.task.training_data.soft_labels
    assert soft is not None
    assert (student.predicted == soft.argmax(axis=1)).mean() > 0.85


def test_the_student_has_no_say_in_the_scores_of_others(made: Made) -> None:
    *others, _ = made.found.networks
    alone = recipe.score_networks([one.outputs for one in others])
    assert [dict(one.scores) for one in alone] == [dict(s) for s in made.found.scores[:-1]]


def test_nothing_is_trained_twice(made: Made) -> None:
    before = {p: p.stat().st_mtime_ns for p in (made.out / "runs").rglob("*")}
    again = adapted(made.request, made.out)
    assert {p: p.stat().st_mtime_ns for p in (made.out / "runs").rglob("*")} == before
    assert np.array_equal(again.probabilities, made.found.probabilities)


def test_work_that_was_stopped_continues_where_it_was(made: Made, tmp_path: Path) -> None:
    request = request_for(made.request.source, made.request.target, methods=("coal",))
    work = adapt_steps(request, tmp_path, CPU)
    first = made.found.networks[0].run.key
    for step in work:
        if (tmp_path / "runs" / first / "done").exists() and step.key != first:
            break
    work.close()
    weights = tmp_path / "runs" / first / "weights.safetensors"
    stamp = weights.stat().st_mtime_ns
    again = adapted(request, tmp_path)
    assert weights.stat().st_mtime_ns == stamp
    whole = adapted(request, made.out)
    assert np.array_equal(again.probabilities, whole.probabilities)


def test_steps_of_each_network_are_labelled_with_its_name(made: Made) -> None:
    assert {"source", *USUAL, "student"} <= made.labels


def test_mcc_on_rows_sees_every_class_twice_in_a_batch() -> None:
    (mcc,) = (one for one in CANDIDATES["embeddings"] if one.method == "mcc")
    (named,) = recipe.named_candidates(["mcc"], {}, 0)
    others = [one for one in CANDIDATES["embeddings"] if one is not mcc]
    assert mcc.images_per_class == named.images_per_class == 2
    assert not any(one.images_per_class for one in others)


# --- the verdict decides ---


def judged(made: Made, monkeypatch: pytest.MonkeyPatch, answer: str, **changes: Any) -> Any:
    """The adaptation as if all its networks had such a verdict."""
    one = replace(made.found.verdicts["coal-balanced"], verdict=answer, sentence=f"It {answer}.")
    monkeypatch.setattr(
        recipe, "judge_transfers", lambda networks, **_: iter([one] * (len(networks) - 1))
    )
    return adapted(replace(made.request, **changes), made.out)


@pytest.mark.parametrize("answer", ["helped", "unclear"])
def test_a_student_that_does_not_look_harmful_is_saved(
    made: Made, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    found = judged(made, monkeypatch, answer)
    assert (found.final.name, found.rejected, found.sentence) == ("student", "", f"It {answer}.")


def test_a_harmful_student_is_replaced_by_source_only(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(made, monkeypatch, "hurt")
    assert (found.final.name, found.rejected, found.verdict) == ("source", "student", None)
    assert np.array_equal(found.predicted, found.networks[0].predicted)


def test_a_report_says_that_a_harmful_student_was_replaced(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(made, monkeypatch, "hurt")
    assert found.sentence == (
        "The network without adaptation was saved, because the adapted one looks harmful. It hurt."
    )
    assert not codes(found) & {"A109", "A110"}


def test_a_harmful_method_that_was_named_is_saved_with_a_warning(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = judged(made, monkeypatch, "hurt", methods=("coal",))
    assert (found.final.name, found.rejected) == ("coal", "")
    assert found.sentence.startswith("It hurt. The network coal was saved because it was requested")
    assert "A109" in codes(found)


# --- methods that the user names ---


@pytest.fixture(scope="module")
def combined(tmp_path_factory: pytest.TempPathFactory) -> AdaptationResult:
    """Methods by id, as an object, from a file, and one that fails."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(FILE)
    return adapt(["source", "coal", Louder(weight=3.0), Broken, f"{file}:Mine"])


def test_methods_of_every_form_are_combined_into_one_student(combined: AdaptationResult) -> None:
    assert names_in(combined) == ["source", "coal", "louder", "mine", "student"]


def test_an_object_among_several_methods_brings_its_parameters(combined: AdaptationResult) -> None:
    assert combined.adaptation.networks[2].run.method == Louder(weight=3.0)


def test_a_method_that_fails_is_reported_and_the_others_go_on(combined: AdaptationResult) -> None:
    assert list(combined.summary["failures"]) == ["broken"]
    assert "is not finite" in combined.summary["failures"]["broken"]
    assert "A115" in {finding["code"] for finding in combined.summary["findings"]}
    assert combined.adaptation.networks[-1].name == "student"


def test_one_method_is_saved_without_a_student() -> None:
    result = adapt("coal")
    assert names_in(result) == ["source", "coal"]
    assert result.summary["saved"] == "coal"


def test_one_method_has_no_expected_accuracy() -> None:
    assert adapt("lda", search=2).summary["expected_accuracy"] is None


def test_source_alone_is_saved_with_nothing_to_compare() -> None:
    result = adapt("source")
    assert names_in(result) == ["source"]
    assert "trained on the source alone" in result.summary["sentence"]


def test_a_search_tries_several_settings_and_saves_one_of_them() -> None:
    result = adapt("coal", params={"alpha": 0.3}, search=3)
    tried = [one.run.method for one in result.adaptation.networks[1:]]
    assert len(set(tried)) == 3
    assert {getattr(method, "alpha", None) for method in tried} == {0.3}
    assert result.adaptation.saved > 0


def test_failures_of_all_candidates_leave_source_only() -> None:
    result = adapt([Broken, "source"])
    assert names_in(result) == ["source"]
    assert list(result.summary["failures"]) == ["broken"]


def test_a_failed_student_is_replaced_by_the_network_with_the_best_scores(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapt([Broken, "source"])  # from now on it has an id
    monkeypatch.setattr(recipe, "STUDENT", Candidate(name="student", method="broken"))
    monkeypatch.setattr(recipe, "choose", lambda scored: 1)
    found = adapted(made.request, made.out)
    assert "student" in found.failures
    assert "coal-balanced" in (found.final.name, found.rejected)


def test_one_method_that_fails_is_an_error_with_a_hint() -> None:
    with pytest.raises(UserError, match=r"broken could not be trained: .* is not finite") as caught:
        adapt(Broken)
    assert "lr" in caught.value.hint


def test_a_source_only_that_fails_stops_the_adaptation() -> None:
    with pytest.raises(UserError, match="not finite"):
        askew.adapt(
            (1e20 * SOURCE[0], SOURCE[1]),
            TARGET,
            backbone="bare",
            training=LENGTH | {"lr": 1e30},
            device="cpu",
        )


@pytest.mark.parametrize(
    ("methods", "more", "why"),
    [
        (["coal", "lda"], {"params": {"alpha": 1}}, "Hyper-parameters belong to one method"),
        ("auto", {"params": {"alpha": 1}}, "Hyper-parameters belong to one method"),
        (["coal", "lda"], {"search": 2}, "A search needs one method"),
        (["coal", "coal"], {}, "The method coal is named twice"),
        (["coal", "cola"], {}, "There is no method 'cola'"),
        ("coal", {"params": {"alfa": 1}}, "no option of method coal 'alfa'"),
    ],
)
def test_methods_that_cannot_be_combined_are_refused(methods: Any, more: Any, why: str) -> None:
    with pytest.raises(UserError, match=why):
        adapt(methods, **more)


def test_the_student_is_no_method_that_a_user_could_name() -> None:
    with pytest.raises(UserError, match=f"There is no method '{STUDENT.name}'"):
        adapt(STUDENT.name)
