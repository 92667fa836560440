"""Jobs: which runs of a grid are missing, and what becomes of them, wherever they are trained."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from askew.core.errors import UserError, from_os_error
from askew.core.files import Unwritable, write_json
from askew.data.task import Task
from askew.nets.network import fetch_weights
from askew.runs.claims import Watch
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Broken, Busy, Execution, Progress, execute_lanes
from askew.runs.root import MARKER, open_root
from askew.runs.store import RunFolder
from askew.training.clocks import stopwatch
from askew.training.lane_groups import lane_shape, lanes_that_pay
from askew.training.run import Run

PAUSE = 1.0
"""Seconds between looks at runs that another process works on."""


@dataclass(frozen=True)
class Finished:
    """A run that is done."""

    key: str


@dataclass(frozen=True)
class Failed:
    """A run that could not be finished, and why."""

    key: str
    request: RunRequest
    reason: str
    for_all: bool = False
    """Whether every other run would fail too: the folder of runs cannot be written to."""


Event = Progress | Finished | Failed | Busy


@dataclass(frozen=True)
class Job:
    """Runs to be trained together, as lanes, by their keys; or the pre-trainings of these runs."""

    runs: Mapping[str, RunRequest]
    pretraining: bool


class Launcher(Protocol):
    """Runs jobs somewhere; each of their runs ends in one Finished, Failed or Busy."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]: ...

    def close(self) -> None:
        """Release its processes and connections, when there are no more jobs."""


@dataclass(frozen=True)
class Missing:
    """A run that is still to be trained."""

    request: RunRequest
    run: Run
    inputs: int
    """Numbers in one image."""

    @property
    def cost(self) -> int:
        """How long it takes, in comparison with others."""
        return (
            self.inputs
            * self.run.plan[-1].steps
            * sum(phase.repeat for phase in self.run.method.phases())
        )


def plan_jobs(
    requests: Sequence[RunRequest], how: Execution
) -> tuple[list[str], list[Job], list[Job]]:
    """Every run's key; then what is missing: the pre-trainings, each once, and the runs that
    continue them."""
    keys: list[str] = []
    pretrainings: dict[str, Missing] = {}
    runs: dict[str, Missing] = {}
    for request in requests:
        run, task = prepare(request)
        keys.append(run.key)
        folder = RunFolder(how.root / run.key)
        if folder.done and not folder.pretraining and folder.intact():
            continue
        missing = Missing(request, run, math.prod(task.training_data.source.x.shape[1:]))
        runs.setdefault(run.key, missing)
        if run.before is not None and not RunFolder(how.root / run.before.key).done:
            pretrainings.setdefault(run.before.key, replace(missing, run=run.before))
    first = pretrainings.keys() & runs.keys()  # asked for themselves, and others continue them
    others = [missing for key, missing in pretrainings.items() if key not in first]
    return keys, _in_lanes(others, how, True), _in_lanes(list(runs.values()), how, False, first)


def _in_lanes(
    missing: Sequence[Missing], how: Execution, pretraining: bool, first: Collection[str] = ()
) -> list[Job]:
    """Jobs of runs of equal shape, those on the same training data next to each other.

    These `first`, then the longest before the others, so that no worker is left with a long one at
    the end.
    """
    alike: dict[str, list[Missing]] = {}
    for one in missing:
        alike.setdefault(lane_shape(one.run), []).append(one)
    groups: list[list[Missing]] = []
    for group in alike.values():
        lanes = how.lanes or lanes_that_pay(group[0].run, how.device)
        if lanes > 1:
            group.sort(key=lambda one: one.run.origin)
        groups += [group[start : start + lanes] for start in range(0, len(group), lanes)]
    groups.sort(key=lambda group: (group[0].run.key not in first, -sum(one.cost for one in group)))
    return [Job({one.run.key: one.request for one in group}, pretraining) for group in groups]


@stopwatch.on("start-up")
def open_plan(
    requests: Sequence[RunRequest], how: Execution
) -> tuple[list[str], list[Job], list[Job]]:
    """The same, and a folder for it; only at the end, so that what cannot be done writes
    nothing."""
    plan = plan_jobs(requests, how)
    for request in (request for job in plan[2] for request in job.runs.values()):
        run, task = prepare(request)
        fetch_weights(run.net, tuple(task.training_data.source.x.shape[1:]))
    open_root(how.root)
    return plan


def write_plan(how: Execution, keys: Sequence[str], requests: Sequence[RunRequest]) -> None:
    """Write down which runs a grid has, so that `askew status` knows which are still waiting."""
    file = (
        how.root / f"plan-{hashlib.sha256(' '.join(sorted(keys)).encode()).hexdigest()[:12]}.json"
    )
    if not file.exists():
        labels = [request.label for request in requests]
        write_json(file, {"runs": dict(zip(keys, labels, strict=True))})


def launch_jobs(jobs: Sequence[Job], how: Execution, launcher: Launcher) -> Iterator[Event]:
    """Run jobs by a launcher, yielding what happens. One that fails, or whose worker dies, does not
    stop the others.

    A run that another process works on is tried again at the end, when it is done or that process
    has died.
    """
    stopwatch.turn("other")
    watch = Watch()
    busy: dict[str, Busy] = {}
    while jobs:
        ready = {
            key
            for job in jobs
            for key in job.runs
            if key not in busy or watch.free(busy[key].folder)
        }
        if not ready:
            time.sleep(PAUSE)
            continue
        for event in launcher(_only(jobs, ready), replace(how, dead=frozenset(watch.dead))):
            if isinstance(event, Busy):
                busy[event.key] = event
                ready.discard(event.key)
                continue
            if isinstance(event, Failed) and event.for_all:
                raise UserError.from_text(event.reason)
            yield event
        jobs = _only(jobs, {key for job in jobs for key in job.runs} - ready)


def _only(jobs: Sequence[Job], keys: Collection[str]) -> list[Job]:
    """The jobs with those of their runs that have one of the keys."""
    chosen = ({key: request for key, request in job.runs.items() if key in keys} for job in jobs)
    return [replace(job, runs=runs) for job, runs in zip(jobs, chosen, strict=True) if runs]


def run_job(job: Job, how: Execution) -> Iterator[Event]:
    """Train the runs of one job in this process."""
    ended: dict[str, Failed | Busy] = {}
    try:
        if not (how.root / MARKER).exists():
            raise Unwritable(
                f"The folder of runs {how.root} is gone.",
                "was it on a disk that is no longer mounted?",
            )
        for event in execute_lanes(_prepared(job), how, pretraining=job.pretraining):
            match event:
                case Broken():
                    ended[event.key] = Failed(event.key, job.runs[event.key], str(event.error))
                case Busy():
                    ended[event.key] = event
                case _:
                    yield event
    except (UserError, OSError) as error:
        why = from_os_error(error) if isinstance(error, OSError) else error
        left = [key for key in job.runs if key not in ended and not RunFolder(how.root / key).done]
        ended |= {
            key: Failed(key, job.runs[key], str(why), isinstance(error, Unwritable)) for key in left
        }
    for key in job.runs:
        end = ended.get(key, Finished(key))
        yield record_failure(end, how) if isinstance(end, Failed) else end


@stopwatch.on("start-up")
def _prepared(job: Job) -> list[tuple[Run, Task]]:
    """What a job trains, and on which data."""
    pairs = [prepare(request) for request in job.runs.values()]
    return [
        (run.before if run.before is not None and job.pretraining else run, task)
        for run, task in pairs
    ]


def record_failure(failed: Failed, how: Execution) -> Failed:
    """Write a failure into the run's folder, for `askew status`, and return it."""
    RunFolder(how.root / failed.key).fail(failed.reason)
    return failed
