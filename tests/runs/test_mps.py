"""NVIDIA's MPS, with a program in its place that writes down how it is called."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from askew.runs.config import RunRequest
from askew.runs.execute import Execution
from askew.runs.launch import local
from askew.runs.launch.jobs import Job
from askew.runs.launch.local import Local, Worker
from askew.runs.launch.mps import CONTROL, PIPES, Mps

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="MPS and its stand-in need a POSIX shell"
)

# A daemon is a file in the folder of pipes; like the real program it answers 1 where there is none.
STAND_IN = """#!/bin/sh
pipes=${CUDA_MPS_PIPE_DIRECTORY:-$HOME/nvidia-mps}
say=$(cat)
echo "$* $say ${CUDA_VISIBLE_DEVICES:-all} $pipes" >> "$HOME/calls"
if [ "$1" = -d ]; then
    [ -e "$HOME/forbidden" ] && { echo "You may not start it."; exit 1; }
    touch "$pipes/daemon"
    sleep 60 > /dev/null 2>&1 & echo $! > "$HOME/child"
    exit 0
fi
[ -e "$pipes/daemon" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$say" = quit ] && rm "$pipes/daemon" && kill "$(cat "$HOME/child")"
exit 0
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / CONTROL
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv(PIPES, raising=False)
    return tmp_path


def calls(home: Path) -> list[list[str]]:
    """The words of each call; the last one is the folder of the pipes."""
    return [line.split() for line in (home / "calls").read_text().splitlines()]


def test_a_daemon_of_our_own_is_started_once_used_by_workers_alone_and_stopped(home: Path) -> None:
    notes: list[str] = []
    mps = Mps(notes.append)
    mps.start()
    mps.start()
    asked, started = calls(home)
    assert (asked[0], asked[-1]) == ("get_server_list", str(home / "nvidia-mps"))
    assert started[:2] == ["-d", "all"]
    assert Path(started[-1]).name.startswith("askew-mps-")
    assert len(notes) == 1
    assert "was started" in notes[0]
    with mps.join():
        assert os.environ[PIPES] == started[-1]
    assert PIPES not in os.environ
    mps.stop()
    mps.stop()
    assert [call[0] for call in calls(home)] == ["get_server_list", "-d", "quit"]
    assert calls(home)[-1][-1] == started[-1]
    assert not Path(started[-1]).exists()


def test_a_daemon_that_runs_already_is_left_alone(home: Path) -> None:
    (home / "nvidia-mps").mkdir()
    (home / "nvidia-mps" / "daemon").touch()
    notes: list[str] = []
    mps = Mps(notes.append)
    mps.start()
    with mps.join():
        assert PIPES not in os.environ
    mps.stop()
    assert [call[0] for call in calls(home)] == ["get_server_list"]
    assert notes == []
    assert (home / "nvidia-mps" / "daemon").exists()


def test_a_daemon_that_may_not_be_started_is_one_note_and_no_error(home: Path) -> None:
    (home / "forbidden").touch()
    notes: list[str] = []
    mps = Mps(notes.append)
    mps.start()
    mps.stop()
    assert [call[0] for call in calls(home)] == ["get_server_list", "-d"]
    assert len(notes) == 1
    assert "You may not start it" in notes[0]
    assert not Path(calls(home)[-1][-1]).exists()


def test_nothing_happens_without_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    notes: list[str] = []
    mps = Mps(notes.append)
    mps.start()
    mps.stop()
    assert notes == []


class Gone(Exception):
    """A worker that could not be started."""


@pytest.mark.parametrize(
    ("workers", "device", "end", "expected"),
    [
        (2, "cuda", Gone, ["get_server_list", "-d", "quit"]),
        (2, "cuda", KeyboardInterrupt, ["get_server_list", "-d", "quit"]),
        (2, "cpu", Gone, []),
        (1, "cuda", Gone, []),
    ],
)
def test_processes_on_a_gpu_share_it_to_their_end_and_nobody_else_starts_a_daemon(
    workers: int,
    device: str,
    end: type[BaseException],
    expected: list[str],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[bool] = []

    def stopped(*args: object) -> Worker:
        joined.append(PIPES in os.environ)
        raise end

    monkeypatch.setattr(local, "spawn_worker", stopped)
    monkeypatch.setattr(local, "run_job", stopped)
    jobs = [
        Job(
            {str(seed): RunRequest(task="mini/syn-uci", method="source", seed=seed)},
            pretraining=False,
        )
        for seed in range(2)
    ]
    with pytest.raises(end), closing(Local(workers, mps=Mps())) as launcher:
        list(launcher(jobs, Execution(root=home / "runs", device=torch.device(device))))
    assert joined == [bool(expected)]
    assert ([call[0] for call in calls(home)] if expected else list(home.glob("calls"))) == expected
