"""Carry jobs out in processes that others start, on other machines perhaps; the run folders are all that is shared."""

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
from askew.runs.execute import Execution, Progress
from askew.runs.launch.jobs import PAUSE, Event, Failed, Finished, Job, noted, work
from askew.runs.store import RunFolder

PATIENCE = 3
"""How often a load may lose its worker without getting further than before."""

_LOST = UserError(
    f"Its worker was lost {PATIENCE + 1} times without getting further.",
    "out of memory, or a machine that fails? Start the same command again to go on from the last checkpoint.",
)


@dataclass
class JobGroup:
    """Jobs that are handed over together, one after another to be done; and how it went."""

    jobs: Sequence[Job]
    lost: int = 0
    reached: int = 0

    def runs(self) -> Iterator[tuple[str, Any]]:
        for job in self.jobs:
            yield from job.runs.items()


class Backend(Protocol):
    """An engine that takes loads; what is needed of one."""

    @property
    def room(self) -> int:
        """Most loads to hand over at a time."""

    def send(self, loads: Sequence[JobGroup], how: Execution) -> list[Any]:
        """Hand loads over, to be done by `toil`; a ticket for each."""

    def ended(self, tickets: Sequence[Any], seconds: float) -> list[tuple[Any, list[Event] | None]]:
        """Those that ended within so many seconds, and what `toil` said; None where its process or machine was lost."""

    def cancel(self, tickets: Sequence[Any]) -> None:
        """Take loads back."""


@dataclass(frozen=True)
class Environment:
    """Where the user stands, so that names of files, and of data, mean the same elsewhere."""

    folder: Path
    variables: Mapping[str, str]

    @classmethod
    def here(cls) -> Environment:
        return cls(Path.cwd(), {name: value for name, value in os.environ.items() if name.startswith("ASKEW_")})

    def take(self) -> None:
        os.environ.update(self.variables)
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UserError(
                f"The folder {self.folder} cannot be entered on {socket.gethostname()}: {error.strerror}.",
                "all machines must see the same folders under the same names.",
            ) from None


def run_jobs(jobs: Sequence[Job], how: Execution, standpoint: Environment) -> list[Event]:
    """Carry a load out, in a process of an engine."""
    warn_plainly()
    said: list[Event] = []
    for job in jobs:
        try:
            standpoint.take()
            here = replace(how, device=pick_device(str(how.device)))
            said += [event for event in work(job, here) if not isinstance(event, Progress)]
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else traceback.format_exc()
            said += [noted(Failed(key, request, reason), how) for key, request in job.runs.items()]
    return said


def drive(loads: Iterable[JobGroup], how: Execution, crew: Backend) -> Iterator[Event]:
    """Keep a crew busy, and tell what happens; a load whose worker or machine was lost is handed over again."""
    how = replace(how, root=how.root.resolve())
    waiting, flying = deque(loads), dict[Any, JobGroup]()
    news, looked = _News([key for load in waiting for key, _ in load.runs()], how), time.monotonic()
    try:
        while waiting or flying:
            if batch := [waiting.popleft() for _ in range(min(len(waiting), crew.room - len(flying)))]:
                flying |= zip(crew.send(batch, how), batch, strict=True)
            for ticket, said in crew.ended(list(flying), PAUSE):
                load = flying.pop(ticket)
                if said is not None:
                    yield from news.untold(said)
                elif _may_go_on(load, how):
                    waiting.append(load)
                else:
                    yield from news.untold(_given_up(load, how))
            if time.monotonic() - looked >= PAUSE:
                for load in flying.values():
                    yield from news.of(load)
                looked = time.monotonic()
    finally:
        crew.cancel(list(flying))


def _may_go_on(load: JobGroup, how: Execution) -> bool:
    """Whether to hand a load over again; any number of times if it got further in between."""
    folders = [how.root / key for key, _ in load.runs()]
    done = sum(RunFolder(folder).done for folder in folders)
    reached = sum(holder.step for folder in folders if (holder := last_holder(folder))) + 10**9 * done
    load.lost = 1 if reached > load.reached else load.lost + 1
    load.reached = max(reached, load.reached)
    return load.lost <= PATIENCE


def _given_up(load: JobGroup, how: Execution) -> Iterator[Event]:
    for key, request in load.runs():
        yield Finished(key) if RunFolder(how.root / key).done else noted(Failed(key, request, str(_LOST)), how)


class _News:
    """What the folders tell while loads are under way, each end once."""

    def __init__(self, keys: Iterable[str], how: Execution) -> None:
        self.how, self.told = how, set[str]()
        self.before = {key: RunFolder(how.root / key).ends() for key in keys}

    def of(self, load: JobGroup) -> Iterator[Event]:
        for key, request in load.runs():
            if key in self.told:
                continue
            folder = RunFolder(self.how.root / key)
            done, failed = folder.ends()
            if done != self.before[key][0] and done:
                yield from self.untold([Finished(key)])
            elif failed != self.before[key][1] and failed:
                yield from self.untold([Failed(key, request, folder.failure())])
            elif (holder := last_holder(folder.path)) and holder.steps:
                yield Progress(key, holder.label, holder.step, holder.steps, {})

    def untold(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            if event.key not in self.told:
                yield event
            if isinstance(event, Finished | Failed):
                self.told.add(event.key)
