"""Carry many runs out on this machine, one after another or in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import cast

from askew.errors import UserError, warn_plainly
from askew.execute import Broken, Execution, Progress, execute_lanes
from askew.lanes import lane_shape
from askew.plan import Run
from askew.recipe import Wish, prepare
from askew.store import RunFolder


@dataclass(frozen=True)
class Finished:
    """A run that is done."""

    key: str


@dataclass(frozen=True)
class Failed:
    """A run that could not be finished, and why."""

    wish: Wish
    reason: str


Event = Progress | Finished | Failed


@dataclass(frozen=True)
class Job:
    """Runs to be trained together, as lanes; or what they build on."""

    wishes: tuple[Wish, ...]
    pretraining: bool


def plan_jobs(wishes: Sequence[Wish], how: Execution) -> tuple[list[str], list[Job], list[Job]]:
    """Every run's key; then what is missing: the pre-trainings, each once, and the runs that build on them."""
    keys: list[str] = []
    shared: dict[str, tuple[Wish, Run]] = {}
    rest: dict[str, tuple[Wish, Run]] = {}
    for wish in wishes:
        run, _ = prepare(wish)
        keys.append(run.key)
        folder = RunFolder(how.root / run.key)
        if folder.done and not folder.pretraining:
            continue
        rest.setdefault(run.key, (wish, run))
        if run.before is not None and not RunFolder(how.root / run.before.key).done:
            shared.setdefault(run.before.key, (wish, run.before))
    return keys, _in_lanes(list(shared.values()), how, True), _in_lanes(list(rest.values()), how, False)


def _in_lanes(missing: Sequence[tuple[Wish, Run]], how: Execution, pretraining: bool) -> list[Job]:
    """Runs of equal shape together, those of one study side by side."""
    alike: dict[str, list[tuple[Wish, Run]]] = {}
    for wish, run in missing:
        alike.setdefault(lane_shape(run), []).append((wish, run))
    jobs = []
    for group in alike.values():
        if how.lanes > 1:
            group.sort(key=lambda member: member[1].origin)
        for start in range(0, len(group), how.lanes):
            jobs.append(Job(tuple(wish for wish, _ in group[start : start + how.lanes]), pretraining))
    return jobs


def carry_out(jobs: Sequence[Job], how: Execution, workers: int) -> Iterator[Event]:
    """Run the jobs, yielding what happens. A job that fails, or whose worker dies, does not stop the others."""
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield from _one(job, how)
        return
    waiting = deque(jobs)
    crew: dict[Connection, Worker] = {}
    try:
        while crew or waiting:
            while waiting and len(crew) < workers:
                worker = _hire(waiting.popleft(), how)
                crew[worker.line] = worker
            for line in cast(list[Connection], wait(list(crew))):
                worker = crew[line]
                try:
                    event: Event = line.recv()
                except (EOFError, OSError):
                    del crew[line]
                    worker.process.join()
                    reason = "A worker died in the middle of its run."
                    hint = "start the same command again to go on. Out of memory? Use fewer --jobs."
                    for wish in worker.job.wishes[worker.ended :]:
                        yield Failed(wish, str(UserError(reason, hint)))
                    continue
                if isinstance(event, Finished | Failed):
                    worker.ended += 1
                    if worker.ended < len(worker.job.wishes):
                        pass
                    elif waiting:
                        worker.job, worker.ended = waiting.popleft(), 0
                        _tell(line, worker.job)
                    else:
                        del crew[line]
                        _tell(line, None)
                        worker.process.join()
                yield event
    finally:
        for worker in crew.values():
            worker.process.terminate()
            worker.process.join()


@dataclass
class Worker:
    """A process, the line to it, and the job it is at."""

    process: SpawnProcess
    line: Connection
    job: Job
    ended: int = 0
    """How many of the job's runs have ended, well or not."""


def _hire(job: Job, how: Execution) -> Worker:
    context = multiprocessing.get_context("spawn")
    # One pipe a worker, no shared queue: a worker killed in the middle of a write can then block nobody else.
    line, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, how), daemon=True)
    # Ctrl-C is ours to handle; a child that starts while it is ignored ignores it from its first instruction on.
    ours = signal.signal(signal.SIGINT, signal.SIG_IGN) if _in_main_thread() else None
    try:
        process.start()
    finally:
        if ours is not None:
            signal.signal(signal.SIGINT, ours)
    theirs.close()
    _tell(line, job)
    return Worker(process, line, job)


def _tell(line: Connection, job: Job | None) -> None:
    with contextlib.suppress(OSError):  # a worker that has died: the next word from its line says so
        line.send(job)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _work(line: Connection, how: Execution) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warn_plainly()
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent is gone
        while (job := line.recv()) is not None:
            try:
                for event in _one(job, how):
                    line.send(event)
            except BrokenPipeError:
                raise
            except Exception:
                for wish in job.wishes:
                    line.send(Failed(wish, traceback.format_exc()))


def _end_with_parent() -> None:
    """A worker whose parent was killed has nobody to work for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _one(job: Job, how: Execution) -> Iterator[Event]:
    """Carry a job out; each of its runs ends in one Finished or Failed."""
    lanes: dict[str, Wish] = {}
    failed: dict[str, str] = {}
    try:
        pairs = []
        for wish in job.wishes:
            run, task = prepare(wish)
            if job.pretraining:
                assert run.before is not None
                run = run.before
            pairs.append((run, task))
            lanes[run.key] = wish
        for event in execute_lanes(pairs, how, pretraining=job.pretraining):
            if isinstance(event, Broken):
                failed[event.key] = str(event.error)
            else:
                yield event
    except UserError as error:
        for wish in job.wishes:
            yield Failed(wish, str(error))
        return
    for key, wish in lanes.items():
        yield Failed(wish, failed[key]) if key in failed else Finished(key)
