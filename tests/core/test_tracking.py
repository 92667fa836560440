"""Trackers hear of every run, in order; what the real libraries wrote is read back by
themselves."""

from __future__ import annotations

import json
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import TINY, Command, MakeRun
from grids import until

from askew.core.errors import UserError
from askew.core.tracking import RunInfo, tracker
from askew.data.task import Task
from askew.methods import COAL
from askew.runs.execute import Execution, execute
from askew.runs.root import finished_runs, open_root
from askew.runs.store import RunFolder
from askew.training.run import Run

CPU = torch.device("cpu")


class Heard:
    """A tracker that keeps what it hears."""

    events: ClassVar[list[tuple[Any, ...]]] = []

    def started(self, run: RunInfo) -> None:
        self.key = run.key
        self.events.append(("started", run.key, run))

    def round(self, step: int, values: Any) -> None:
        self.events.append(("round", self.key, step, dict(values)))

    def finished(self, scores: Any, failure: str = "") -> None:
        self.events.append(("finished", self.key, dict(scores), failure))


class Breaks(Heard):
    def round(self, step: int, values: Any) -> None:
        raise ConnectionError("the tracker is away")


@pytest.fixture(autouse=True)
def nothing_heard() -> Iterator[None]:
    Heard.events.clear()
    yield
    Heard.events.clear()


def trained(run: Run, task: Task, root: Path, *log: Any, **how: Any) -> RunFolder:
    for _ in execute(run, task, Execution(root=open_root(root), device=CPU, log=log, **how)):
        pass
    return RunFolder(root / run.key)


def test_a_tracker_hears_the_start_every_round_and_the_scores(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    run = make_run(COAL(), pretrain=0)
    folder = trained(run, task, tmp_path, Heard, curve=True)
    started, *rounds, finished = Heard.events
    assert started[2].label == "toy coal seed 0"
    assert started[2].settings["plan.method.id"] == "coal"
    assert started[2].settings["seed"] == 0
    trace = folder.trace()
    assert [step for _, _, step, _ in rounds] == [entry["step"] for entry in trace] == [10, 20, 30]
    for (*_, values), entry in zip(rounds, trace, strict=True):
        losses = {f"losses/{name}": value for name, value in entry["losses"].items()}
        assert values == losses | {
            f"oracle/{name}": value for name, value in entry["oracle"].items()
        }
    assert finished[2]["whole/per_class_mean"] == folder.scores()["whole"]["per_class_mean"]
    assert finished[3] == ""


def test_a_tracker_changes_no_number_and_no_key(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    with_one, without = (
        trained(make_run(), task, tmp_path / str(i), *log) for i, log in enumerate([[Heard], []])
    )
    assert with_one.path.name == without.path.name
    assert with_one.scores() == without.scores()
    assert len(finished_runs(tmp_path / "0")) == 1


def test_a_run_that_diverges_is_told_as_failed(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    with pytest.raises(UserError):
        trained(make_run(pretrain=0, lr=1e30, features_lr=1e30), task, tmp_path, Heard)
    assert Heard.events[-1][0] == "finished"
    assert "after step" in Heard.events[-1][3]


def test_a_tracker_that_fails_is_dropped_and_the_run_is_finished(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="Breaks tracks this run no longer: the tracker is away"):
        folder = trained(make_run(pretrain=0), task, tmp_path, Breaks, Heard)
    assert folder.done
    assert [event[0] for event in Heard.events].count("round") == 3, "the other tracker goes on"


def test_an_interrupted_run_goes_on_where_its_tracker_was(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    run = make_run(pretrain=0)
    steps = execute(
        run,
        task,
        Execution(root=open_root(tmp_path), device=CPU, checkpoint_every=0.0, log=(Heard,)),
    )
    while next(steps).step < 20:
        pass
    steps.close()
    before = len(Heard.events)
    trained(run, task, tmp_path, Heard)
    assert Heard.events[before][2].step == 20
    assert [event[2] for event in Heard.events if event[0] == "round"] == [10, 20, 30]


def test_an_unknown_tracker_writes_nothing(cli: Command, tmp_path: Path) -> None:
    answer = cli("run", "mini/syn-uci", "--log", "tensorbord")
    assert (answer.code, list(tmp_path.iterdir())) == (2, [])
    assert "did you mean 'tensorboard'?" in answer.err


def test_a_tracker_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("askew.core.tracking.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs wandb.*\n.*\n.*askew\[tracking\]"):
        tracker("wandb")


# --- the real libraries, without a network ---


def test_tensorboard_reads_back_what_was_logged(
    make_run: MakeRun, task: Task, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tracking` brings it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = trained(make_run(pretrain=0), task, tmp_path, "tensorboard")
    (events,) = (tmp_path / "logs" / "tensorboard").iterdir()
    assert events.name == f"toy source seed 0 {folder.path.name[:8]}"
    read = EventAccumulator(str(events))
    read.Reload()
    losses = {entry["step"]: entry["losses"]["label"] for entry in folder.trace()}
    assert {e.step: e.value for e in read.Scalars("losses/label")} == pytest.approx(
        losses, rel=1e-6
    )
    (score,) = read.Scalars("whole/per_class_mean")
    assert score.value == pytest.approx(folder.scores()["whole"]["per_class_mean"])


@pytest.mark.soak  # making MLflow's tables takes seconds
def test_mlflow_reads_back_what_was_logged(
    make_run: MakeRun, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="the extra `tracking` brings it")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with warnings.catch_warnings():  # MLflow's own, about the SQLAlchemy that it uses
        warnings.simplefilter("ignore")
        from mlflow import MlflowClient

        folder = trained(make_run(pretrain=0), task, tmp_path, "mlflow")
        client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'logs' / 'mlflow.db'}")
        where = client.get_experiment_by_name("askew")
        assert where is not None
        (run,) = client.search_runs([where.experiment_id])
        history = {
            m.step: m.value for m in client.get_metric_history(run.info.run_id, "losses/label")
        }
    assert history == {entry["step"]: entry["losses"]["label"] for entry in folder.trace()}
    assert run.info.status == "FINISHED"
    assert run.data.params["plan.method.id"] == "source"
    assert run.data.metrics["whole/per_class_mean"] == folder.scores()["whole"]["per_class_mean"]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: a log in blocks of 32 KiB, each piece with checksum, length
    and kind before it."""
    from wandb.proto import wandb_internal_pb2

    content, at, record = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:  # no room for another head: padding
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        if at + 7 + length > len(content):  # the rest is being written
            return
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last piece
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def test_weights_and_biases_reads_back_what_was_logged_offline(
    make_run: MakeRun, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra `tracking` brings it")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = trained(make_run(pretrain=0), task, tmp_path, "wandb")
    (file,) = (tmp_path / "logs" / "wandb").glob(f"offline-run-*/run-{folder.path.name}.wandb")
    # its service is another process, which on a busy machine writes on after `finish` has returned
    until(lambda: any(record.HasField("exit") for record in wandb_records(file)), 30)
    history, summary = {}, {}
    for record in wandb_records(file):
        if record.HasField("history"):
            row = {
                item.key or item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            history[row["_step"]] = row["losses/label"]
        summary |= {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.summary.update
        }
    assert history == {entry["step"]: entry["losses"]["label"] for entry in folder.trace()}
    assert summary["whole/per_class_mean"] == folder.scores()["whole"]["per_class_mean"]


def test_the_command_logs_its_runs(cli: Command, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tracking` brings it")
    answer = cli(
        "run", "mini/syn-uci", "-m", "source", *TINY, "--log", "tensorboard", "--device", "cpu"
    )
    assert answer.code == 0, answer.err
    logged = {p.name[:-9] for p in (tmp_path / "runs" / "logs" / "tensorboard").iterdir()}
    assert "mini-syn-uci source seed 0" in logged
    answer = cli("status", "runs", "--json")
    assert json.loads(answer.out)["waiting"] == [], "the folder of logs is no run"
