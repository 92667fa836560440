"""Two clocks: where the time of a process goes, and when a checkpoint is due."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

SAVING = 0.05
"""Share of the time that may go into checkpoints: some lanes of a large network are a gigabyte."""

PARTS = {
    "start-up": "start-up: imports, planning, data, networks",
    "capture": "capture of the step",
    "pre-training": "pre-training",
    "training": "training",
    "scoring": "scoring",
    "writing": "writing",
    "waiting": "waiting for the slowest process",
    "other": "other: tables, progress",
}
"""What time is spent on, by short name."""

Item = TypeVar("Item")


class Stopwatch:
    """The seconds that a process has spent on each part; at every moment, one part's clock runs."""

    def __init__(self) -> None:
        self.restart(time.monotonic())

    def restart(self, since: float) -> None:
        """Forget all, and count from a moment of `time.monotonic`, which is the same clock in every
        process."""
        self.seconds, self.part, self.since = dict.fromkeys(PARTS, 0.0), "start-up", since

    def turn(self, part: str) -> str:
        """Let another part's clock run; the part whose clock was running."""
        now, before = time.monotonic(), self.part
        self.seconds[before] += now - self.since
        self.part, self.since = part, now
        return before

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Meanwhile one part's clock runs, and then again the one before. It decorates functions
        too."""
        before = self.turn(part)
        try:
            yield
        finally:
            self.turn(before)

    def each(self, part: str, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; the time that goes into making them is the part's."""
        made = iter(items)
        while True:
            with self.on(part):
                try:
                    item = next(made)
                except StopIteration:
                    return
            yield item

    def take(self) -> dict[str, float]:
        """The seconds so far, and start again from zero."""
        self.turn(self.part)
        taken, self.seconds = self.seconds, dict.fromkeys(PARTS, 0.0)
        return taken

    def credit(self, spent: Mapping[str, float], processes: int) -> None:
        """What one of several processes did while this one was waiting for them; the sum of all
        parts stays."""
        for part, seconds in spent.items():
            self.seconds[part] += seconds / processes
            self.seconds["waiting"] -= seconds / processes


stopwatch = Stopwatch()
"""Of this process, since it imported this file."""


class CheckpointTimer:
    """When to save a checkpoint: every so many seconds, less often where saving takes long."""

    def __init__(self, every: float) -> None:
        self.every = self.pause = every
        self.began = self.saved = time.monotonic()

    def due(self) -> bool:
        self.began = time.monotonic()
        return self.began - self.saved >= self.pause

    def done(self) -> None:
        self.saved = time.monotonic()
        self.pause = max(self.every, (self.saved - self.began) / SAVING) if self.every else 0
