"""Run jobs in processes that a cluster starts, perhaps on other machines; only the folder of runs
is shared."""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from askew.core.device import pick_device
from askew.core.errors import UserError, warn_plainly
from askew.runs.claims import last_holder
from askew.runs.config import RunRequest
from askew.runs.execute import Execution, Progress
from askew.runs.launch.jobs import PAUSE, Event, Failed, Finished, Job, record_failure, run_job
from askew.runs.store import RunFolder

RETRIES = 3
"""How often a group is submitted again that lost its worker without getting further than before."""

_GAVE_UP = UserError(
    f"Its worker was lost {RETRIES + 1} times without getting further.",
    "out of memory, or a machine that fails? Slurm's logs are in .slurm in the folder of runs. "
    "Start the same command "
    "again to go on from the last checkpoint.",
)


@dataclass
class JobGroup:
    """Jobs that are submitted together and run one after another, and how often their worker was
    lost."""

    jobs: Sequence[Job]
    losses: int = 0
    progress: int = 0

    def runs(self) -> Iterator[tuple[str, RunRequest]]:
        for job in self.jobs:
            yield from job.runs.items()


class Backend(Protocol):
    """A cluster's way to submit groups of jobs and to wait for them."""

    @property
    def capacity(self) -> int:
        """Most groups to submit at a time."""

    def submit(self, groups: Sequence[JobGroup], how: Execution) -> list[Any]:
        """Submit groups, each to be run by `run_jobs`; one handle per group."""

    def wait(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        """Those that ended within so many seconds, with their events; None where the process or
        machine was lost."""

    def cancel(self, handles: Sequence[Any]) -> None:
        """Cancel what was submitted."""


@dataclass(frozen=True)
class Environment:
    """The folder and the variables of this process, for names of files and data to mean the same
    elsewhere."""

    folder: Path
    variables: Mapping[str, str]

    @classmethod
    def here(cls) -> Environment:
        return cls(
            Path.cwd(),
            {name: value for name, value in os.environ.items() if name.startswith("ASKEW_")},
        )

    def apply(self) -> None:
        """Make it this process's own; UserError if there is no such folder here."""
        os.environ.update(self.variables)
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UserError(
                f"The folder {self.folder} cannot be entered on {socket.gethostname()}: "
                f"{error.strerror}.",
                "all machines must see the same folders under the same names.",
            ) from None


def run_jobs(jobs: Sequence[Job], how: Execution, environment: Environment) -> list[Event]:
    """Run a group of jobs, in a process of a cluster."""
    warn_plainly()
    events: list[Event] = []
    for job in jobs:
        try:
            environment.apply()
            here = replace(how, device=pick_device(str(how.device)))
            events += [event for event in run_job(job, here) if not isinstance(event, Progress)]
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc()
            events += [
                record_failure(Failed(key, request, reason), how)
                for key, request in job.runs.items()
            ]
    return events


def drive(groups: Iterable[JobGroup], how: Execution, backend: Backend) -> Iterator[Event]:
    """Keep a cluster busy, yielding what happens; a group whose worker or machine was lost is
    submitted again."""
    how = replace(how, root=how.root.resolve())
    waiting, running = deque(groups), dict[Any, JobGroup]()
    observer, looked = (
        _Observer([key for group in waiting for key, _ in group.runs()], how),
        time.monotonic(),
    )
    try:
        while waiting or running:
            if batch := [
                waiting.popleft() for _ in range(min(len(waiting), backend.capacity - len(running)))
            ]:
                running |= zip(backend.submit(batch, how), batch, strict=True)
            for handle, events in backend.wait(list(running), PAUSE):
                group = running.pop(handle)
                if events is not None:
                    yield from observer.once(events)
                elif _may_retry(group, how):
                    waiting.append(group)
                else:
                    yield from observer.once(_give_up(group, how))
            if time.monotonic() - looked >= PAUSE:
                for group in running.values():
                    yield from observer.look_at(group)
                looked = time.monotonic()
    finally:
        backend.cancel(list(running))


def _may_retry(group: JobGroup, how: Execution) -> bool:
    """Whether to submit a group again; any number of times if it got further in between."""
    folders = [how.root / key for key, _ in group.runs()]
    done = sum(RunFolder(folder).done for folder in folders)
    progress = (
        sum(holder.step for folder in folders if (holder := last_holder(folder))) + 10**9 * done
    )
    group.losses = 1 if progress > group.progress else group.losses + 1
    group.progress = max(progress, group.progress)
    return group.losses <= RETRIES


def _give_up(group: JobGroup, how: Execution) -> Iterator[Event]:
    for key, request in group.runs():
        if RunFolder(how.root / key).done:
            yield Finished(key)
        else:
            yield record_failure(Failed(key, request, str(_GAVE_UP)), how)


class _Observer:
    """Reads from the run folders what happens while groups are running, and reports each end
    once."""

    def __init__(self, keys: Iterable[str], how: Execution) -> None:
        self.how, self.reported = how, set[str]()
        self.before = {key: RunFolder(how.root / key).ends() for key in keys}

    def look_at(self, group: JobGroup) -> Iterator[Event]:
        for key, request in group.runs():
            if key in self.reported:
                continue
            folder = RunFolder(self.how.root / key)
            done, failed = folder.ends()
            if done != self.before[key][0] and done:
                yield from self.once([Finished(key)])
            elif failed != self.before[key][1] and failed:
                yield from self.once([Failed(key, request, folder.failure())])
            elif (holder := last_holder(folder.path)) and holder.steps:
                yield Progress(
                    key=key, label=holder.label, step=holder.step, steps=holder.steps, losses={}
                )

    def once(self, events: Iterable[Event]) -> Iterator[Event]:
        """Those events whose run has not been reported as ended before."""
        for event in events:
            if event.key not in self.reported:
                yield event
            if isinstance(event, Finished | Failed):
                self.reported.add(event.key)
