"""A grid that is killed at random moments and at random steps of its writing, a thousand times in
`make nightly`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from fault_cases import CASES, Undisturbed
from faults import Commands, Fault

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("ASKEW_TEST_RANDOM_KILLS", "100"))


def test_a_grid_that_is_killed_at_random_ends_with_the_same_bits_every_time(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, kills, lives, grids = random.Random(0), 0, 0, 0
    with Commands() as commands:
        undisturbed = Undisturbed.of(commands, "bench", tmp_path / "undisturbed")
        while kills < KILLS:
            folder = tmp_path / str(grids)
            folder.mkdir()
            ended = undisturbed.ended
            while ended is undisturbed.ended or ended.killed:
                kind = rng.choice(("kill", "after")) if kills < KILLS else "none"
                fault = Fault(kind, rng.randint(1, 60) if kind == "kill" else rng.randint(1, 1500))
                ended = commands.run(CASES["bench"], folder, fault)
                lives, kills = lives + 1, kills + ended.killed
                assert not ended.crashed, f"{fault}: {ended.err}"
            assert ended.code == 0, ended.err
            assert ended.out == undisturbed.ended.out
            undisturbed.check_same(folder, f"grid {grids}")
            grids += 1
    with capsys.disabled():
        print(
            f"\n{kills} kills, {lives} starts, {grids} grids: 0 lost, 0 stuck, 0 tracebacks, the "
            "same bits each time"
        )
