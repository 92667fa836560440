"""Benchmarks by name: `load_task("digits/usps-mnist")`; installed packages may add some."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from askew.core.errors import unknown
from askew.core.options import whole_number
from askew.core.plugins import loaded_plugins
from askew.data.benchmarks import digits, domainnet, mini, office_home, pacs
from askew.data.paths import data_folder
from askew.data.task import Info, Shift, Task


class Benchmark(Protocol):
    """What a benchmark's module offers; one of another package may have its settings too, in the
    file SETTINGS."""

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

__all__ = ["BENCHMARKS", "benchmark_named", "benchmarks", "known_task", "load_task", "task_infos"]


@functools.cache
def benchmarks() -> dict[str, Benchmark]:
    """Our own, and those of installed packages."""
    return loaded_plugins("askew.benchmarks") | BENCHMARKS


def benchmark_named(name: str) -> Benchmark:
    """UserError if there is none."""
    if name not in benchmarks():
        raise unknown("benchmark", name, benchmarks(), "a grid is a .toml file.")
    return benchmarks()[name]


def task_infos() -> dict[str, Info]:
    """Every task by its full name."""
    return {
        f"{b}/{name}": info
        for b, module in benchmarks().items()
        for name, info in module.TASKS.items()
    }


def known_task(name: str) -> str:
    """The name itself; UserError if there is no such task."""
    if name not in task_infos():
        raise unknown("task", name, task_infos(), "`askew tasks` lists them.")
    return name


@functools.lru_cache(maxsize=4)
def load_task(name: str, shift: str = "", draw: int = 0, data: Path | None = None) -> Task:
    """Load a task by name, such as "mini/syn-uci", under the label shift that it was published
    with, or another.

    >>> len(askew.load_task("mini/syn-uci", shift="few:50").training_data.target)
    50
    """
    benchmark, _, short = known_task(name).partition("/")
    whole_number("draw", draw)
    if data is not None:
        data_folder(data)  # a wrong one is a mistake also where no images are needed
    return benchmarks()[benchmark].load(
        short, Shift.parse(shift or task_infos()[name].shift), draw, data
    )
