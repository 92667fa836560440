"""Progress: bars that are full at the end, and one line for each stage where there is no terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from rich.console import Console

from askew.cli import progress
from askew.runs.execute import Progress

STAGES = [("reading", 320), ("embeddings", 320), ("a", 20), ("b", 10)]


def work() -> Iterator[Progress]:
    for key, steps in STAGES:
        for step in (0, steps // 2):  # the rest is left out, as duplicates are
            yield Progress(key=key, label=f"the {key}", step=step, steps=steps, losses={}, left=9.0)
    return 7


def test_bars_are_full_at_the_end_and_count_only_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    monkeypatch.setattr(progress, "err", console)
    bars = progress._training_bars()
    monkeypatch.setattr(progress, "_training_bars", lambda: bars)
    assert progress.watch(work()) == 7
    assert [t.completed for t in bars.tasks if t.total is not None] == [n for _, n in STAGES]
    with console.capture() as shown:
        console.print(bars.get_renderable())
    assert "320/320" in shown.get()
    assert "160/320" not in shown.get()
    assert "?" not in shown.get()


def test_redirected_progress_is_one_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert progress.watch(work()) == 7
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"the {key}" for key, _ in STAGES]
