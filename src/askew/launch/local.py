"""Carry many runs out on this machine, one after another or in several processes."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from askew.errors import UserError
from askew.execute import Execution, Progress, execute
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
    wish: Wish
    pretraining: bool


def plan_jobs(wishes: Sequence[Wish], how: Execution) -> tuple[list[str], list[Job], list[Job]]:
    """Every run's key; then what is missing: the pre-trainings, each once, and the runs that build on them."""
    keys: list[str] = []
    shared: dict[str, Job] = {}
    rest: dict[str, Job] = {}
    for wish in wishes:
        run, _ = prepare(wish)
        keys.append(run.key)
        if RunFolder(how.root / run.key).done:
            continue
        rest.setdefault(run.key, Job(wish, pretraining=False))
        if run.before is not None and not RunFolder(how.root / run.before.key).done:
            shared.setdefault(run.before.key, Job(wish, pretraining=True))
    return keys, list(shared.values()), list(rest.values())


def carry_out(jobs: Sequence[Job], how: Execution, workers: int) -> Iterator[Event]:
    """Run the jobs, yielding what happens. A job that fails does not stop the others."""
    if workers <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield from _one(job, how)
        return
    context = multiprocessing.get_context("spawn")
    todo, events = context.Queue(), context.Queue()
    for job in jobs:
        todo.put(job)
    crew = [
        context.Process(target=_work, args=(todo, events, how), daemon=True) for _ in range(min(workers, len(jobs)))
    ]
    for process in crew:
        todo.put(None)
        process.start()
    left = len(jobs)
    try:
        while left:
            try:
                event: Event = events.get(timeout=1.0)
            except queue.Empty:
                if not any(process.is_alive() for process in crew):
                    raise UserError(
                        f"All workers ended while {left} runs were missing.",
                        "start the same command again: finished runs are kept. Out of memory? Use fewer --jobs.",
                    ) from None
                continue
            left -= isinstance(event, Finished | Failed)
            yield event
        for process in crew:
            process.join()
    finally:
        for process in crew:
            if process.is_alive():
                process.terminate()


def _one(job: Job, how: Execution) -> Iterator[Event]:
    try:
        run, task = prepare(job.wish)
        if job.pretraining:
            assert run.before is not None
            run = run.before
        yield from execute(run, task, how)
        yield Finished(run.key)
    except UserError as error:
        yield Failed(job.wish, str(error))


def _work(todo: Any, events: Any, how: Execution) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while (job := todo.get()) is not None:
        try:
            for event in _one(job, how):
                events.put(event)
        except Exception:
            events.put(Failed(job.wish, traceback.format_exc()))
