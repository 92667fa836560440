"""A bench that is killed again and again: fifty times at random, then left to finish."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from grids import finished, results

pytestmark = pytest.mark.soak

KILLS = int(os.environ.get("ASKEW_TEST_KILLS", "50"))
BENCH = ("bench", "mini", "--methods", "source,coal", "--seeds", "2", "--jobs", "2", "--json")
BENCH += (
    "--checkpoint-every",
    "0",
    "-t",
    "pretrain=20",
    "-t",
    "rounds=110",
    "-t",
    "round=10",
    "-t",
    "batch=16",
)


def written(root: Path) -> int:
    """When anything was last written."""
    times = [0]
    for path in root.rglob("*"):
        try:
            times.append(path.stat().st_mtime_ns)
        except FileNotFoundError:  # a temporary file that has got its name
            continue
    return max(times)


def kill_while_it_works(command: str, folder: Path, rng: random.Random) -> bool:
    """Start the bench and kill it a few writes later; False if it ended before."""
    root = folder / "runs"
    seen, left = written(root), rng.randint(1, 15)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [command, *BENCH], cwd=folder, stdout=quiet, stderr=quiet, start_new_session=True
    )
    try:
        while process.poll() is None and left:
            time.sleep(rng.uniform(0, 0.02))
            if (now := written(root)) != seen:
                seen, left = now, left - 1
        if process.poll() is not None:
            return False
        # the whole group, as when a machine fails, or the command alone, as a nervous user does
        if rng.random() < 0.7:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
            time.sleep(1)
        return True
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_a_bench_that_is_killed_again_and_again_ends_in_the_table_of_an_undisturbed_one(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rough, reference = tmp_path / "rough", tmp_path / "reference"
    for folder in (rough, reference):
        folder.mkdir()
    rng = random.Random(0)
    killed = sum(kill_while_it_works(command, rough, rng) for _ in range(KILLS))
    halfway = finished(rough / "runs")

    def table(folder: Path) -> object:
        done = subprocess.run(
            [command, *BENCH], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert table(rough) == table(reference)
    assert results(rough / "runs") == results(reference / "runs")
    assert killed == KILLS
    assert 0 < halfway < finished(reference / "runs"), "the kills did not fall into the work"
    assert not [p for p in (rough / "runs").rglob(".*") if p.name != ".lock"]
    with capsys.disabled():
        print(f"\n{killed} kills, {halfway} runs done between them: 0 lost, 0 stuck, the same bits")
