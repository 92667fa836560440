"""Commands that are killed, or whose disk fails, while they write: a sample of what `make soak`
tests at every step."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_cases import CASES, Undisturbed
from faults import Commands, Fault

QUICK = ("run", "predict", "export safetensors", "audit")


@pytest.fixture(scope="module")
def commands(cache: Path) -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.mark.parametrize("case", QUICK)
def test_a_command_that_is_killed_or_whose_disk_fails_ends_the_same_when_it_is_started_again(
    commands: Commands, tmp_path: Path, case: str
) -> None:
    undisturbed = Undisturbed.of(commands, case, tmp_path / "undisturbed")
    steps = undisturbed.ended.steps
    writes = [at for at, step in enumerate(steps, start=1) if step.startswith("write")]
    undisturbed.survives(
        commands, Fault("kill", writes[len(writes) // 2]), tmp_path / "killed"
    )  # half is written
    undisturbed.survives(
        commands, Fault("errors", len(steps) // 3 + 1, errno.ENOSPC), tmp_path / "full"
    )


@pytest.mark.parametrize("case", ["predict parquet"])
def test_a_file_that_a_library_writes_to_a_full_disk_is_an_error_with_a_hint(
    commands: Commands, tmp_path: Path, case: str
) -> None:
    (tmp_path / "full").mkdir()
    ended = commands.run(CASES[case], tmp_path / "full", Fault("size", 1000))
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert "There is no room left on the disk for" in ended.err
    assert not list((tmp_path / "full").iterdir())
