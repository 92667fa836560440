"""The benchmarks' method `auto`: a row like any other, which is the recipe of `askew adapt`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from adaptations import CPU, finish
from conftest import TINY, Command

import askew
from askew import UserError
from askew.adaptation import bench
from askew.adaptation.bench import ASSESSMENT, benchmark_inputs, run_auto
from askew.adaptation.inputs import Inputs
from askew.adaptation.recipe import Outcome, auto
from askew.adaptation.session import Session, TrainingSet
from askew.core.files import read_tensors
from askew.runs.config import Planned, RunRequest, prepare
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.runs.store import RunFolder

SHORT = {"pretrain": 6, "rounds": 2, "round": 4, "batch": 16}


def planned(task: str = "mini/syn-uci", **training: Any) -> Planned:
    return prepare(RunRequest(task=task, method="auto", seed=0, training=SHORT | training))


def how(root: Path) -> Execution:
    return Execution(root=open_root(root), device=CPU)


class Finished(NamedTuple):
    plan: Planned
    root: Path

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.root / self.plan.run.key)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of `auto` on the mini benchmark."""
    root, plan = tmp_path_factory.mktemp("auto") / "runs", planned()
    for _ in execute(plan.run, plan.task, how(root)):
        pass
    return Finished(plan, root)


def test_auto_has_a_row_like_any_other_method(cli: Command, tmp_path: Path) -> None:
    words = ("bench", "mini", "--methods", "source,auto", "--tasks", "syn-uci", "--seeds", "1")
    answer = cli(*words, "--jobs", "1", *TINY, "--device", "cpu")
    assert answer.code == 0, answer.err
    rows = [line.split() for line in answer.out.splitlines() if "mini/syn-uci" in line]
    assert [row[:3] for row in rows[-2:]] == [["mini/syn-uci", m, "1"] for m in ("source", "auto")]
    (told,) = (tmp_path / "runs").glob(f"*/{ASSESSMENT}")
    assert json.loads(told.read_text())["saved"] in ("source", "guided")


def test_a_run_of_auto_tells_what_was_estimated_without_labels(finished: Finished) -> None:
    told = json.loads((finished.folder.path / ASSESSMENT).read_text())
    assert list(told["oracle"]) == ["source", "fixmatch", "teacher", "guided"]
    assert list(told["verdicts"]) == ["fixmatch", "teacher", "guided"]
    assert set(told["verdicts"].values()) <= {"helped", "unclear", "hurt"}
    assert (told["saved"], told["rejected"]) in (("guided", ""), ("source", "guided"))
    assert told["failures"] == {}
    assert sum(told["target_shares"]["shares"]) == pytest.approx(1)


def test_a_run_s_score_is_that_of_the_network_that_was_saved(finished: Finished) -> None:
    told = json.loads((finished.folder.path / ASSESSMENT).read_text())
    score = finished.folder.scores()["whole"]["per_class_mean"]
    assert score == pytest.approx(told["oracle"][told["saved"]], abs=0.2)


def test_auto_on_a_benchmark_is_the_recipe_of_adapt(finished: Finished, tmp_path: Path) -> None:
    task = replace(finished.plan.task, name="own/small-images")
    pixels = TrainingSet(task=task, network="mini", training=SHORT)
    inputs = Inputs(task=task, kind="small-images", pixels=pixels)
    outcome: Outcome = finish(auto(Session(tmp_path / "runs", CPU), inputs))
    told = json.loads((finished.folder.path / ASSESSMENT).read_text())
    assert outcome.networks[outcome.saved].name == told["saved"]
    assert outcome.rejected == told["rejected"]
    assert {name: one.verdict for name, one in outcome.verdicts.items()} == told["verdicts"]
    wanted = read_tensors(outcome.networks[outcome.saved].folder / "outputs.safetensors")[0]
    found = read_tensors(finished.folder.path / "outputs.safetensors")[0]
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_stopped_run_of_auto_trains_no_finished_network_again(tmp_path: Path) -> None:
    plan = planned(rounds=1)
    networks = tmp_path / "runs" / plan.run.key / "networks"
    work = execute(plan.run, plan.task, how(tmp_path / "runs"))
    for _ in work:
        if list(networks.glob("*/done")):
            break
    work.close()
    before = {file: file.stat().st_mtime_ns for file in networks.glob("*/weights.safetensors")}
    assert 0 < len(before) < 4
    for _ in execute(plan.run, plan.task, how(tmp_path / "runs")):
        pass
    assert RunFolder(tmp_path / "runs" / plan.run.key).done
    kept = [p for p in before if (p.parent / "done").exists()]
    assert kept
    assert all(p.stat().st_mtime_ns == before[p] for p in kept)


def test_a_finished_run_of_auto_is_read(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run_auto", lambda *_: pytest.fail("it is finished"))
    assert list(execute(finished.plan.run, finished.plan.task, how(finished.root))) == []


def test_rows_of_a_benchmark_are_a_table_or_embeddings_by_their_width(tmp_path: Path) -> None:
    plan = planned()
    for width, kind in ((99, "tables"), (100, "embeddings")):
        data = plan.task.training_data
        flat = {
            name: replace(
                images,
                x=np.asarray(images.x).reshape(len(images), -1)[:, :width].astype(np.float32),
            )
            for name, images in (
                (name, getattr(data, name))
                for name in ("source", "source_val", "target", "test_images")
            )
        }
        task = replace(plan.task, training_data=replace(data, **flat))
        inputs = finish(benchmark_inputs(plan.run, task, how(tmp_path / "runs")))
        assert (inputs.kind, inputs.task.name) == (kind, f"own/{kind}")
        assert inputs.pixels is None
        assert inputs.rows is not None
        assert inputs.rows.training == SHORT


def test_auto_is_no_method_among_others() -> None:
    rows = np.zeros((20, 4), np.float32)
    with pytest.raises(UserError, match="auto combines methods by itself"):
        askew.adapt((rows, [0, 1] * 10), rows, methods=["auto", "coal"], device="cpu")


def test_its_runner_is_found_by_its_name() -> None:
    from askew.core.plugins import load_function
    from askew.methods import METHODS

    assert load_function(METHODS["auto"].runner) is run_auto
