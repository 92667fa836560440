"""Ten thousand finished runs: counted in two seconds, tabulated in five, in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from many_runs import make_runs

pytestmark = pytest.mark.soak

MEASURE = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
"""A small process to start it from: a child's largest size begins with its parent's, and pytest's
is large."""


def test_ten_thousand_runs_are_counted_and_tabulated(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_runs(tmp_path / "runs", 10_000, classes=65)
    for words, seconds in (
        (("status",), 2),
        (("table",), 5),
        (("table", "--format", "markdown"), 5),
    ):
        ask = [sys.executable, "-c", MEASURE, command, *words, str(root)]
        code, used, size = json.loads(
            subprocess.run(ask, capture_output=True, text=True, check=True).stdout
        )
        assert code == 0
        assert used < seconds, words  # of a processor: others may share the machine
        assert size < 500_000, words  # kB
        with capsys.disabled():
            print(f"\naskew {' '.join(words)}: {used:.1f} s, {size / 1000:.0f} MB")
