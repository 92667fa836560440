from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

from askew.execute import Execution
from askew.launch.local import Failed, Finished, Job, carry_out, plan_jobs
from askew.recipe import Wish
from askew.store import RunFolder, open_root

TRAINING = {"pretrain": 20, "rounds": 2, "round": 10, "batch": 16}
# long enough to be interrupted, with something new on the disk every few hundredths of a second
LONG = ("-t", "pretrain=0", "-t", "rounds=2000", "-t", "round=5", "-t", "batch=16", "--checkpoint-every", "0")

with_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see who is alive")


def wish(method: str = "source", seed: int = 0, **training: Any) -> Wish:
    return Wish("mini/syn-uci", method, seed, training=TRAINING | {"head": "cosine"} | training)


@pytest.fixture
def how(tmp_path: Path) -> Execution:
    return Execution(open_root(tmp_path / "runs"), torch.device("cpu"))


# --- a command that is alive ---


@contextmanager
def started(command: str, folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A command as the leader of a group of its own, as a shell starts it; whoever is left is killed in the end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [command, *args], cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        for pid in alive(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def alive(group: int) -> list[int]:
    """The processes of a group that have not ended, its leader first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest[2]) == group and rest[0] not in "ZX":
            found.append(int(pid))
    return sorted(found)


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def workers(group: int) -> list[int]:
    """The workers of a command: Python processes that multiprocessing spawned to do a job."""

    def is_worker(pid: int) -> bool:
        try:
            return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False

    return [pid for pid in alive(group) if is_worker(pid)]


def rounds_done(folder: Path) -> int:
    """Rounds that the runs in a folder have behind them, the pre-trainings apart."""
    return sum(p.read_text().count("\n") for p in folder.glob("runs/*/trace.jsonl") if not (p.parent / "done").exists())


# --- jobs ---


def wishes_of(jobs: list[Job]) -> list[Wish]:
    return [wish for job in jobs for wish in job.wishes]


def test_what_is_missing_is_planned_once_and_what_is_done_is_not(how: Execution) -> None:
    wishes = [wish("source"), wish("coal"), wish("coal"), wish("coal", seed=1)]
    keys, shared, rest = plan_jobs(wishes, how)
    assert len(keys) == 4
    assert len(set(keys)) == 3
    assert wishes_of(shared) == [wishes[0], wishes[3]]  # one pre-training a seed: the heads agree
    assert wishes_of(rest) == [wishes[0], wishes[1], wishes[3]]
    assert not list(how.root.glob("*/"))
    events = list(carry_out([*shared[:1], *rest[:1]], how, 1))
    assert [type(e) for e in events if isinstance(e, Finished | Failed)] == [Finished, Finished]
    _, shared, rest = plan_jobs(wishes, how)
    assert wishes_of(shared) == [wishes[3]]
    assert wishes_of(rest) == [wishes[1], wishes[3]]


def test_a_job_that_fails_does_not_stop_the_others(how: Execution) -> None:
    jobs = [Job((wish(lr=1e30),), pretraining=False), Job((wish(),), pretraining=False)]
    ends = [e for e in carry_out(jobs, how, 1) if isinstance(e, Finished | Failed)]
    assert [type(e) for e in ends] == [Failed, Finished]
    assert isinstance(ends[0], Failed)
    assert "is not finite" in ends[0].reason
    assert isinstance(ends[1], Finished)
    assert RunFolder(how.root / ends[1].key).done


# --- killed ---


@with_proc
def test_the_command_killed_at_several_moments_ends_as_an_undisturbed_one(
    command: str, cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ("run", "mini/syn-uci", "-t", "pretrain=60", "-t", "rounds=12", "-t", "round=10", "-t", "batch=16")
    ask += ("--checkpoint-every", "0", "--json")

    rough, calm = tmp_path / "rough", tmp_path / "calm"
    for folder in (rough, calm):
        folder.mkdir()
    moments: list[Callable[[], Any]] = [
        lambda: list(rough.glob("runs/*/run.json")),  # before the first step of pre-training
        lambda: rounds_done(rough) >= 4,
    ]
    for moment in moments:
        with started(command, rough, *ask) as process:
            until(moment)
            process.kill()
    again = subprocess.run([command, *ask], cwd=rough, capture_output=True, text=True, check=True)
    # the undisturbed one in this process: that should not matter either
    monkeypatch.chdir(calm)
    assert cli(*ask).out == again.stdout
    names = sorted(
        p.relative_to(calm) for p in calm.glob("runs/*/*") if p.name in ("weights.safetensors", "scores.json")
    )
    assert len(names) >= 3
    for name in names:
        assert (rough / name).read_bytes() == (calm / name).read_bytes(), name


@with_proc
@pytest.mark.parametrize("moment", ["starting", "training"])
def test_ctrl_c_stops_all_workers_and_says_how_to_go_on(command: str, tmp_path: Path, moment: str) -> None:
    ask = ("bench", "mini", "--tasks", "syn-uci", "--methods", "source,coal", "--seeds", "1", "--jobs", "2", *LONG)
    ready: dict[str, Callable[[], Any]] = {
        "starting": lambda: len(workers(process.pid)) == 2,
        "training": lambda: rounds_done(tmp_path) >= 4,
    }
    with started(command, tmp_path, *ask) as process:
        until(ready[moment])
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the group
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert err.strip() == "Stopped. Start the same command again to go on from the last checkpoint."
        until(lambda: not alive(process.pid), 10)


@with_proc
def test_workers_do_not_outlive_a_command_that_is_killed(command: str, tmp_path: Path) -> None:
    ask = ("bench", "mini", "--tasks", "syn-uci", "--methods", "source", "--seeds", "2", "--jobs", "2", *LONG)
    with started(command, tmp_path, *ask) as process:
        until(lambda: rounds_done(tmp_path) >= 4)
        assert len(workers(process.pid)) == 2
        process.kill()
        until(lambda: not workers(process.pid), 15)


def test_a_worker_that_is_killed_costs_nothing_but_its_run_which_goes_on_later(how: Execution) -> None:
    jobs = [Job((wish(seed=seed, pretrain=0, rounds=20),), pretraining=False) for seed in (0, 1)]
    patient = replace(how, checkpoint_every=0)
    ends = []
    for event in carry_out(jobs, patient, 2):
        if isinstance(event, Finished | Failed):
            ends.append(event)
        elif event.step >= 30 and len(active_children()) == 2:
            active_children()[0].kill()
    assert sorted(type(e).__name__ for e in ends) == ["Failed", "Finished"]
    (failed,) = (e for e in ends if isinstance(e, Failed))
    assert re.fullmatch(r"[^\n]+\.\n\nhint: [^\n]+", failed.reason)
    _, _, rest = plan_jobs(wishes_of(jobs), how)
    assert wishes_of(rest) == [failed.wish]
    assert isinstance(list(carry_out(rest, patient, 1))[-1], Finished)
