"""Carry jobs out as Ray tasks: on a cluster that is there, or on this machine; nodes may come and go."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from askew.core.errors import UserError
from askew.runs.execute import Execution
from askew.runs.launch.jobs import Event, Job
from askew.runs.launch.remote import Environment, JobGroup, drive, run_jobs


@dataclass(frozen=True)
class Ray:
    """A Ray cluster."""

    address: str = ""
    """Of a cluster that is there; empty: one is started here, which nobody else can reach."""
    workers: int = 0
    """Most jobs at a time; 0: as many as there is room for."""
    gpus: float = 0.0
    """GPUs a job; several jobs share one if it is a fraction."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        self.connect()
        # Ray tells of dead workers on stdout, from a thread of its own; that is talk, and stdout is for data.
        with contextlib.redirect_stdout(sys.stderr):
            yield from drive([JobGroup([job]) for job in jobs], how, _Backend(self))

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        import ray

        with contextlib.redirect_stdout(sys.stderr):
            ray.shutdown()

    def connect(self) -> None:
        """Reach the cluster, or start one; UserError if there is none."""
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed.", "pip install 'askew[ray]'") from None
        if ray.is_initialized():  # by the jobs before these
            return
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address:
                ray.init(self.address, **quiet)
            else:
                cpus = self.workers or os.cpu_count()
                ray.init("local", num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"There is no Ray cluster at {self.address or 'this machine'}: {reason}", _HINT) from error


_HINT = "`ray status` on the cluster tells its address; without --address one is started here."


class _Backend:
    """Loads as tasks of one CPU and a share of a GPU each."""

    def __init__(self, where: Ray) -> None:
        import ray

        self.ray: Any = ray
        self.where = where
        # A task that is lost comes back to `drive`, which knows whether its run got any further.
        self.task = ray.remote(num_cpus=1, num_gpus=where.gpus, max_retries=0)(run_jobs)

    @property
    def room(self) -> int:
        """Twice what fits now, so that no worker waits for us; nodes that come later make it more."""
        if self.where.workers:
            return self.where.workers
        there = self.ray.cluster_resources()
        fit = there.get("CPU", 0.0)
        if self.where.gpus:
            fit = min(fit, there.get("GPU", 0.0) / self.where.gpus)
        return max(2 * int(fit), 1)

    def send(self, loads: Sequence[JobGroup], how: Execution) -> list[Any]:
        return [self.task.remote(load.jobs, how, Environment.here()) for load in loads]

    def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        ready, _ = self.ray.wait(list(tickets), num_returns=1, timeout=seconds)
        return [(ticket, self.said(ticket)) for ticket in ready]

    def said(self, ticket: Any) -> list[Event] | None:
        try:
            events: list[Event] = self.ray.get(ticket)
        except self.ray.exceptions.RayTaskError:
            raise  # `toil` catches all there is: this is a defect, or askew is not installed there
        except self.ray.exceptions.RayError:
            return None
        return events

    def cancel(self, tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            self.ray.cancel(ticket, force=True)
