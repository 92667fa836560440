from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from askew.training import clocks
from askew.training.clocks import PARTS, Stopwatch


class Hands:
    """A clock that is moved by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clocks, "time", SimpleNamespace(monotonic=hands.monotonic))
    return hands


def test_a_part_within_another_stops_its_clock_and_every_second_belongs_to_one_part(
    hands: Hands,
) -> None:
    watch = Stopwatch()
    hands.now += 2
    with watch.on("training"):
        hands.now += 3
        with watch.on("capture"):
            hands.now += 5
        hands.now += 7
    hands.now += 11
    seconds = watch.take()
    assert {part: s for part, s in seconds.items() if s} == {
        "start-up": 13,
        "training": 10,
        "capture": 5,
    }
    assert list(seconds) == list(PARTS)
    hands.now += 1
    assert sum(watch.take().values()) == 1


def test_the_clock_of_a_part_stops_where_its_work_raises(hands: Hands) -> None:
    watch = Stopwatch()

    @watch.on("writing")
    def write() -> None:
        hands.now += 2
        raise OSError("full")

    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            write()
    hands.now += 1
    watch.turn("other")
    assert (watch.seconds["writing"], watch.seconds["start-up"]) == (4, 1)


def test_making_items_is_timed_and_using_them_is_not(hands: Hands) -> None:
    watch = Stopwatch()

    def slow() -> Iterator[int]:
        for item in (1, 2, 3):
            hands.now += 10
            yield item

    used = []
    for item in watch.each("training", slow()):
        hands.now += 1
        used.append(item)
    assert used == [1, 2, 3]
    assert (watch.seconds["training"], watch.take()["start-up"]) == (30, 3)


def test_time_of_workers_is_not_counted_as_waiting_and_the_sum_is_the_wall_clock(
    hands: Hands,
) -> None:
    """Two workers in a call of ten seconds: one busy for all of it, the other for four seconds."""
    watch = Stopwatch()
    with watch.on("waiting"):
        hands.now += 10
        watch.credit({"start-up": 1, "training": 9}, 2)
        watch.credit({"start-up": 1, "training": 3}, 2)
    seconds = watch.take()
    assert {part: s for part, s in seconds.items() if s} == {
        "start-up": 1,
        "training": 6,
        "waiting": 3,
    }
