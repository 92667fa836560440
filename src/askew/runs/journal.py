"""How far a long piece of work is: one line per stage in a file, and an estimate of the time that
is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from askew.core.files import open_own
from askew.runs.execute import Progress
from askew.runs.root import MARKER

Returned = TypeVar("Returned")

FILE = "log.txt"
_GUESS = 8.0  # seconds that training takes before one has been seen; it is corrected by the first


class Journal:
    """Sees every step of a long piece of work.

    Stages are told apart by the key of their steps. Time left: what the steps so far took, for the
    rest of this stage; and as long as a training of this kind took so far, for each that is to
    come. What trainings of another kind take, which come later, is not known yet.
    """

    def __init__(self, folder: Path, trainings: int) -> None:
        self.folder = folder
        self._now: Progress | None = None
        self._first, self._since = 0, time.monotonic()
        self._lines: list[str] = []
        self.expect(trainings)

    def expect(self, trainings: int, later: int = 0) -> None:
        """So many trainings of one kind begin, none of which has been timed; so many of another
        kind come later."""
        self._end_stage()  # of the kind before
        self._trainings, self._later = trainings, later
        self._times: list[float] = []

    def watch(
        self, work: Generator[Progress, None, Returned]
    ) -> Generator[Progress, None, Returned]:
        """The same work, with each stage written down as it ends; the last one also where the work
        is stopped."""
        self.note("start")
        try:
            while True:
                try:
                    step = next(work)
                except StopIteration as end:
                    self._end_stage()
                    returned: Returned = end.value
                    return returned
                self._see(step)
                yield replace(step, left=self.left())
        except BaseException:
            work.close()
            self._end_stage(", then stopped")
            raise

    def left(self) -> float:
        """Seconds to the end of the work, roughly."""
        now, ahead = self._now, max(0, self._trainings - len(self._times))
        mean = sum(self._times) / len(self._times) if self._times else _GUESS
        later = self._later * _GUESS
        if now is None:
            return ahead * mean + later
        done, to_do = now.step - self._first, now.steps - now.step
        took = time.monotonic() - self._since
        here = took / done * to_do if done > 0 else mean * to_do / max(1, now.steps)
        return here + max(0, ahead - _trains(now)) * mean + later

    def _see(self, step: Progress) -> None:
        if self._now is None or step.key != self._now.key:
            self._end_stage()
            self._first, self._since = step.step, time.monotonic()
        self._now = step

    def _end_stage(self, how: str = "") -> None:
        if self._now is not None:
            took = time.monotonic() - self._since
            if _trains(self._now) and self._now.step > self._first:
                self._times.append(took)
            self.note(
                f"{self._now.label}: {self._now.step} of {self._now.steps} in {took:.1f} s{how}"
            )
        self._now = None

    def note(self, line: str) -> None:
        """Write a line, with the time."""
        self._lines.append(f"{datetime.now().isoformat(' ', 'seconds')}  {line}\n")
        if (
            self.folder / "runs" / MARKER
        ).exists():  # the folder is ours once the request was found to be sound
            with contextlib.suppress(OSError), open_own(self.folder / FILE, "ab") as file:
                file.write("".join(self._lines).encode(errors="backslashreplace"))
            self._lines = []


def _trains(step: Progress) -> bool:
    return step.key not in ("reading", "statistics", "embeddings", "choice")


def part_of(
    work: Generator[Progress, None, Returned], key: str, before: int, steps: int
) -> Generator[Progress, None, Returned]:
    """The same work, whose stage of that key is a part of a longer one: so many steps were before,
    of so many."""
    while True:
        try:
            step = next(work)
        except StopIteration as end:
            returned: Returned = end.value
            return returned
        yield replace(step, step=before + step.step, steps=steps) if step.key == key else step
