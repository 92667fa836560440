"""The journal's stages, what is left of them, and work that is a part of more."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from askew.runs import journal as journals
from askew.runs.execute import Progress
from askew.runs.journal import Journal, part_of


def work(n: int) -> Generator[Progress, None, str]:
    yield Progress(key="reading", label="reading", step=0, steps=n, losses={})
    for i in range(n + 1):
        yield Progress(key="embeddings", label="embedding", step=i, steps=n, losses={})
    return f"{n} embedded"


def test_a_stage_of_two_parts_counts_on_and_other_stages_stay_as_they_are() -> None:
    def both() -> Generator[Progress, None, list[str]]:
        first = yield from part_of(work(2), "embeddings", 0, 5)
        return [first, (yield from part_of(work(3), "embeddings", 2, 5))]

    def told() -> Generator[Progress, None, None]:
        assert (yield from both()) == ["2 embedded", "3 embedded"]

    seen = [(step.key, step.step, step.steps) for step in told()]
    assert [s for s in seen if s[0] == "reading"] == [("reading", 0, 2), ("reading", 0, 3)]
    assert [s[1:] for s in seen if s[0] == "embeddings"] == [
        (0, 5),
        (1, 5),
        (2, 5),
        (2, 5),
        (3, 5),
        (4, 5),
        (5, 5),
    ]


def test_time_left_counts_each_kind_of_training_by_its_own_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slow trainings of a minute, then three quick ones of two seconds."""
    now, guess, lefts = [0.0], journals._GUESS, list[float]()
    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])
    journal = Journal(tmp_path, trainings=9)

    def trained(key: str, seconds: float) -> Generator[Progress, None, None]:
        yield Progress(key=key, label=key, step=0, steps=1, losses={})
        now[0] += seconds
        yield Progress(key=key, label=key, step=1, steps=1, losses={})

    def all_of_them() -> Generator[Progress, None, None]:
        yield Progress(key="reading", label="reading", step=1, steps=1, losses={})
        journal.expect(2, later=3)
        for key, seconds in (("a", 60), ("b", 60)):
            yield from trained(key, seconds)
        journal.expect(3)
        for key in "cde":
            yield from trained(key, 2)

    for step in journal.watch(all_of_them()):
        assert step.left is not None
        lefts.append(step.left)
    a, b = [guess + guess + 3 * guess, guess + 3 * guess], [60 + 3 * guess, 3 * guess]
    c, d, e = [3 * guess, 2 * guess], [2 + 2, 2], [2, 0]
    assert lefts == pytest.approx([9 * guess, *a, *b, *c, *d, *e])
