"""How long a grid takes on several GPUs: a simulation from measured step times, and the scheduler's
overhead, measured.

    python benchmarks/speed/scale.py                    # the paper's full benchmark on 1, 8 and 64
    GPUs python benchmarks/speed/scale.py --share 4          # four jobs on a GPU
    python benchmarks/speed/scale.py --measure ray      # Ray's overhead for runs of one second

All inputs are in the tables below. Step times are of COAL; what is assumed is marked as such.
"""

from __future__ import annotations

import argparse
import heapq
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# --- inputs: one H200, one run by itself, step as a CUDA graph ---

STEP_MS = {
    "digits-28": 0.7,  # measured, 32 + 32 images
    "digits-32": 1.7,  # measured, 32 + 32 images
    "resnet50": 1000 * 32 / 3339,  # measured: 3,339 images/s at 16 + 16 images, bf16
}
START_S = 8.0  # a job's process, its data, its graph: assumed
# the driver's time per job, measured on two busy CPU cores: --measure ray --runs 400 --seconds 0
DISPATCH_MS = 5.0

METHODS, SEEDS, DEGREES = 12, 5, 6


@dataclass(frozen=True)
class Benchmark:
    """Tasks that take equally long, and how long: pre-training, then rounds over the larger
    domain."""

    name: str
    net: str
    tasks: int
    images: int
    """Of the larger domain after its label shift: assumed, about the mean over the tasks."""
    batch: int
    pretrain: int
    rounds: int
    heads: int = 2
    """Pre-trainings per task, seed and degree: one for methods with a linear head, one for those
    with a cosine head."""

    def seconds(self, steps: float) -> float:
        return START_S + steps * STEP_MS[self.net] / 1000

    @property
    def run(self) -> float:
        return self.seconds(self.rounds * self.images / self.batch)


PAPER = (
    Benchmark("digits, 28 pixels", "digits-28", 2, 20_000, 32, 2000, 30),
    Benchmark("digits, 32 pixels", "digits-32", 2, 20_000, 32, 2000, 30),
    Benchmark("Office-Home", "resnet50", 6, 2_500, 16, 1000, 10),
    Benchmark("DomainNet", "resnet50", 12, 10_000, 16, 1000, 10),
)

# --- simulation ---


def makespan(jobs: Sequence[float], slots: int, dispatch: float, began: float = 0.0) -> float:
    """When the last of the jobs ends: the driver gives one at a time to the slot that is free
    first."""
    free = [began] * slots
    driver = began
    for seconds in jobs:
        driver = max(driver, free[0]) + dispatch
        heapq.heapreplace(free, driver + seconds)
    return max(free)


def simulate(benchmarks: Sequence[Benchmark], gpus: int, share: int) -> tuple[float, float]:
    """Hours, and the share of them that GPUs are busy; n jobs on one GPU are assumed to be n times
    slower each."""
    combinations = SEEDS * DEGREES
    before = [
        b.seconds(b.pretrain) * share
        for b in benchmarks
        for _ in range(b.tasks * b.heads * combinations)
    ]
    after = [b.run * share for b in benchmarks for _ in range(b.tasks * METHODS * combinations)]
    slots = gpus * share
    half = makespan(before, slots, DISPATCH_MS / 1000)
    end = makespan(after, slots, DISPATCH_MS / 1000, half)
    return end / 3600, (sum(before) + sum(after)) / (end * slots)


def report(share: int) -> None:
    runs = METHODS * SEEDS * DEGREES
    print(f"{'':20} {'runs':>6} {'s/run':>7}   hours on 1, 8, 64 GPUs (busy)")
    rows: list[tuple[str, Sequence[Benchmark]]] = [(b.name, (b,)) for b in PAPER]
    for name, part in [*rows, ("all", PAPER)]:
        count = sum(b.tasks for b in part) * runs
        mean = sum(b.run * b.tasks for b in part) / sum(b.tasks for b in part)
        cells = [
            f"{hours:8.1f} ({busy:4.0%})"
            for hours, busy in (simulate(part, g, share) for g in (1, 8, 64))
        ]
        print(f"{name:20} {count:6} {mean:7.0f}  {' '.join(cells)}")
    print("\nThe driver keeps n GPUs busy while runs are longer than n times its time per job:")
    for gpus in (8, 64, 512):
        print(f"{gpus:6} GPUs, {share} jobs each: {gpus * share * DISPATCH_MS / 1000:6.2f} s")


# --- the scheduler, measured ---


def measure_ray(runs: int, seconds: float) -> None:
    """The time of a grid of jobs that only sleep, beyond their sleep, once its workers have
    started."""
    import torch

    from askew.runs.config import RunRequest
    from askew.runs.execute import Execution
    from askew.runs.launch.jobs import Event, Finished, Job
    from askew.runs.launch.ray import Ray, _Backend
    from askew.runs.launch.remote import Environment, JobGroup, drive
    from askew.runs.root import open_root

    def nap(jobs: Sequence[Job], how: Execution, environment: Environment) -> list[Event]:
        time.sleep(seconds)
        return [Finished(key) for job in jobs for key in job.runs]

    slots = os.cpu_count() or 1
    where = Ray()
    where.connect()
    backend: Any = _Backend(where)
    backend.task = backend.ray.remote(num_cpus=1, max_retries=0)(nap)
    with TemporaryDirectory() as scratch:
        how = Execution(root=open_root(Path(scratch) / "runs"), device=torch.device("cpu"))
        for count in (2 * slots, runs):
            groups = [
                JobGroup(
                    [Job({f"{i:016x}": RunRequest(task="mini/syn-uci", method="coal")}, False)]
                )
                for i in range(count)
            ]
            began = time.monotonic()
            assert (
                sum(isinstance(event, Finished) for event in drive(groups, how, backend)) == count
            )
            took = time.monotonic() - began
    ideal = -(-runs // slots) * seconds
    share = f", {took / ideal - 1:.1%} more" if ideal else ""
    print(f"{runs} runs of {seconds} s, {slots} at a time: {took:.2f} s for {ideal:.0f} s{share}")
    print(f"{1000 * (took - ideal) / runs:.1f} ms per run")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=int, default=1, help="jobs on one GPU")
    parser.add_argument("--measure", choices=["ray"], help="measure a scheduler instead")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    if options.measure:
        measure_ray(options.runs, options.seconds)
    else:
        report(options.share)
