"""A method that brings its own runner is one run among others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

import askew
from askew.core.errors import UserError
from askew.data.task import Task
from askew.reports.results import collect
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution, Progress
from askew.runs.launch.jobs import plan_jobs
from askew.runs.outcome import Predictions, write_results
from askew.runs.root import finished_runs
from askew.runs.status import read_status
from askew.runs.store import RunFolder
from askew.training.run import Run

CPU = torch.device("cpu")
CALLS: list[str] = []

CODE = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
import askew

@dataclass(frozen=True, kw_only=True)
class Means(askew.methods.Method):
    """Nearest class mean."""

    id: ClassVar[str] = "file-means"
    runner: ClassVar[str] = "test_runner:run_means"
'''


def run_means(run: Run, task: Task, how: Execution) -> Iterator[Progress]:
    """Score each image by its distance to the classes' mean images."""
    CALLS.append(run.key)
    yield Progress(key=run.key, label="anything", step=1, steps=2, losses={"distance": 1.0})
    data = task.training_data
    classes = len(data.classes)

    def flat(x: Any) -> torch.Tensor:
        return torch.as_tensor(x[:]).float().flatten(1) / 255

    xs, ys = flat(data.source.x), torch.as_tensor(data.source.y)
    means = torch.stack([xs[ys == k].mean(dim=0) for k in range(classes)])
    found = Predictions(
        test=-torch.cdist(flat(data.test_images.x), means),
        target=-torch.cdist(flat(data.target.x), means),
        source_val=-torch.cdist(flat(data.source_val.x), means),
        source_val_y=torch.as_tensor(data.source_val.y),
        training_prior=torch.full((classes,), 1 / classes),
    )
    write_results(RunFolder(how.root / run.key), task, found)


def run_nothing(run: Run, task: Task, how: Execution) -> Iterator[Progress]:
    """Write no results."""
    yield Progress(key=run.key, label="", step=1, steps=1, losses={})


@dataclass(frozen=True, kw_only=True)
class NearestMean(askew.methods.Method):
    """The class whose mean is nearest."""

    id = "nearest-mean"
    runner = f"{__name__}:run_means"


class Nothing(askew.methods.Method):
    """Its runner writes nothing."""

    id = "nothing"
    runner = f"{__name__}:run_nothing"


class Unknown(askew.methods.Method):
    """Its runner does not exist."""

    id = "unknown"
    runner = "askew.nowhere:run"


def test_a_run_by_a_runner_is_a_row_of_tables_like_others(tmp_path: Path) -> None:
    short = {"pretrain": 5, "rounds": 1, "round": 5, "batch": 16}
    call: Any = {"tasks": ["syn-uci"], "seeds": 2, "training": short, "out": tmp_path}
    found = askew.bench("mini", ["source", NearestMean], device="cpu", **call)
    assert found.failed == {}
    rows = {row.method: row for row in collect(finished_runs(tmp_path))}
    assert set(rows) == {"source", "nearest-mean"}
    assert len(rows["nearest-mean"].folders) == 2
    collect(finished_runs(tmp_path), reweight=True)
    status = read_status(tmp_path, check=True)
    assert (status.done, status.failed, status.waiting, status.damaged) == (4, {}, {}, {})


def test_a_finished_run_by_a_runner_is_read_and_a_damaged_one_done_anew(tmp_path: Path) -> None:
    CALLS.clear()
    first = askew.run("mini/syn-uci", NearestMean, out=tmp_path, device="cpu")
    assert askew.run("mini/syn-uci", NearestMean, out=tmp_path, device="cpu") == first
    assert len(CALLS) == 1
    (first.folder / "scores.json").write_text("{}")
    assert askew.run("mini/syn-uci", NearestMean, out=tmp_path, device="cpu") == first
    assert len(CALLS) == 2
    assert {p.name for p in first.folder.iterdir()} >= {
        "run.json",
        "outputs.safetensors",
        "scores.json",
        "reweighted.json",
        "done",
    }


def test_a_runner_has_no_pretraining_and_no_lanes(tmp_path: Path) -> None:
    method = NearestMean()
    askew.methods.check_method(method)
    name = askew.methods.id_and_params(method)[0]
    requests = [RunRequest(task="mini/syn-uci", method=name, seed=seed) for seed in (0, 1)]
    plan = plan_jobs(requests, Execution(root=tmp_path, device=CPU, lanes=4))
    assert not plan.pretrainings
    assert [len(job.runs) for job in plan.runs] == [1, 1]


def test_settings_and_recipe_are_part_of_a_runner_s_key() -> None:
    name = askew.methods.id_and_params(NearestMean())[0]
    plain = prepare(RunRequest(task="mini/syn-uci", method=name)).run
    asked = prepare(RunRequest(task="mini/syn-uci", method=name, training={"pretrain": "7"})).run
    recipe = prepare(RunRequest(task="mini/syn-uci", method=name, recipe="today")).run
    assert asked.overrides == (("pretrain", 7),)
    assert recipe.recipe == "today"
    assert len({plain.key, asked.key, recipe.key}) == 3
    assert not {"recipe", "overrides"} & set(plain.describe())


def test_a_runner_that_writes_nothing_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run_nothing wrote no results"):
        askew.run("mini/syn-uci", Nothing, out=tmp_path, device="cpu")
    assert next(iter(read_status(tmp_path).failed.values()))[0] == "mini/syn-uci nothing seed 0"


def test_a_runner_that_cannot_be_loaded_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loading its runner askew\.nowhere:run raised UserError"):
        askew.run("mini/syn-uci", Unknown, out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_commands_train_and_estimate_a_method_with_a_runner(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    args = ("bench", "mini", "--methods", "mine.py:Means", "--tasks", "syn-uci", "--seeds", "1")
    answer = cli(*args, "--dry-run")
    assert answer.code == 0, answer.err
    assert "file-means" in answer.out
    answer = cli(*args, "--device", "cpu", "--jobs", "1")
    assert answer.code == 0, answer.err
    assert "file-means" in answer.out
