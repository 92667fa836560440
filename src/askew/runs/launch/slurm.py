"""Carry jobs out as Slurm arrays, through submitit; a job that is preempted or runs out of time is queued again."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.runs.execute import Execution
from askew.runs.launch.jobs import Event, Job
from askew.runs.launch.remote import Environment, JobGroup, drive, run_jobs

LOGS = ".slurm"
"""Where scripts and logs of the jobs go, in the folder of runs."""

ARRAY = 1000
"""Most jobs of one array: what Slurm allows unless it is told otherwise."""


@dataclass(frozen=True)
class Slurm:
    """A Slurm cluster, seen from a machine that may submit to it."""

    workers: int = 0
    """Slurm jobs to share all runs among; 0: one for each, which pays where runs take long."""
    gpus: int = 0
    """GPUs a job."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of sbatch, such as partition, time or mem; `cluster=local` stands for this machine, to try it out."""

    @property
    def local(self) -> bool:
        return self.options.get("cluster") == "local"

    @property
    def minutes(self) -> int:
        return _minutes(self.options.get("time", "24:00:00"))

    def connect(self) -> None:
        """UserError if nothing can be submitted from here."""
        if find_spec("submitit") is None:
            raise UserError("submitit is not installed.", "pip install 'askew[slurm]'")
        if self.minutes and not self.local and shutil.which("sbatch") is None:
            raise UserError(
                "There is no sbatch here, so nothing can be given to Slurm.",
                "start it on a login node; --slurm cluster=local tries it on this machine.",
            )

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        self.connect()
        crew = _Backend(self)
        shares = self.workers or (crew.room if crew.local else len(jobs))
        yield from drive([JobGroup(jobs[i::shares]) for i in range(min(shares, len(jobs)))], how, crew)

    def close(self) -> None:
        """Slurm's jobs end by themselves."""


class Toil:
    """What a job calls; submitit asks for `checkpoint` before the job has to go, and queues the answer again."""

    def __call__(self, jobs: Sequence[Job], how: Execution, standpoint: Environment) -> list[Event]:
        return run_jobs(jobs, how, standpoint)

    def checkpoint(self, jobs: Sequence[Job], how: Execution, standpoint: Environment) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, jobs, how, standpoint)  # a run goes on from its own checkpoint


class _Backend:
    def __init__(self, where: Slurm) -> None:
        self.where = where
        self.local = where.local
        # Slurm has a queue for any number; this machine would start them all at once.
        self.room = (where.workers or os.cpu_count() or 1) if self.local else sys.maxsize

    def executor(self, root: Path) -> Any:
        from submitit import AutoExecutor

        options = {name: value for name, value in self.where.options.items() if name not in ("cluster", "time")}
        executor = AutoExecutor(folder=root / LOGS, cluster="local" if self.local else "slurm")
        executor.update_parameters(
            name="askew",
            timeout_min=self.where.minutes,
            tasks_per_node=1,
            cpus_per_task=1,
            gpus_per_node=self.where.gpus,
        )
        if not self.local:
            executor.update_parameters(slurm_additional_parameters={"requeue": True, **options})
        return executor

    def send(self, loads: Sequence[JobGroup], how: Execution) -> list[Any]:
        executor, here = self.executor(how.root), Environment.here()
        sent: list[Any] = []
        for start in range(0, len(loads), ARRAY):
            part = [load.jobs for load in loads[start : start + ARRAY]]
            sent += executor.map_array(Toil(), part, [how] * len(part), [here] * len(part))
        return sent

    def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        end = time.monotonic() + seconds
        while not (ready := [ticket for ticket in tickets if ticket.done()]) and time.monotonic() < end:
            time.sleep(seconds / 10)
        return [(ticket, self.said(ticket)) for ticket in ready]

    def said(self, ticket: Any) -> list[Event] | None:
        from submitit.core.utils import FailedJobError, UncompletedJobError

        try:
            events: list[Event] = ticket.result()
        except FailedJobError:
            raise  # `toil` catches all there is: this is a defect, or askew is not installed there
        except UncompletedJobError:
            return None
        return events

    def cancel(self, tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            ticket.cancel()


def _minutes(text: str) -> int:
    """Slurm's own ways to write a time: minutes, H:M:S, D-H, D-H:M, D-H:M:S, M:S."""
    days, dash, rest = text.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            hours, minutes, *_ = [*parts, 0]
            found = int(days) * 1440 + hours * 60 + minutes
        else:
            found = parts[0] * 60 + parts[1] if len(parts) == 3 else parts[0]
    except ValueError:
        found = 0
    if found < 1:
        raise UserError(f"--slurm time={text} is no time.", "minutes, H:M:S or D-H:M, such as time=12:00:00.")
    return found
