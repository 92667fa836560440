"""A run carried out by a process of its own, which dies on the way: killed at a write, or without
room on the disk.

A child imports this file and nothing else that its server has not imported, so that dozens of them
take seconds.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked import forks

from askew.core.errors import UserError
from askew.data.task import Task
from askew.runs.execute import Execution, execute
from askew.runs.store import RunFolder
from askew.training import loop
from askew.training.run import Run

CPU = torch.device("cpu")


def finish(run: Run, task: Task, root: Path, **how: Any) -> RunFolder:
    for _ in execute(
        run, task, Execution(root=root, device=CPU, **{"checkpoint_every": 0.0} | how)
    ):
        pass
    return RunFolder(root / run.key)


def child(run: Run, task: Task, root: Path, prepare: Callable[..., None], *args: Any) -> int:
    """Carry the run out in a process of its own; its exit code, −9 if it was killed."""
    process = forks.Process(target=carry_out, args=(run, task, root, prepare, *args))
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def carry_out(run: Run, task: Task, root: Path, prepare: Callable[..., None], *args: Any) -> None:
    loop.CPU_CHUNK = 4  # checkpoints inside rounds too
    os.fsync = lambda file: None  # a kill, unlike a power cut, takes nothing back that was written
    prepare(*args)
    try:
        finish(run, task, root)
    except UserError as error:
        (root / "error.txt").write_text(error.sentence)
        raise SystemExit(2) from None


def undisturbed() -> None:
    pass


def die_at_write(number: int, *, half: bool) -> None:
    """SIGKILL at the n-th write: with its temporary file there, or just after it got its name."""
    calls = 0
    fsync, replace = os.fsync, Path.replace

    def killing_fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if half and calls == number:
            os.ftruncate(file, 7)
            os.kill(os.getpid(), signal.SIGKILL)
        fsync(file)

    def killing_replace(self: Path, target: Path) -> Path:
        done = replace(self, target)
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    # type: ignore[assignment,method-assign]
    os.fsync, Path.replace = killing_fsync, killing_replace


def die_half(number: int) -> None:
    die_at_write(number, half=True)


def die_whole(number: int) -> None:
    die_at_write(number, half=False)


def small_files(limit: int) -> None:
    """No file may grow beyond the limit: a disk without room, as far as a write can tell."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def killed_again_and_again(run: Run, task: Task, root: Path, die: Callable[..., None]) -> int:
    """Start the run until it ends, each life killed a few writes further on; how often that was."""
    for kills in range(60):
        code = child(run, task, root, die, 3 + kills % 5)
        if code == 0:
            return kills
        assert code == -signal.SIGKILL
    raise AssertionError("it never ended")
