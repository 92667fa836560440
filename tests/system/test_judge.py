"""The judge of label-free scores: what it prints for real runs follows from their labels."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from worlds import world

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"


def program(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(STUDIES)  # as for a program that is started from there
        found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    return program("judge")


@pytest.fixture
def candidates(judge: ModuleType) -> list[Any]:
    """Source-only, one that is better by three points, one that is worse by two, and one that is
    nearly the same."""
    truth = world(150, 200).target_y
    prior = np.bincount(truth, minlength=10) / len(truth)
    accuracies = {"source": 70.0, "better": 73.0, "worse": 68.0, "same": 70.5}
    outputs = [world(150, 200, moved=i / 4).outputs for i in range(len(accuracies))]
    return [
        judge.Candidate(name, one, accuracy, 140 - accuracy, prior, one, truth)
        for (name, accuracy), one in zip(accuracies.items(), outputs, strict=True)
    ]


def test_regret_is_how_far_the_pick_is_below_the_best(
    judge: ModuleType, candidates: list[Any]
) -> None:
    from askew.evaluation.scores import score_networks
    from askew.evaluation.selection import choose

    networks = score_networks([one.outputs for one in candidates])
    found = judge.judge_scores(candidates, networks, handed_out=72.5)
    values = [network.scores["snd"] for network in networks]
    assert found["snd"]["regret"] == pytest.approx(
        73.0 - candidates[int(np.argmax(values))].accuracy
    )
    assert found["choose"]["regret"] == pytest.approx(73.0 - candidates[choose(networks)].accuracy)
    assert found["handed out"]["regret"] == pytest.approx(0.5)
    assert found["source only"]["regret"] == pytest.approx(3.0)
    assert found["random pick (mean)"]["regret"] == pytest.approx(73.0 - 70.375)


def test_what_is_handed_out_is_the_mean_of_the_better_networks_unless_it_looks_harmful(
    judge: ModuleType, candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from askew.evaluation.calibration import mean_outputs
    from askew.evaluation.metrics import score

    monkeypatch.setattr(judge, "choose_members", lambda kinds, networks: [(1, 1.0), (3, 1.0)])
    found = judge.judge_choice(candidates)
    together = mean_outputs([candidates[i].test for i in (1, 3)]).target_uniform.argmax(axis=1)
    right = score(candidates[0].test_y, together, 10)["per_class_mean"]
    assert (found["handed_out"]["method"], found["handed_out"]["accuracy"]) == (
        "ensemble",
        pytest.approx(right),
    )
    assert [one["method"] for one in found["candidates"]] == [
        "source",
        "better",
        "worse",
        "same",
        "ensemble",
    ]
    shown = found["priors"][judge.SHOWN]
    assert shown["before"] == pytest.approx(np.abs(candidates[0].true_prior - 0.1).sum())
    assert 0 <= shown["covered"] <= 1
    honest = judge.judge_transfers
    monkeypatch.setattr(
        judge, "judge_transfers", lambda n: [replace(v, verdict="hurt") for v in honest(n)]
    )
    refused = judge.judge_choice(candidates)
    assert 0 < refused["handed_out"].pop("confidence") <= 100
    assert refused["handed_out"] == {
        "method": "source",
        "accuracy": 70.0,
        "verdict": None,
        "expected": None,
    }


def test_equal_ranks_correlate_and_a_constant_score_does_not(judge: ModuleType) -> None:
    accuracy = np.array([1.0, 5.0, 3.0])
    assert judge.spearman(np.array([0.1, 0.9, 0.2]), accuracy) == pytest.approx(1)
    assert judge.spearman(np.array([9.0, 1.0, 3.0]), accuracy) == pytest.approx(-1)
    assert judge.spearman(np.array([2.0, 2.0, 2.0]), accuracy) == 0


def test_a_verdict_is_compared_with_a_difference_of_more_than_a_point(
    judge: ModuleType, candidates: list[Any]
) -> None:
    from askew.evaluation.scores import score_networks

    found = judge.judge_verdicts(candidates, score_networks([one.outputs for one in candidates]))
    assert [(one["method"], one["truth"]) for one in found] == [
        ("better", "helped"),
        ("worse", "hurt"),
        ("same", "unclear"),
    ]
    assert [one["truth_overall"] for one in found] == ["hurt", "helped", "unclear"]
    unknown = replace(candidates[1], overall=float("nan"))
    (one,) = judge.judge_verdicts(
        [candidates[0], unknown], score_networks([one.outputs for one in candidates[:2]])
    )
    assert one["truth_overall"] is None
    table = judge.verdicts_table(
        {("task",): {"verdicts": [*found, one]}}, "truth_overall", "accuracy"
    )
    assert "of 3 adapted runs" in table, "where the truth is not known there is nothing to compare"


def test_other_rules_of_the_verdict_look_at_the_same_images_and_at_more_scores(
    judge: ModuleType, candidates: list[Any]
) -> None:
    from askew.evaluation.scores import score_networks
    from askew.evaluation.verdict import judge_transfers

    study, networks = program("verdicts"), score_networks([one.outputs for one in candidates])
    found, plain = list(study.judged(networks)), list(judge_transfers(networks))
    for (verdict, shown), known in zip(found, plain, strict=True):
        assert verdict == known
        assert study.RULES["as it is"](shown) == known.verdict
        assert {"prior-information", "others"} < set(shown)


def test_errors_of_a_prior_are_distances_to_the_true_one(
    judge: ModuleType, candidates: list[Any]
) -> None:
    found = judge.judge_priors(candidates)
    predicted = [one.outputs.target.argmax(axis=1) for one in candidates]
    off = [
        np.abs(np.bincount(p, minlength=10) / len(p) - candidates[0].true_prior).sum()
        for p in predicted
    ]
    assert found["counting"] == {
        "before": pytest.approx(off[0]),
        "after": pytest.approx(np.mean(off[1:])),
    }
    assert found["em"]["before"] < found["em"]["after"], "the others see the target moved"


def test_a_folder_of_runs_is_judged_from_its_files(
    judge: ModuleType,
    mini_runs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["judge.py", str(mini_runs), "--json", str(tmp_path / "judged.json")]
    )
    judge.main()
    printed = capsys.readouterr().out
    assert "mini/syn-uci: 2 choices." in printed
    assert "of 2 adapted runs" in printed
    judged = json.loads((tmp_path / "judged.json").read_text())
    assert [[one["method"] for one in of["candidates"]] for of in judged] == [
        ["source", "coal"]
    ] * 2
    row = next(line for line in printed.splitlines() if line.startswith("| em before"))
    errors = [of["priors"]["em"]["before"] for of in judged]
    assert row == f"| em before | {np.mean(errors):.2f} | {np.mean(errors):.2f} |"


def test_a_guided_teacher_is_named_by_the_answers_that_it_began_with(
    judge: ModuleType, tmp_path: Path
) -> None:
    import torch

    from askew.runs.config import RunRequest, plan_run, prepare
    from askew.runs.execute import Execution, execute
    from askew.runs.root import open_root

    how = Execution(root=open_root(tmp_path / "runs"), device=torch.device("cpu"))
    short = {"pretrain": 2, "rounds": 1, "round": 2, "batch": 8}
    planned = prepare(RunRequest(task="mini/syn-uci", method="source", training=short))
    source, task = planned.run, planned.task
    keys = [source.key]
    list(execute(source, task, how))
    for number, kind in enumerate(("", ".tuned")):
        drawn = np.random.default_rng(number).dirichlet(np.ones(10), len(task.training_data.target))
        answers = drawn.astype(np.float32)
        np.save(tmp_path / f"choice{kind}.npy", answers)
        guided = replace(task, training_data=replace(task.training_data, answers=answers))
        run = plan_run(
            RunRequest(task="mini/syn-uci", method="guided", shift=source.shift, training=short),
            guided,
            source.net.name,
        )
        list(execute(run, guided, how))
        keys.append(run.key)
    assert len(set(keys)) == 3, "other answers are another run"
    (found,) = judge.read_choices([tmp_path / "runs"], None, tmp_path).values()
    assert {one.method: one.weight for one in found} == {
        "source": 1,
        "guided": 1,
        "guided, by all": 2,
    }


def test_embeddings_of_a_tasks_parts_are_a_task_of_rows_with_its_labels(
    judge: ModuleType, tmp_path: Path
) -> None:
    from askew.data.benchmarks import load_task

    task = load_task("mini/syn-uci", "rs-ut", 0)
    own, rng = task.training_data, np.random.default_rng(0)
    sizes = [len(part) for part in (own.source, own.source_val, own.target, own.test_images)]
    x = [rng.normal(size=(n, 5)).astype(np.float16) for n in sizes]
    parts = dict(zip(("source", "source_val", "target", "test"), x, strict=True))
    np.savez(tmp_path / "mini.syn-uci.rs-ut.npz", **parts)
    rows = judge.rows_of(("mini/syn-uci", "rs-ut", "0", "3"), task, tmp_path)
    found = rows.training_data
    for part, given in zip(
        (found.source, found.source_val, found.target, found.test_images), x, strict=True
    ):
        assert part.x.dtype == np.float32
        assert (part.x == given).all()
    assert (found.source.y == np.asarray(own.source.y)).all()
    assert (found.source_val.y == np.asarray(own.source_val.y)).all()
    assert (found.classes, rows.test) == (own.classes, None)


def test_a_folder_without_a_choice_is_refused(
    judge: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from askew.runs.root import open_root

    monkeypatch.setattr(sys, "argv", ["judge.py", str(open_root(tmp_path / "runs"))])
    with pytest.raises(SystemExit) as end:
        judge.main()
    assert end.value.code == 2
