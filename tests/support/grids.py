"""Grids on several backends: a Ray cluster to break, a grid's results, and whether any run was
finished twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

KEPT = ("weights.safetensors", "outputs.safetensors", "reweighted.json", "scores.json")


def results(root: Path) -> dict[str, bytes]:
    """Files that must not depend on where and how often a grid was started; of `done`, only that it
    is there."""
    found = {str(p.relative_to(root)): p.read_bytes() for p in root.glob("*/*") if p.name in KEPT}
    return found | {str(p.relative_to(root)): b"" for p in root.glob("*/done")}


def until(true: Callable[[], Any], seconds: float = 300) -> Any:
    """Wait for something to become true, and return its value."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := true():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def finished(root: Path) -> int:
    return len(list(root.glob("*/done")))


def slurm_workers_of(root: Path) -> list[int]:
    """Processes that submitit's local executor started for a folder of runs."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = file.read_bytes()
            if b"submitit.core._submit" in line and str(root).encode() in line:
                found.append(int(file.parent.name))
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def harmed(
    command: Sequence[str | Path], root: Path, harm: Callable[[], object], seconds: float = 300
) -> str:
    """What a command prints that is harmed on its way; none of its runs is finished twice."""
    pipe = subprocess.PIPE
    with done_once(root):
        process = subprocess.Popen([*command, "--out", root], stdout=pipe, stderr=pipe, text=True)
        try:
            harm()
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
            kill(slurm_workers_of(root))
        assert process.returncode == 0, err
    return out


@contextlib.contextmanager
def done_once(root: Path) -> Iterator[None]:
    """Check that no run is finished a second time: its `done` stays the file that it was."""
    first: dict[Path, int] = {}
    again: list[Path] = []
    over = threading.Event()

    def look() -> None:
        for path in root.glob("*/done"):
            with contextlib.suppress(FileNotFoundError):
                time_written = path.stat().st_mtime_ns
                if first.setdefault(path, time_written) != time_written:
                    again.append(path)

    def watch() -> None:
        while not over.wait(0.05):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    look()
    assert not again


@contextlib.contextmanager
def ray_nodes(count: int) -> Iterator[Any]:
    """A Ray cluster of an idle head and `count` nodes of one CPU each, all of them on this
    machine."""
    import ray.cluster_utils

    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False}
    cluster = ray.cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


def a_worker_of(root: Path) -> int | None:
    """A process that works on a run in this folder, as its claim shows."""
    from askew.runs.claims import holder_of

    holders = (holder_of(claim.parent) for claim in root.glob("*/claim.*"))
    return next((holder.pid for holder in holders if holder is not None), None)
