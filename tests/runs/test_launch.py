from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command
from forked import forks

from askew.core.errors import UserError
from askew.runs import claims
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Busy, Execution, Progress
from askew.runs.launch import jobs as jobs_module
from askew.runs.launch.jobs import Event, Failed, Finished, Job, launch_jobs, plan_jobs, write_plan
from askew.runs.launch.local import Local
from askew.runs.root import open_root
from askew.runs.status import read_status
from askew.runs.store import RunFolder

TRAINING = {"pretrain": 20, "rounds": 2, "round": 10, "batch": 16}
# long enough to be interrupted, with something new on the disk every few hundredths of a second
LONG = (
    "-t",
    "pretrain=0",
    "-t",
    "rounds=2000",
    "-t",
    "round=5",
    "-t",
    "batch=16",
    "--checkpoint-every",
    "0",
)

ELSEWHERE = Path(__file__).parents[1] / "support" / "elsewhere"

with_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="needs /proc to see who is alive"
)


def request(method: str = "source", seed: int = 0, **training: Any) -> RunRequest:
    return RunRequest(
        task="mini/syn-uci",
        method=method,
        seed=seed,
        training=TRAINING | {"head": "cosine"} | training,
    )


@pytest.fixture
def how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Execution:
    monkeypatch.setattr(jobs_module, "PAUSE", 0.01)  # before it looks again whether a run is free
    return Execution(root=open_root(tmp_path / "runs"), device=torch.device("cpu"))


# --- a command that is alive ---


@contextmanager
def started(
    command: str, folder: Path, *args: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """A command as the leader of a group of its own, as a shell starts it; whoever is left is
    killed in the end.

    It hears Ctrl-C, even where these tests were started in the background and do not.
    """
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [command, *args],
        cwd=folder,
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env=os.environ | environment,
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
        time.sleep(0.05)  # to look takes time, too, of what is waited for
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
    return sum(
        p.read_text().count("\n")
        for p in folder.glob("runs/*/trace.jsonl")
        if not (p.parent / "done").exists()
    )


# --- jobs ---


def requests_of(jobs: Sequence[Job]) -> list[RunRequest]:
    return [request for job in jobs for request in job.runs.values()]


def job(request: RunRequest) -> Job:
    return Job({prepare(request).run.key: request}, pretraining=False)


def test_what_is_missing_is_planned_once_and_what_is_done_is_not(how: Execution) -> None:
    requests = [request("source"), request("coal"), request("coal"), request("coal", seed=1)]
    plan = plan_jobs(requests, how)
    keys = plan.keys
    shared, rest = plan.pretrainings, plan.runs
    assert len(keys) == 4
    assert len(set(keys)) == 3
    assert requests_of(shared) == [
        requests[0],
        requests[3],
    ]  # one pre-training a seed: the heads agree
    assert requests_of(rest) == [requests[0], requests[1], requests[3]]
    assert not list(how.root.glob("*/"))
    events = list(launch_jobs([*shared[:1], *rest[:1]], how, Local()))
    assert [type(e) for e in events if isinstance(e, Finished | Failed)] == [Finished, Finished]
    plan = plan_jobs(requests, how)
    shared, rest = plan.pretrainings, plan.runs
    assert requests_of(shared) == [requests[3]]
    assert requests_of(rest) == [requests[1], requests[3]]


def test_runs_that_others_build_on_come_first_and_then_the_longest(how: Execution) -> None:
    requests = [
        request("bbse"),
        request("coal"),
        request("source"),
        request("mcd"),
        request("dann", rounds=3),
    ]
    plan = plan_jobs(requests, how)
    shared, rest = plan.pretrainings, plan.runs
    assert len(requests_of(shared)) == 1  # the pre-training of all of them
    assert [w.method for w in requests_of(rest)] == ["source", "mcd", "dann", "bbse", "coal"]
    alone = plan_jobs([request("bbse")], how)
    assert [w.method for jobs in (alone.pretrainings, alone.runs) for w in requests_of(jobs)] == [
        "bbse",
        "bbse",
    ]


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch, all_test_images: None) -> None:
    """Workers that need not import torch; commands, below, start them as they are."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks)


@pytest.mark.usefixtures("quick_workers")
def test_workers_stay_for_the_next_jobs_unless_they_died_and_go_when_closed(how: Execution) -> None:
    local = Local(2)
    list(launch_jobs([job(request()), job(request(seed=1))], how, local))
    stayed = [worker.process for worker in local.idle]
    assert len(stayed) == 2
    os.kill(stayed[1].pid or 0, signal.SIGKILL)
    stayed[1].join()
    free = local._idle_worker()
    assert free is not None
    assert free.process is stayed[0]
    assert local._idle_worker() is None
    local.idle.append(free)
    local.close()
    assert not stayed[0].is_alive()


def test_a_job_that_fails_does_not_stop_the_others(how: Execution) -> None:
    jobs = [job(request(lr=1e30)), job(request())]
    ends = [e for e in launch_jobs(jobs, how, Local()) if isinstance(e, Finished | Failed)]
    assert [type(e) for e in ends] == [Failed, Finished]
    assert isinstance(ends[0], Failed)
    assert "is not finite" in ends[0].reason
    assert isinstance(ends[1], Finished)
    assert RunFolder(how.root / ends[1].key).done


def test_a_run_that_somebody_else_is_at_comes_last_and_once_it_is_free(how: Execution) -> None:
    """The first of two is held; it is begun only after the second has ended and its holder has
    gone."""
    first, second = job(request(seed=0, pretrain=0)), job(request(seed=1, pretrain=0))
    held = RunFolder(how.root / next(iter(first.runs)))
    with contextlib.ExitStack() as holder:
        holder.enter_context(held.claimed())
        order = []
        for event in launch_jobs([first, second], how, Local()):
            if isinstance(event, Finished):
                order.append(event.key)
                holder.close()
    assert order == [*second.runs, *first.runs]


def test_a_run_whose_pre_training_somebody_else_is_at_waits_for_that(how: Execution) -> None:
    asked = request("coal")
    before = prepare(asked).run.before
    assert before is not None
    launched = []

    def launcher(jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        launched.append(len(jobs))
        yield from Local()(jobs, how)
        if len(launched) == 1:
            holder.close()

    with contextlib.ExitStack() as holder:
        holder.enter_context(RunFolder(how.root / before.key).claimed())
        ends = [e for e in launch_jobs([job(asked)], how, launcher) if isinstance(e, Finished)]
    assert [e.key for e in ends] == list(job(asked).runs)
    assert launched == [1, 1]


def test_damaged_results_are_done_anew(how: Execution) -> None:
    asked = request("coal")
    assert isinstance(list(launch_jobs([job(asked)], how, Local()))[-1], Finished)
    run = prepare(asked).run
    assert run.before is not None
    own, before = RunFolder(how.root / run.key), RunFolder(how.root / run.before.key)
    good = {
        file: file.read_bytes()
        for file in (own.path / "scores.json", before.path / "weights.safetensors")
    }
    for file, content in good.items():
        file.write_bytes(content[:-3] + b"?" + content[-2:])
    assert not before.intact(whole=True)
    plan = plan_jobs([asked], how)
    keys = plan.keys
    shared, rest = plan.pretrainings, plan.runs
    assert (keys, len(rest)) == ([run.key], 1)
    assert isinstance(list(launch_jobs([*shared, *rest], how, Local()))[-1], Finished)
    assert {file: file.read_bytes() for file in good} == good


def test_a_folder_that_cannot_be_written_to_stops_all_at_the_first_run(how: Execution) -> None:
    jobs = [job(request(seed=seed, pretrain=0)) for seed in range(3)]
    (how.root / next(iter(jobs[0].runs))).write_text("a file in the way")
    with pytest.raises(UserError, match="Cannot write"):
        list(launch_jobs(jobs, how, Local()))
    assert not list(how.root.glob("*/"))


def test_a_folder_that_vanishes_is_not_made_again(how: Execution) -> None:
    jobs = [job(request(pretrain=0))]
    shutil.rmtree(how.root)
    with pytest.raises(UserError, match="is gone"):
        list(launch_jobs(jobs, how, Local()))
    assert not how.root.exists()


def test_status_follows_a_grid_from_plan_to_end(how: Execution) -> None:
    jobs = [job(request(seed=0, pretrain=0)), job(request(seed=1, pretrain=0, lr=1e30))]
    (good,), (bad,) = (list(j.runs) for j in jobs)
    write_plan(how, [good, bad], requests_of(jobs))
    assert set(read_status(how.root).waiting) == {good, bad}
    for event in launch_jobs(jobs, replace(how, checkpoint_every=0), Local()):
        if not isinstance(event, Finished | Failed) and event.key == good:
            (holder,) = read_status(how.root).running.values()
            assert (holder.label, holder.pid) == ("mini/syn-uci source seed 0", os.getpid())
    status = read_status(how.root)
    assert (status.done, status.running, status.waiting) == (1, {}, {})
    assert status.failed[bad][0] == "mini/syn-uci source seed 1"
    assert "is not finite" in status.failed[bad][1]


# --- killed ---


@with_proc
@pytest.mark.usefixtures("all_test_images")
def test_a_killed_command_ends_its_workers_and_resumes_to_the_same_results(
    command: str, cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = (
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source",
        "--seeds",
        "2",
        "--checkpoint-every",
        "0",
    )
    ask += (
        "-t",
        "pretrain=10",
        "-t",
        "rounds=15",
        "-t",
        "round=3",
        "-t",
        "batch=16",
        "--json",
        "--jobs",
    )
    rough, calm = tmp_path / "rough", tmp_path / "calm"
    for folder in (rough, calm):
        folder.mkdir()
    # without fcntl, fork and POSIX signals, as on Windows: the tests below have them
    elsewhere = os.pathsep.join(filter(None, [str(ELSEWHERE), os.environ.get("PYTHONPATH")]))
    with started(command, rough, *ask, "2", PYTHONPATH=elsewhere) as process:
        until(lambda: rounds_done(rough) >= 4)
        assert len(workers(process.pid)) == 2
        process.kill()
        until(lambda: not workers(process.pid), 15)
    assert process.returncode == -signal.SIGKILL, "it was on its way"
    printed = []
    for folder in (rough, calm):  # by this process alone, which should not matter either
        monkeypatch.chdir(folder)
        printed.append(cli(*ask, "1").out)
    assert printed[0] == printed[1]
    names = [
        p.relative_to(calm)
        for p in calm.glob("runs/*/*")
        if p.name in ("weights.safetensors", "scores.json")
    ]
    assert len(names) >= 6
    for name in names:
        assert (rough / name).read_bytes() == (calm / name).read_bytes(), name


GRID = (
    "bench",
    "mini",
    "--tasks",
    "syn-uci",
    "--methods",
    "source,coal",
    "--seeds",
    "1",
    "--jobs",
    "2",
    *LONG,
)
STOPPED = "Stopped. Start the same command again to continue from the last checkpoint."


@with_proc
def test_ctrl_c_stops_all_workers_that_start_and_says_how_to_go_on(
    command: str, tmp_path: Path
) -> None:
    with started(command, tmp_path, *GRID) as process:
        until(lambda: len(workers(process.pid)) == 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the group
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert err.strip() == STOPPED
        until(lambda: not alive(process.pid), 10)


def forked_command(folder: Path, *words: str) -> None:
    """A command in a group of its own whose workers, in the same group, are forks and need not
    import torch."""
    os.setsid()
    os.chdir(folder)
    for stream, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY), stream)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(
        signal.SIG_UNBLOCK, {signal.SIGINT}
    )  # the server may have been started by `spawn_worker`
    if "fork" in multiprocessing.get_all_start_methods():
        fork = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    sys.argv = ["askew", *words]
    from askew.cli import main

    main()


@with_proc
def test_ctrl_c_stops_all_workers_that_train_and_says_how_to_go_on(tmp_path: Path) -> None:
    process = forks.Process(target=forked_command, args=(tmp_path, *GRID))
    process.start()
    group = process.pid or 0
    try:
        until(lambda: rounds_done(tmp_path) >= 4)
        assert len(alive(group)) > 2, "the command and two workers"
        os.killpg(group, signal.SIGINT)
        process.join(30)
        assert process.exitcode == 130
        assert (tmp_path / "err").read_text().strip() == STOPPED
        until(lambda: not alive(group), 10)
    finally:
        for pid in alive(group):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_is_killed_costs_nothing_but_its_run_which_goes_on_later(
    how: Execution,
) -> None:
    jobs = [job(request(seed=seed, pretrain=0, rounds=20)) for seed in (0, 1)]
    patient = replace(how, checkpoint_every=0)
    ends = []
    for event in launch_jobs(jobs, patient, Local(2)):
        if isinstance(event, Finished | Failed):
            ends.append(event)
        elif event.step >= 30 and len(active_children()) == 2:
            active_children()[0].kill()
    assert sorted(type(e).__name__ for e in ends) == ["Failed", "Finished"]
    (failed,) = (e for e in ends if isinstance(e, Failed))
    assert re.fullmatch(r"[^\n]+\.\n\nhint: [^\n]+", failed.reason)
    plan = plan_jobs(requests_of(jobs), how)
    rest = plan.runs
    assert requests_of(rest) == [failed.request]
    assert isinstance(list(launch_jobs(rest, patient, Local()))[-1], Finished)


def test_a_run_that_was_taken_over_is_left_to_whoever_has_it(
    how: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long sleep: others took the holder for dead, and it stops at its next look,
    without another write."""
    monkeypatch.setattr(claims, "BEAT", 0.1)
    asked = job(request(pretrain=0, rounds=20))
    (key,) = asked.runs
    patient = replace(how, checkpoint_every=0)
    events = Local()([asked], patient)
    for event in events:
        if isinstance(event, Progress) and event.step >= 30:
            break
    folder = how.root / key
    (folder / "claim.1").unlink()  # the one who took over has claim.2
    left = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    time.sleep(0.3)
    assert list(events) == [Busy(key, folder)]
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == left
