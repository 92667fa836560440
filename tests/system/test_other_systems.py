"""Windows and macOS, as far as they can be had here: fcntl, fork and POSIX signals are taken
away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = ROOT / "tests" / "support" / "elsewhere"

LACKS = """
import importlib, multiprocessing, os, pkgutil, signal
assert not hasattr(os, "fork") and not hasattr(signal, "SIGKILL") and not hasattr(signal, "pthread_sigmask")
assert multiprocessing.get_start_method() == "spawn" and multiprocessing.get_all_start_methods() == ["spawn"]
try:
    import fcntl
except ImportError:
    import askew
    for module in pkgutil.walk_packages(askew.__path__, "askew."):
        if not module.name.endswith(("__main__", "_kernels")):  # kernels need Triton
            importlib.import_module(module.name)
    print("all")
"""

FAST = ("core", "data", "evaluation", "methods", "nets", "training", "adaptation", "runs")


def ask(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python process without them, as are all that it starts."""
    paths = os.pathsep.join([str(ELSEWHERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths} | more,
        capture_output=True,
        text=True,
        check=False,
    )


def test_all_of_askew_is_imported_without_fcntl_fork_and_posix_signals(tmp_path: Path) -> None:
    """A benchmark runs without them in tests/runs/test_launch.py, where it is killed, too."""
    done = ask(tmp_path, "-c", LACKS)
    assert done.stdout == "all\n", done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("room", FAST)
def test_the_fast_part_of_the_suite_passes_where_processes_are_spawned(room: str) -> None:
    how = ("-q", "-m", "not soak", "-k", "not ray and not slurm", "-p", "no:cacheprovider")
    done = ask(ROOT, "-m", "pytest", *how, f"tests/{room}", ASKEW_TEST_SPAWN_ONLY="1")
    assert done.returncode == 0, done.stdout[-3000:]
