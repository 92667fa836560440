"""What a grid costs: its missing runs, their steps, and the time of a GPU by measured speeds;
nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from askew.runs.launch.jobs import Job
from askew.training.run import Run

IMAGE_MICROSECONDS = {"digits-28": 0.9, "digits-32": 7.0, "resnet50": 300.0}
"""Of one image through a step, forward and backward, on one H200: the small networks so that the
paper's grid, in lanes of five to ten, takes as long as it took (results/speed), a ResNet-50 by
itself at 16 + 16 in bf16."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The runs of one method, or its pre-trainings, on one network: how many, and what they
    take."""

    method: str
    network: str
    runs: int
    jobs: float
    """How often a step is captured: runs that are trained together as lanes share one."""
    steps: int
    """Of all runs together."""
    minutes: float | None
    """Of one GPU; none for a network whose speed is not known."""


def step_images(run: Run) -> int:
    """How many images a step takes through the network, phases and views counted."""
    method = run.method
    views = len(method.source_views) + (len(method.target_views) if method.sees_target else 0)
    return run.batch * views * sum(phase.repeat for phase in method.phases())


def costs(jobs: Sequence[Job]) -> list[Cost]:
    """What jobs take, by method and network, in their order."""
    found: dict[tuple[str, str], list[tuple[Run, float]]] = {}
    for job in jobs:
        for run in (planned.run for planned in job.plans()):
            name = "pre-training" if job.pretraining else run.method.id
            found.setdefault((name, run.net.name), []).append((run, 1 / len(job.runs)))
    return [_cost(*name, runs) for name, runs in found.items()]


def _cost(method: str, network: str, runs: Sequence[tuple[Run, float]]) -> Cost:
    steps = sum(run.plan[-1].steps for run, _ in runs)
    speed = next((us for name, us in IMAGE_MICROSECONDS.items() if network.startswith(name)), None)
    if runs[0][0].method.runner:  # what it trains, only its runner knows
        speed = None
    images = sum(run.plan[-1].steps * step_images(run) for run, _ in runs)
    minutes = None if speed is None else images * speed / 60e6
    return Cost(
        method=method,
        network=network,
        runs=len(runs),
        jobs=sum(share for _, share in runs),
        steps=steps,
        minutes=minutes,
    )
