"""A command reads each task once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY, Command

from askew.data.benchmarks import load_task, mini
from askew.data.task import Shift, Task


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The tasks that the mini benchmark has read, one entry each time."""
    read: list[str] = []
    load = mini.load

    def counted(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
        read.append(f"{name} {shift} {draw}")
        return load(name, shift, draw, data)

    monkeypatch.setattr(mini, "load", counted)
    load_task.cache_clear()
    yield read
    load_task.cache_clear()


@pytest.mark.parametrize(
    "command",
    [
        ("run", "mini/syn-uci", *TINY),
        ("run", "mini/syn-uci", "--shift", "RS-UT", *TINY),
        (
            "bench",
            "mini",
            "--tasks",
            "syn-uci",
            "--methods",
            "source,coal",
            "--seeds",
            2,
            "--jobs",
            1,
            *TINY,
        ),
        ("data", "show", "mini/syn-uci", "--figure", "task.svg"),
        ("figure", "mix", "--tasks", "mini/syn-uci", "-o", "mix.svg"),
        ("figure", "samples", "--tasks", "mini/syn-uci", "-o", "samples.svg"),
    ],
    ids=lambda command: " ".join(map(str, command[:3])),
)
def test_a_command_reads_its_task_once(
    command: tuple[object, ...], cli: Command, read: list[str]
) -> None:
    answer = cli(*command)
    assert answer.code == 0, answer.err
    assert read == ["syn-uci rs-ut 0"]


def test_figures_and_a_report_of_runs_read_each_task_once(
    cli: Command, mini_runs: Path, read: list[str]
) -> None:
    for command in (
        ("figure", "features", mini_runs, "--images", 20),
        ("figure", "mix", mini_runs),
        ("report", mini_runs),
    ):
        load_task.cache_clear()
        read.clear()
        answer = cli(*command)
        assert answer.code == 0, answer.err
        assert read == ["syn-uci rs-ut 0"]
