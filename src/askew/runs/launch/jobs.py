"""Jobs: which runs of a grid are missing, and what becomes of them, wherever they are trained."""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from askew.core.errors import UserError, from_os_error
from askew.core.files import Unwritable, write_json
from askew.data.task import Task
from askew.methods import METHODS
from askew.methods.base import Method
from askew.nets.network import fetch_weights
from askew.runs.claims import Watch
from askew.runs.config import Planned, RunRequest, prepare
from askew.runs.execute import Broken, Busy, Execution, Progress, execute_lanes
from askew.runs.root import MARKER, open_root
from askew.runs.store import RunFolder
from askew.testing import check_method
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
    planned: Mapping[str, Planned] = field(default_factory=dict, repr=False, compare=False)
    """The runs as they were planned here. They hold their data, so no other process gets them."""

    def __reduce__(self) -> tuple[type[Job], tuple[Mapping[str, RunRequest], bool]]:
        return Job, (self.runs, self.pretraining)

    def plans(self) -> list[Planned]:
        """What to train; a process that was sent the job plans its requests here."""
        return [self.planned.get(key) or self._plan(request) for key, request in self.runs.items()]

    def _plan(self, request: RunRequest) -> Planned:
        planned = prepare(request)
        before = planned.run.before if self.pretraining else None
        return planned if before is None else replace(planned, run=before)


@dataclass(frozen=True)
class Plan:
    """All runs that were asked for, and the jobs that are missing."""

    planned: Sequence[Planned]
    pretrainings: Sequence[Job]
    """Each once, before the runs that continue it."""
    runs: Sequence[Job]

    @property
    def keys(self) -> list[str]:
        """Of all runs, in the order of the requests."""
        return [planned.key for planned in self.planned]

    @property
    def missing(self) -> int:
        """How many runs and pre-trainings are still to be trained."""
        return sum(len(job.runs) for job in (*self.pretrainings, *self.runs))


class Launcher(Protocol):
    """Runs jobs somewhere; each of their runs ends in one Finished, Failed or Busy."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]: ...

    def close(self) -> None:
        """Release its processes and connections, when there are no more jobs."""


@stopwatch.on("start-up")
def plan_jobs(requests: Sequence[RunRequest], how: Execution) -> Plan:
    """Plan each request once, check its method, and find what is missing. Writes nothing."""
    planned = _planned(requests)
    pretrainings: dict[str, Planned] = {}
    runs: dict[str, Planned] = {}
    for one in planned:
        folder = RunFolder(how.root / one.key)
        if folder.done and not folder.pretraining and folder.intact():
            continue
        runs.setdefault(one.key, one)
        before = one.run.before
        if before is not None and not RunFolder(how.root / before.key).done:
            pretrainings.setdefault(before.key, replace(one, run=before))

    first = pretrainings.keys() & runs.keys()  # asked for themselves, and others continue them
    others = [one for key, one in pretrainings.items() if key not in first]
    return Plan(
        planned, _in_lanes(others, how, True), _in_lanes(list(runs.values()), how, False, first)
    )


def _planned(requests: Sequence[RunRequest]) -> list[Planned]:
    """Plan each request; UserError if a method that is not askew's own breaks the contract."""
    planned: list[Planned] = []
    checked: set[str] = set()
    for request in requests:
        planned.append(prepare(request))
        method = planned[-1].run.method
        if request.method not in checked and METHODS.get(method.id) is not type(method):
            check_contract(method)
        checked.add(request.method)
    return planned


def check_contract(method: Method) -> None:
    """UserError if a method breaks the contract of methods."""
    try:
        check_method(method, strict=False)
    except AssertionError as error:
        raise UserError(
            str(error),
            "docs/add-a-method.md explains the contract, and askew.methods.check_method tests it.",
        ) from None


def _cost(planned: Planned) -> int:
    """How long a run takes, in comparison with others."""
    run, data = planned.run, planned.task.training_data
    inputs = math.prod(data.source.x.shape[1:])
    return inputs * run.plan[-1].steps * sum(phase.repeat for phase in run.method.phases())


def _in_lanes(
    missing: Sequence[Planned], how: Execution, pretraining: bool, first: Collection[str] = ()
) -> list[Job]:
    """Jobs of runs of equal shape, those on the same training data next to each other.

    These `first`, then the longest before the others, so that no worker is left with a long one at
    the end.
    """
    alike: dict[str, list[Planned]] = {}
    for one in missing:
        alike.setdefault(lane_shape(one.run), []).append(one)
    groups: list[list[Planned]] = []
    for group in alike.values():
        lanes = how.lanes or lanes_that_pay(group[0].run, how.device)
        if group[0].run.method.runner:
            lanes = 1
        if lanes > 1:
            group.sort(key=lambda one: one.run.origin)
        groups += [group[start : start + lanes] for start in range(0, len(group), lanes)]
    groups.sort(key=lambda group: (group[0].key not in first, -sum(map(_cost, group))))
    return [
        Job({one.key: one.request for one in group}, pretraining, {one.key: one for one in group})
        for group in groups
    ]


def train(plan: Plan, how: Execution, launcher: Launcher) -> Iterator[Event]:
    """Train what a plan says is missing, pre-trainings first, yielding what happens.

    This is what `askew.run`, `askew.bench`, `askew run`, `askew bench` and `askew tune` do.
    """
    with stopwatch.on("start-up"):
        for one in (one for job in plan.runs for one in job.plans()):
            fetch_weights(one.run.net, tuple(one.task.training_data.source.x.shape[1:]))
        open_root(how.root)  # after all else, so that what cannot be done writes nothing
        if plan.runs:
            write_plan(how, plan.keys, [one.request for one in plan.planned])

    with contextlib.closing(launcher):
        for jobs in (plan.pretrainings, plan.runs):
            yield from launch_jobs(jobs, how, launcher)


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
        for event in execute_lanes(_pairs(job), how, pretraining=job.pretraining):
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
def _pairs(job: Job) -> list[tuple[Run, Task]]:
    """What a job trains, and on which data."""
    return [(one.run, one.task) for one in job.plans()]


def record_failure(failed: Failed, how: Execution) -> Failed:
    """Write a failure into the run's folder, for `askew status`, and return it."""
    RunFolder(how.root / failed.key).fail(failed.reason)
    return failed
