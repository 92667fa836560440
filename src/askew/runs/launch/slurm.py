"""Run jobs as Slurm arrays, through submitit; a job that is preempted or runs out of time is queued
again.

Results come back as JSON files of our own: the pickles that submitit writes beside them are never
read here.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.core.files import write_json
from askew.runs.execute import Busy, Execution
from askew.runs.launch.jobs import Event, Failed, Finished, Job
from askew.runs.launch.remote import Environment, JobGroup, drive, run_jobs

LOGS = ".slurm"
"""Where the jobs' scripts, logs and results go, in the folder of runs."""

ARRAY = 1000
"""Most jobs of one array: Slurm's own default."""

SLOW_FILES = 15.0
"""Seconds that a result may take to be seen here after its job has ended, on a network file
system."""


@dataclass(frozen=True)
class Slurm:
    """A Slurm cluster, from a machine that may submit to it."""

    workers: int = 0
    """Slurm jobs to share all runs among; 0: one per job, which pays where runs take long."""
    gpus: int = 0
    """GPUs per Slurm job."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of sbatch, such as partition, time or mem; `cluster=local` stands for this machine, to try it
    out."""

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
                "There is no sbatch here, so nothing can be submitted to Slurm.",
                "start it on a login node; --slurm cluster=local tries it on this machine.",
            )

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        self.connect()
        backend = _Backend(self)
        shares = self.workers or (backend.capacity if self.local else len(jobs))
        yield from drive(
            [JobGroup(jobs[i::shares]) for i in range(min(shares, len(jobs)))], how, backend
        )

    def close(self) -> None:
        """Nothing to do: Slurm's jobs end by themselves."""


class RunGroup:
    """What a Slurm job calls; before the job has to end, submitit asks for `checkpoint` and queues
    the answer again."""

    def __call__(
        self, jobs: Sequence[Job], how: Execution, environment: Environment, result: Path
    ) -> None:
        events = run_jobs(jobs, how, environment)
        write_json(result, [_to_json(event) for event in events])

    def checkpoint(self, *arguments: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)  # a run goes on from its own checkpoint


@dataclass(frozen=True, eq=False)
class _Submitted:
    """A Slurm job, its jobs, and where its result will be."""

    slurm_job: Any
    group: JobGroup
    result: Path

    def ended(self) -> bool:
        return self.result.exists() or bool(self.slurm_job.done())

    def events(self) -> list[Event] | None:
        """What the job reported; None if it was lost before it could."""
        end = time.monotonic() + SLOW_FILES
        while not self.result.exists() and time.monotonic() < end:
            time.sleep(0.5)
            list(self.result.parent.iterdir())  # makes a network file system look again
        try:
            events = list(_from_json(json.loads(self.result.read_bytes()), dict(self.group.runs())))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self.result.unlink(missing_ok=True)
        return events


class _Backend:
    """Groups of jobs as Slurm jobs, or as processes of this machine."""

    def __init__(self, settings: Slurm) -> None:
        self.settings = settings
        # Slurm has a queue for any number; this machine would start them all at once.
        self.capacity = (settings.workers or os.cpu_count() or 1) if settings.local else sys.maxsize

    def executor(self, folder: Path) -> Any:
        from submitit import AutoExecutor

        settings = self.settings
        options = {
            name: value
            for name, value in settings.options.items()
            if name not in ("cluster", "time")
        }
        executor = AutoExecutor(folder=folder, cluster="local" if settings.local else "slurm")
        executor.update_parameters(
            name="askew",
            timeout_min=settings.minutes,
            tasks_per_node=1,
            cpus_per_task=1,
            gpus_per_node=settings.gpus,
        )
        if not settings.local:
            executor.update_parameters(slurm_additional_parameters={"requeue": True, **options})
        return executor

    def submit(self, groups: Sequence[JobGroup], how: Execution) -> list[Any]:
        folder, here = how.root / LOGS, Environment.here()
        executor = self.executor(folder)
        submitted: list[Any] = []
        for start in range(0, len(groups), ARRAY):
            part = groups[start : start + ARRAY]
            results = [
                folder / f"result-{secrets.token_hex(16)}.json" for _ in part
            ]  # names that none can foresee
            arguments = (
                [group.jobs for group in part],
                [how] * len(part),
                [here] * len(part),
                results,
            )
            jobs = executor.map_array(RunGroup(), *arguments)
            submitted += map(_Submitted, jobs, part, results)
        return submitted

    def wait(
        self, handles: Sequence[_Submitted], seconds: float
    ) -> list[tuple[Any, list[Event] | None]]:
        end = time.monotonic() + seconds
        while (
            not (ready := [handle for handle in handles if handle.ended()])
            and time.monotonic() < end
        ):
            time.sleep(seconds / 10)
        return [(handle, handle.events()) for handle in ready]

    def cancel(self, handles: Sequence[_Submitted]) -> None:
        for handle in handles:
            handle.slurm_job.cancel()


def _to_json(event: Event) -> dict[str, Any]:
    match event:
        case Finished():
            return {"key": event.key, "end": "finished"}
        case Failed():
            return {
                "key": event.key,
                "end": "failed",
                "reason": event.reason,
                "for_all": event.for_all,
            }
        case Busy():
            return {"key": event.key, "end": "busy", "folder": str(event.folder)}
    raise AssertionError(f"no end of a run: {event}")


def _from_json(values: Iterable[dict[str, Any]], requests: Mapping[str, Any]) -> Iterator[Event]:
    """The same back; KeyError for a run that was not asked for."""
    for value in values:
        key = str(value["key"])
        request = requests[key]
        match value["end"]:
            case "finished":
                yield Finished(key)
            case "failed":
                yield Failed(key, request, str(value["reason"]), value["for_all"] is True)
            case "busy":
                yield Busy(key, Path(value["folder"]))
            case end:
                raise ValueError(f"no end of a run: {end}")


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
        raise UserError(
            f"--slurm time={text} is not a time.", "minutes, H:M:S or D-H:M, such as time=12:00:00."
        )
    return found
