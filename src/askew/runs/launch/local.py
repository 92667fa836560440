"""Run jobs on this machine, one after another or in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from askew.core.errors import UserError, warn_plainly
from askew.core.processes import end_with_parent
from askew.runs.execute import Execution, Progress
from askew.runs.launch.jobs import Event, Failed, Job, record_failure, run_job
from askew.runs.launch.mps import Mps
from askew.training.clocks import stopwatch


@dataclass(frozen=True)
class Spent:
    """A job has ended; what its worker's time went into since it reported the last one."""

    seconds: dict[str, float]


@dataclass
class Worker:
    """A process, the connection to it, and its present job."""

    process: SpawnProcess
    connection: Connection
    job: Job = field(default_factory=lambda: Job({}, pretraining=False))
    ended: int = 0
    """How many of the job's runs have ended, well or not."""

    def start(self, job: Job, how: Execution) -> None:
        self.job, self.ended = job, 0
        self.send((job, how))

    def send(self, order: tuple[Job, Execution] | None) -> None:
        """Give it a job; None ends it."""
        with contextlib.suppress(OSError):  # a worker that has died: the next `recv` finds that out
            self.connection.send(order)


@dataclass(frozen=True)
class Local:
    """A number of processes on this machine; 1 is this process itself."""

    workers: int = 1
    idle: list[Worker] = field(default_factory=list)
    """Processes without a job, which have loaded torch and the data already; they end with
    `close`."""
    mps: Mps | None = None
    """What lets the processes share a GPU."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        if self.workers <= 1 or len(jobs) <= 1:
            for job in jobs:
                yield from run_job(job, how)
            return
        with stopwatch.on("waiting"):
            yield from self._in_processes(jobs, how)

    def _in_processes(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        processes = min(self.workers, len(jobs))
        waiting, busy = deque(jobs), dict[Connection, Worker]()
        if self.mps is not None and how.device.type == "cuda":
            self.mps.start()
        try:
            while busy or waiting:
                while waiting and len(busy) < processes:
                    worker = self._idle_worker() or self._new_worker()
                    worker.start(waiting.popleft(), how)
                    busy[worker.connection] = worker
                for connection in cast(list[Connection], wait(list(busy))):
                    worker = busy[connection]
                    try:
                        event: Event | Spent = connection.recv()
                    except (EOFError, OSError):
                        del busy[connection]
                        worker.process.join()
                        yield from _failures(worker, how)
                        continue
                    if not isinstance(event, Spent):
                        worker.ended += not isinstance(event, Progress)
                        yield event
                        continue
                    stopwatch.credit(event.seconds, processes)
                    if waiting:
                        worker.start(waiting.popleft(), how)
                    else:
                        self.idle.append(busy.pop(connection))
        finally:
            for worker in busy.values():
                worker.process.terminate()
                worker.process.join()

    def _idle_worker(self) -> Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.is_alive():
                return worker
        return None

    def _new_worker(self) -> Worker:
        with contextlib.nullcontext() if self.mps is None else self.mps.join():
            return spawn_worker()

    def close(self) -> None:
        """Shut idle workers down, then what they shared."""
        while self.idle:
            worker = self.idle.pop()
            worker.send(None)
            worker.process.join()
        if self.mps is not None:
            self.mps.stop()


def spawn_worker() -> Worker:
    """A new process that waits for jobs."""
    context = multiprocessing.get_context("spawn")
    # One pipe per worker, no shared queue: a worker that is killed in the middle of a write can
    # then block no other.
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, time.monotonic()), daemon=True)
    with _interrupts_blocked():
        process.start()
    theirs.close()
    return Worker(process, ours)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Leave Ctrl-C to this process: a child that starts while it is blocked never receives it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # The tracker that the first start brings along would unblock it again (Python 3.11), so it
    # comes before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failures(worker: Worker, how: Execution) -> Iterator[Failed]:
    """The runs that a worker that died has not ended."""
    reason = "A worker died in the middle of its run."
    hint = "start the same command again to go on. Out of memory? Use fewer --jobs."
    for key, request in list(worker.job.runs.items())[worker.ended :]:
        yield record_failure(Failed(key, request, str(UserError(reason, hint))), how)


def _work(connection: Connection, began: float) -> None:
    """What a worker, whose start began at a moment of `time.monotonic`, does: one job after
    another."""
    stopwatch.restart(began)
    end_with_parent()
    warn_plainly()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        while (order := connection.recv()) is not None:
            job, how = order
            stopwatch.turn("other")
            try:
                for event in run_job(job, how):
                    connection.send(event)
            except BrokenPipeError:
                raise
            except Exception:
                for key, request in job.runs.items():
                    connection.send(
                        record_failure(Failed(key, request, traceback.format_exc()), how)
                    )
            stopwatch.turn("waiting")
            connection.send(Spent(stopwatch.take()))
