"""Jobs in processes that a cluster starts: the driver with a backend of our own, then Ray and
Slurm's stand-in."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from grids import (
    a_worker_of,
    done_once,
    finished,
    harmed,
    kill,
    ray_nodes,
    results,
    slurm_workers_of,
    until,
)

from askew.core.errors import UserError
from askew.runs.claims import claim
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Busy, Execution, Progress
from askew.runs.launch import jobs as jobs_module
from askew.runs.launch import remote, slurm
from askew.runs.launch.jobs import Event, Failed, Finished, Job
from askew.runs.launch.remote import RETRIES, Environment, JobGroup, drive, run_jobs
from askew.runs.launch.slurm import Slurm, _minutes
from askew.runs.root import open_root
from askew.runs.store import RunFolder

REQUEST = RunRequest(
    task="mini/syn-uci",
    method="source",
    training={"pretrain": 0, "rounds": 2, "round": 10, "batch": 16},
)


@pytest.fixture
def how(tmp_path: Path) -> Execution:
    return Execution(root=open_root(tmp_path / "runs"), device=torch.device("cpu"))


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(jobs_module, "PAUSE", 0.01)


class FakeBackend:
    """Does with each group what a test asks for, at once."""

    capacity = 2

    def __init__(self, do: Callable[[JobGroup], list[Event] | None]) -> None:
        self.do = do
        self.submitted: list[JobGroup] = []
        self.cancelled: list[Any] = []

    def submit(self, groups: Sequence[JobGroup], how: Execution) -> list[Any]:
        assert len(groups) <= self.capacity
        self.submitted += groups
        return list(range(len(self.submitted) - len(groups), len(self.submitted)))

    def wait(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        return [(handles[0], self.do(self.submitted[handles[0]]))]

    def cancel(self, handles: Sequence[Any]) -> None:
        self.cancelled += handles


def groups(count: int) -> list[JobGroup]:
    return [JobGroup([Job({f"key{i}": REQUEST}, pretraining=False)]) for i in range(count)]


def all_finished(group: JobGroup) -> list[Event]:
    return [Finished(key) for key, _ in group.runs()]


def test_every_group_is_submitted_once_and_never_more_than_the_capacity_at_a_time(
    how: Execution,
) -> None:
    backend = FakeBackend(all_finished)
    assert list(drive(groups(5), how, backend)) == [Finished(f"key{i}") for i in range(5)]
    assert len(backend.submitted) == 5


def test_a_group_that_was_lost_is_submitted_again(how: Execution) -> None:
    lives = {"key0": 2, "key1": 0}

    def do(group: JobGroup) -> list[Event] | None:
        ((key, _),) = group.runs()
        lives[key] -= 1
        return None if lives[key] >= 0 else all_finished(group)

    backend = FakeBackend(do)
    assert {e for e in drive(groups(2), how, backend) if isinstance(e, Finished)} == {
        Finished("key0"),
        Finished("key1"),
    }
    assert len(backend.submitted) == 4


def test_a_group_that_is_lost_again_and_again_fails_unless_it_gets_further(how: Execution) -> None:
    backend = FakeBackend(lambda group: None)
    (failed,) = drive(groups(1), how, backend)
    assert isinstance(failed, Failed)
    assert "was lost 4 times" in failed.reason
    assert len(backend.submitted) == RETRIES + 1
    assert "was lost 4 times" in (how.root / "key0" / "failed.json").read_text()

    steps = 0

    def further(group: JobGroup) -> list[Event] | None:
        nonlocal steps
        steps += 1
        if steps > 5 * RETRIES:
            return all_finished(group)
        held = claim(how.root / "key0")
        held.report("", steps, 100)
        held.beat()
        held._released.set()  # killed: its claim is left behind
        held._unlock()
        return None

    assert Finished("key0") in list(drive(groups(1), how, FakeBackend(further)))


def test_progress_is_read_from_the_folders(how: Execution) -> None:
    (how.root / "key0").mkdir()
    held = claim(how.root / "key0")
    held.report("mini/syn-uci coal seed 0", 7, 20)
    held.beat()
    looks = 0

    class Slow(FakeBackend):
        def wait(
            self, handles: Sequence[Any], seconds: float
        ) -> list[tuple[Any, list[Event] | None]]:
            nonlocal looks
            looks += 1
            return [] if looks == 1 else super().wait(handles, seconds)

    events = list(drive(groups(2), how, Slow(all_finished)))
    held.release()
    assert events[0] == Progress(
        key="key0", label="mini/syn-uci coal seed 0", step=7, steps=20, losses={}
    )
    assert {event.key for event in events if isinstance(event, Progress)} == {"key0"}


def test_ends_are_reported_as_they_happen_and_once_while_a_group_is_running(how: Execution) -> None:
    """A group of three runs: the folders show two ends before the group has ended, and one from
    long ago."""
    RunFolder(how.root / "key2").fail("long ago")
    group = JobGroup([Job({f"key{i}": REQUEST}, pretraining=False) for i in range(3)])

    def do(group: JobGroup) -> list[Event]:
        return [Finished("key0"), Failed("key1", REQUEST, "too hot"), Finished("key2")]

    class Slow(FakeBackend):
        looks = 0

        def wait(
            self, handles: Sequence[Any], seconds: float
        ) -> list[tuple[Any, list[Event] | None]]:
            self.looks += 1
            if self.looks == 1:
                RunFolder(how.root / "key0").path.mkdir()
                RunFolder(how.root / "key0").finish()
            if self.looks == 2:
                RunFolder(how.root / "key1").fail("too hot")
            return [] if self.looks < 4 else super().wait(handles, seconds)

    backend = Slow(do)
    reported = [(backend.looks, event) for event in drive([group], how, backend)]
    assert reported == [
        (1, Finished("key0")),
        (2, Failed("key1", REQUEST, "too hot")),
        (4, Finished("key2")),
    ]


def test_a_driver_that_is_closed_cancels_what_it_submitted(how: Execution) -> None:
    backend = FakeBackend(all_finished)
    events = drive(groups(4), how, backend)
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert backend.cancelled == [1]


def test_a_worker_returns_what_became_of_its_runs_and_raises_nothing(
    how: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = prepare(REQUEST).run.key
    job = Job({key: REQUEST}, pretraining=False)
    monkeypatch.setenv("ASKEW_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    here = Environment.here()
    monkeypatch.delenv("ASKEW_DATA")
    monkeypatch.chdir("/")
    assert run_jobs([job], how, here) == [Finished(key)]
    assert RunFolder(how.root / key).done
    assert (Path.cwd(), os.environ["ASKEW_DATA"]) == (tmp_path, str(tmp_path))
    (failed,) = run_jobs([job], how, Environment(tmp_path / "nowhere", {}))
    assert isinstance(failed, Failed)
    assert failed.reason.startswith(f"The folder {tmp_path / 'nowhere'} cannot be entered on ")


# --- Slurm ---


class Bomb:
    """A pickle that leaves a file when it is read."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


class FakeSlurm:
    """Runs submitted functions at once, as submitit does elsewhere, and has planted pickles for
    results."""

    def __init__(self, planted: Path, lost: bool) -> None:
        self.planted, self.lost = planted, lost

    def map_array(self, function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
        for values in zip(*arguments, strict=True):
            if not self.lost:
                assert function(*values) is None, "a result would be pickled"
        return [self] * len(arguments[0])

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return pickle.loads(self.planted.read_bytes())

    def cancel(self) -> None: ...


@pytest.mark.parametrize("lost", [False, True])
def test_slurm_s_results_are_read_from_json_and_no_pickle_is_opened(
    how: Execution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    planted = tmp_path / "1_0_result.pkl"
    planted.write_bytes(pickle.dumps(("success", Bomb(tmp_path / "exploded"))))
    monkeypatch.setattr(slurm, "SLOW_FILES", 0.0)
    monkeypatch.setattr(slurm._Backend, "executor", lambda self, folder: FakeSlurm(planted, lost))
    (how.root / slurm.LOGS).mkdir()
    key = prepare(REQUEST).run.key
    bad = dataclasses.replace(REQUEST, training={**REQUEST.training, "lr": 1e30})
    requests = {key: REQUEST, prepare(bad).run.key: bad}
    jobs = [Job({k: request}, pretraining=False) for k, request in requests.items()]
    ends = {e.key: e for e in Slurm(workers=1, options={"cluster": "local"})(jobs, how)}
    if lost:
        assert all(isinstance(e, Failed) and "was lost 4 times" in e.reason for e in ends.values())
    else:
        assert ends.pop(key) == Finished(key)
        (failed,) = ends.values()
        assert isinstance(failed, Failed)
        assert "is not finite" in failed.reason
        assert failed.request == bad
    assert not (tmp_path / "exploded").exists()
    assert not list((how.root / slurm.LOGS).iterdir()), "results are removed once they are read"


def test_ends_survive_json(how: Execution) -> None:
    ends: list[Event] = [
        Finished("a"),
        Failed("b", REQUEST, "too hot", for_all=True),
        Busy("c", how.root / "c"),
    ]
    values = json.loads(json.dumps([slurm._to_json(end) for end in ends]))
    assert list(slurm._from_json(values, dict.fromkeys("abc", REQUEST))) == ends


@pytest.mark.parametrize(
    "content", ["", "{}x", "[1]", '[{"key": "other", "end": "finished"}]', '[{"key": "key0"}]']
)
def test_a_result_that_cannot_be_read_is_that_of_a_lost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(slurm, "SLOW_FILES", 0.0)
    (tmp_path / "result.json").write_text(content)
    assert slurm._Submitted(None, groups(1)[0], tmp_path / "result.json").events() is None


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("90", 90),
        ("12:00:00", 720),
        ("2-0", 2880),
        ("1-2:30", 1590),
        ("1-02:30:00", 1590),
        ("45:30", 45),
    ],
)
def test_slurm_s_ways_to_write_a_time_are_read(text: str, minutes: int) -> None:
    assert _minutes(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "0", "1:2:x", "-5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a time"):
        _minutes(text)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--address", "auto"), "--address has no meaning with --on local"),
        (("--gpus", "1"), "--gpus has no meaning with --on local"),
        (("--on", "ray", "--slurm", "time=5"), "--slurm has no meaning with --on ray"),
        (("--on", "slurm", "--gpus", "0.5"), "Slurm allocates whole GPUs, found --gpus 0.5"),
        (("--on", "ray", "--device", "cuda"), "--device cuda does not fit --gpus 0"),
        (("--on", "slurm", "--slurm", "time=soon"), "--slurm time=soon is not a time"),
    ],
)
def test_options_that_do_not_fit_the_place_are_refused_and_leave_nothing(
    cli: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    answer = cli("bench", "mini", *words)
    assert answer.code == 2
    assert sentence in answer.err
    assert "hint: " in answer.err
    assert not (tmp_path / "runs").exists()


# --- in earnest: one grid, killed on its way, equal to the undisturbed one ---

GRID = ("bench", "mini", "--tasks", "syn-uci", "--methods", "source,coal", "--seeds", "1", "--json")
GRID += (
    "-t",
    "pretrain=20",
    "-t",
    "rounds=24",
    "-t",
    "round=5",
    "-t",
    "batch=16",
    "--checkpoint-every",
    "0",
)


@pytest.fixture(scope="module")
def reference(command: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("reference") / "runs"
    done = subprocess.run(
        [command, *GRID, "--out", root, "--jobs", "1"], capture_output=True, text=True, check=True
    )
    return root, done.stdout


def in_the_middle(root: Path) -> bool:
    """Whether a run, not its pre-training, has some rounds behind it and is not done."""
    open_traces = (p for p in root.glob("*/trace.jsonl") if not (p.parent / "done").exists())
    return any(p.read_text().count("\n") >= 5 for p in open_traces)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_loses_a_worker_and_a_node_and_the_grid_is_the_same(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    pytest.importorskip("ray")
    root = tmp_path / "runs"
    with ray_nodes(2) as cluster:

        def harm() -> None:
            until(lambda: in_the_middle(root))
            kill([until(lambda: a_worker_of(root))])
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

        ray = (command, *GRID, "--on", "ray", "--address", cluster.address)
        assert harmed(ray, root, harm) == reference[1]
    assert results(root) == results(reference[0])


@pytest.mark.soak
def test_slurm_s_stand_in_loses_a_worker_and_the_grid_is_the_same(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    pytest.importorskip("submitit")
    root = tmp_path / "runs"

    def harm() -> None:
        until(lambda: in_the_middle(root))
        kill(until(lambda: slurm_workers_of(root)))

    on_slurm = (command, *GRID, "--on", "slurm", "--slurm", "cluster=local", "--jobs", "1")
    assert harmed(on_slurm, root, harm) == reference[1]
    assert results(root) == results(reference[0])
    assert finished(root) == finished(reference[0])


@pytest.mark.soak
def test_two_people_who_start_one_grid_share_its_work(
    command: str, tmp_path: Path, reference: tuple[Path, str]
) -> None:
    root, pipe = tmp_path / "runs", subprocess.PIPE
    with done_once(root):
        ask = [command, *GRID, "--out", str(root), "--jobs", "1"]
        pair = [subprocess.Popen(ask, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
        answers = [process.communicate(timeout=300) for process in pair]
    assert [process.returncode for process in pair] == [0, 0], answers
    assert [out for out, _ in answers] == [reference[1], reference[1]]
    assert results(root) == results(reference[0])
