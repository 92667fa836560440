"""Windows and macOS, as far as they can be had here: fcntl, fork and POSIX signals are taken away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = ROOT / "tests" / "support" / "elsewhere"

LACKS = """
import importlib, multiprocessing, os, pkgutil, runpy, signal, sys
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
    sys.argv[0] = "askew"
    runpy.run_module("askew", run_name="__main__", alter_sys=True)
"""
"""All of askew is imported, then the command is run that the arguments are."""

FAST = ("core", "data", "evaluation", "methods", "nets", "training", "adaptation", "runs")


def ask(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A Python process without them, as are all that it starts."""
    paths = os.pathsep.join([str(ELSEWHERE), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | {"PYTHONPATH": paths} | more, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def test_all_of_askew_is_imported_without_fcntl_fork_and_posix_signals_and_runs_in_spawned_processes(
    tmp_path: Path,
) -> None:
    bench = ("bench", "mini", "--tasks", "syn-uci", "--methods", "source", "--seeds", "2", "--jobs", "2")
    bench += ("-t", "pretrain=0", "-t", "rounds=1", "-t", "round=2", "-t", "batch=16")
    done = ask(tmp_path, "-c", LACKS, *bench)
    assert done.stdout.startswith("all\n"), done.stderr
    assert done.returncode == 0, done.stderr
    assert "mini/syn-uci" in done.stdout
    assert len(list((tmp_path / "runs").glob("*/done"))) == 2


@pytest.mark.soak
@pytest.mark.parametrize("room", FAST)
def test_the_fast_part_of_the_suite_passes_where_processes_are_spawned(room: str) -> None:
    how = ("-q", "-m", "not soak", "-k", "not ray and not slurm", "-p", "no:cacheprovider")
    done = ask(ROOT, "-m", "pytest", *how, f"tests/{room}", ASKEW_TEST_SPAWN_ONLY="1")
    assert done.returncode == 0, done.stdout[-3000:]
