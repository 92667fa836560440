"""Benchmarks by name: `load_task("digits/usps-mnist")`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from askew.core.errors import UserError, unknown
from askew.data.benchmarks import digits, domainnet, mini, office_home, pacs
from askew.data.task import Info, Shift, Task


class Benchmark(Protocol):
    """What a benchmark's module offers."""

    @property
    def TASKS(self) -> Mapping[str, Info]: ...

    def load(self, name: str, shift: Shift, draw: int, data: Path | None) -> Task: ...


BENCHMARKS: dict[str, Benchmark] = {
    "mini": mini,
    "digits": digits,
    "office-home": office_home,
    "domainnet": domainnet,
    "pacs": pacs,
}

__all__ = ["BENCHMARKS", "known_task", "load_task", "task_infos"]


def task_infos() -> dict[str, Info]:
    """Every task by its full name."""
    return {f"{b}/{name}": info for b, module in BENCHMARKS.items() for name, info in module.TASKS.items()}


def known_task(name: str) -> str:
    """The name itself; UserError if there is no such task."""
    if name not in task_infos():
        raise unknown("task", name, task_infos(), "`askew tasks` lists them.")
    return name


@functools.lru_cache(maxsize=4)
def load_task(name: str, shift: str = "", draw: int = 0, data: Path | None = None) -> Task:
    """Load a task by name, such as "mini/syn-uci", under the label shift that it was published with, or another."""
    benchmark, _, short = known_task(name).partition("/")
    if draw < 0:
        raise UserError(f"The draw must be 0 or more, found {draw}.", "draw 0 is the one that tables use.")
    return BENCHMARKS[benchmark].load(short, Shift.parse(shift or task_infos()[name].shift), draw, data)
