"""The journal's stages, and work that is a part of more."""

from __future__ import annotations

from collections.abc import Generator

from askew.runs.execute import Progress
from askew.runs.journal import part_of


def work(n: int) -> Generator[Progress, None, str]:
    yield Progress("reading", "reading", 0, n, {})
    for i in range(n + 1):
        yield Progress("embeddings", "embedding", i, n, {})
    return f"{n} embedded"


def test_a_stage_of_two_parts_counts_on_and_other_stages_stay_as_they_are() -> None:
    def both() -> Generator[Progress, None, list[str]]:
        first = yield from part_of(work(2), "embeddings", 0, 5)
        return [first, (yield from part_of(work(3), "embeddings", 2, 5))]

    def told() -> Generator[Progress, None, None]:
        assert (yield from both()) == ["2 embedded", "3 embedded"]

    seen = [(step.key, step.step, step.steps) for step in told()]
    assert [s for s in seen if s[0] == "reading"] == [("reading", 0, 2), ("reading", 0, 3)]
    assert [s[1:] for s in seen if s[0] == "embeddings"] == [(0, 5), (1, 5), (2, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
