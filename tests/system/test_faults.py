"""Commands that are killed, or whose disk fails, while they write: a sample of what `make soak` tests at every step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_cases import CASES, Undisturbed
from faults import Commands, Fault

ERRORS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS)


@pytest.fixture(scope="module")
def commands(cache: Path) -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("adapt", "tune", "export onnx")])
def test_a_command_that_is_stopped_by_a_kill_or_an_error_ends_the_same_when_it_is_started_again(
    commands: Commands, tmp_path: Path, case: str
) -> None:
    undisturbed = Undisturbed.of(commands, case, tmp_path / "undisturbed")
    steps = len(undisturbed.ended.steps)
    undisturbed.survives(commands, Fault("kill", steps // 2), tmp_path / "killed")
    undisturbed.survives(commands, Fault("error", steps // 3 + 1, errno.EIO), tmp_path / "error")
