"""Every command that writes, killed at each of its steps, and with each of its writes failing in
four ways."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_cases import CASES, Undisturbed
from faults import Commands, Fault

pytestmark = pytest.mark.soak

STRIDE = int(os.environ.get("ASKEW_TEST_STRIDE", "11"))
"""Every so many steps are disturbed; all of them take hours, and are tested by `make nightly`."""
LEAST = 5
"""Steps of a command that has few."""
FAULTS = {
    "kill": ("kill", 0),
    "full disk": ("errors", errno.ENOSPC),
    "read-only": ("errors", errno.EROFS),
    "EIO": ("error", errno.EIO),
    "EMFILE": ("error", errno.EMFILE),
}


@pytest.fixture(scope="module")
def commands(cache: Path) -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.mark.parametrize("case", CASES)
def test_a_command_survives_a_fault_at_each_of_its_steps(
    commands: Commands, tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    undisturbed = Undisturbed.of(commands, case, tmp_path / "undisturbed")
    steps = len(undisturbed.ended.steps)
    count, stride = 0, max(1, min(STRIDE, steps // LEAST))
    for name, (kind, error) in FAULTS.items():
        for at in range(1, steps + 1, stride):
            undisturbed.survives(commands, Fault(kind, at, error), tmp_path / f"{name} {at}")
            count += 1
    with capsys.disabled():
        print(f"\n{case}: {steps} steps, {count} kills and errors, 0 lost, 0 stuck, 0 tracebacks")


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith(("predict", "export"))])
def test_a_disk_that_fills_up_at_any_byte_is_an_error_and_leaves_nothing(
    commands: Commands, tmp_path: Path, case: str
) -> None:
    undisturbed = Undisturbed.of(commands, case, tmp_path / "undisturbed")
    for size in (0, 1, 100, 1000, 4096, 5000):
        folder = tmp_path / str(size)
        folder.mkdir()
        ended = commands.run(CASES[case], folder, Fault("size", size))
        assert not ended.crashed, ended.err
        if ended.code == 2:
            assert not list(folder.iterdir())
        else:
            undisturbed.check_same(folder, str(size))
