"""Carry jobs out on this machine, one after another or in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from askew.core.errors import UserError, warn_plainly
from askew.runs.execute import Execution, Progress
from askew.runs.launch.jobs import Event, Failed, Job, noted, work


@dataclass
class Worker:
    """A process, the line to it, and the job it is at."""

    process: SpawnProcess
    line: Connection
    job: Job = field(default_factory=lambda: Job({}, pretraining=False))
    ended: int = 0
    """How many of the job's runs have ended, well or not."""

    def begin(self, job: Job, how: Execution) -> None:
        self.job, self.ended = job, 0
        _tell(self.line, (job, how))


@dataclass(frozen=True)
class Local:
    """So many processes of this machine; one is this process itself."""

    workers: int = 1
    idle: list[Worker] = field(default_factory=list)
    """Processes without a job, which know torch, the data and the device already; they go when it is closed."""

    def __call__(self, jobs: Sequence[Job], how: Execution) -> Iterator[Event]:
        if self.workers <= 1 or len(jobs) <= 1:
            for job in jobs:
                yield from work(job, how)
            return
        waiting = deque(jobs)
        crew: dict[Connection, Worker] = {}
        try:
            while crew or waiting:
                while waiting and len(crew) < self.workers:
                    worker = self._free() or spawn_worker()
                    worker.begin(waiting.popleft(), how)
                    crew[worker.line] = worker
                for line in cast(list[Connection], wait(list(crew))):
                    worker = crew[line]
                    try:
                        event: Event = line.recv()
                    except (EOFError, OSError):
                        del crew[line]
                        worker.process.join()
                        yield from _died(worker, how)
                        continue
                    if not isinstance(event, Progress):
                        worker.ended += 1
                        if worker.ended == len(worker.job.runs):
                            if waiting:
                                worker.begin(waiting.popleft(), how)
                            else:
                                self.idle.append(crew.pop(line))
                    yield event
        finally:
            for worker in crew.values():
                worker.process.terminate()
                worker.process.join()

    def _free(self) -> Worker | None:
        while self.idle:
            worker = self.idle.pop()
            if worker.process.is_alive():
                return worker
        return None

    def close(self) -> None:
        """Let the workers go home."""
        while self.idle:
            worker = self.idle.pop()
            _tell(worker.line, None)
            worker.process.join()


def spawn_worker() -> Worker:
    context = multiprocessing.get_context("spawn")
    # One pipe a worker, no shared queue: a worker killed in the middle of a write can then block nobody else.
    line, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    with _interrupts_blocked():
        process.start()
    theirs.close()
    return Worker(process, line)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Leave Ctrl-C to this process: a child that starts while it is blocked never receives it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # The tracker that the first start brings along would unblock it again (Python 3.11), so it comes before.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _died(worker: Worker, how: Execution) -> Iterator[Failed]:
    reason = "A worker died in the middle of its run."
    hint = "start the same command again to go on. Out of memory? Use fewer --jobs."
    for key, request in list(worker.job.runs.items())[worker.ended :]:
        yield noted(Failed(key, request, str(UserError(reason, hint))), how)


def _tell(line: Connection, order: tuple[Job, Execution] | None) -> None:
    with contextlib.suppress(OSError):  # a worker that has died: the next word from its line says so
        line.send(order)


def _work(line: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warn_plainly()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        while (order := line.recv()) is not None:
            job, how = order
            try:
                for event in work(job, how):
                    line.send(event)
            except BrokenPipeError:
                raise
            except Exception:
                for key, request in job.runs.items():
                    line.send(noted(Failed(key, request, traceback.format_exc()), how))


def _end_with_parent() -> None:
    """A worker whose parent was killed has nobody to work for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
