"""Ten thousand finished runs: counted in two seconds, tabulated in five, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))

from many_runs import make_runs

pytestmark = pytest.mark.soak


def test_ten_thousand_runs_are_counted_and_tabulated(command: str, tmp_path: Path) -> None:
    root = make_runs(tmp_path / "runs", 10_000, classes=65)
    for words, seconds in ((("status",), 2), (("table",), 5), (("table", "--format", "markdown"), 5)):
        process = subprocess.Popen([command, *words, str(root)], stdout=subprocess.DEVNULL)
        _, code, used = os.wait4(process.pid, 0)
        assert code == 0
        assert used.ru_utime + used.ru_stime < seconds, words  # of a processor: others may share the machine
        assert used.ru_maxrss < 500_000, words  # kB
