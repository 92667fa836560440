"""Run jobs as Ray tasks, on an existing cluster or one started on this machine; nodes may come and
go."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from askew.core.errors import UserError
from askew.runs.execute import Execution
from askew.runs.launch.jobs import Event, Job
from askew.runs.launch.remote import Environment, JobGroup, drive, run_jobs

CLOSED = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
"""Variables that keep a cluster started here to this machine and its user.

The first is Ray's switch for a cluster of one machine, on any system: all of its processes listen
on 127.0.0.1. The option `_node_ip_address` does not do it: Ray replaces a loopback address by one
that others can reach.
"""


@dataclass(frozen=True)
class Ray:
    """A Ray cluster."""

    address: str = ""
    """Of an existing cluster; empty: one is started on this machine, which no other can reach."""
    workers: int = 0
    """Most jobs at a time; 0: as many as the cluster has room for."""
    gpus: float = 0.0
    """GPUs per job; several jobs share one if it is a fraction."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        self.connect()
        # Ray reports dead workers on stdout, from a thread of its own; stdout is for data alone.
        with contextlib.redirect_stdout(sys.stderr):
            yield from drive([JobGroup([job]) for job in jobs], how, _Backend(self))

    def close(self) -> None:
        """Disconnect from the cluster, and end it if it was started here."""
        import ray

        with contextlib.redirect_stdout(sys.stderr):
            ray.shutdown()

    def connect(self) -> None:
        """Connect to the cluster, or start one; UserError if there is none."""
        loaded: Any = sys.modules.get("ray")
        if loaded is not None and loaded.is_initialized():  # for the jobs before these
            return
        if not self.address:
            os.environ |= CLOSED | {
                "RAY_AUTH_TOKEN": _token()
            }  # before Ray is imported, which reads them
        try:
            import ray
        except ImportError:
            raise UserError("Ray is not installed.", "pip install 'askew[ray]'") from None
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if self.address:
                ray.init(self.address, **quiet)
            else:
                cpus = self.workers or os.cpu_count()
                ray.init("local", num_cpus=cpus, include_dashboard=False, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"There is no Ray cluster at {self.address or 'this machine'}: {reason}", _HINT
            ) from error
        if not self.address:
            node: str = ray.util.get_node_ip_address()
            self._check_loopback(node)

    def _check_loopback(self, node: str) -> None:
        """End a cluster that other machines could reach: whoever reaches it may run code."""
        if not ipaddress.ip_address(node).is_loopback:
            self.close()
            raise UserError(
                f"Ray listens on {node}, where other machines can reach it.",
                "import ray after the cluster was started, or name a cluster of your own by its "
                "address.",
            )


@functools.cache
def _token() -> str:
    """One for all clusters of this process: Ray reads it once."""
    return secrets.token_hex(32)


_HINT = "`ray status` on the cluster shows its address; without --address one is started here."


class _Backend:
    """Groups of jobs as Ray tasks of one CPU and a share of a GPU each."""

    def __init__(self, settings: Ray) -> None:
        import ray

        self.ray: Any = ray
        self.settings = settings
        # A task that is lost comes back to `drive`, which knows whether its run got any further.
        self.task = ray.remote(num_cpus=1, num_gpus=settings.gpus, max_retries=0)(run_jobs)

    @property
    def capacity(self) -> int:
        """Twice what fits now, so that no worker waits for the driver; nodes that come later make
        it more."""
        if self.settings.workers:
            return self.settings.workers
        resources = self.ray.cluster_resources()
        fit = resources.get("CPU", 0.0)
        if self.settings.gpus:
            fit = min(fit, resources.get("GPU", 0.0) / self.settings.gpus)
        return max(2 * int(fit), 1)

    def submit(self, groups: Sequence[JobGroup], how: Execution) -> list[Any]:
        return [self.task.remote(group.jobs, how, Environment.here()) for group in groups]

    def wait(self, handles: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        ready, _ = self.ray.wait(list(handles), num_returns=1, timeout=seconds)
        return [(handle, self._events(handle)) for handle in ready]

    def _events(self, handle: Any) -> list[Event] | None:
        try:
            events: list[Event] = self.ray.get(handle)
        except self.ray.exceptions.RayTaskError:
            # `run_jobs` catches every exception: this is a defect, or askew is not installed there.
            raise
        except self.ray.exceptions.RayError:
            return None
        return events

    def cancel(self, handles: Sequence[Any]) -> None:
        for handle in handles:
            self.ray.cancel(handle, force=True)
