"""`--profile`: where the time of a grid went."""

from __future__ import annotations

import json
import multiprocessing
import re
import time

import pytest
from commands import assert_refused
from conftest import TINY, Command
from forked import forks

from askew.training.clocks import PARTS, stopwatch

GRID = (
    "bench",
    "mini",
    "--tasks",
    "syn-uci",
    "--methods",
    "source,coal",
    "--seeds",
    1,
    *TINY,
    "--profile",
)


@pytest.mark.usefixtures("all_test_images")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_parts_of_a_grids_time_add_up_to_the_wall_clock(
    jobs: int, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks)
    began = time.monotonic()
    stopwatch.restart(began)
    answer = cli(*GRID, "--jobs", jobs, "--json")
    wall = time.monotonic() - began
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert len(found["results"]) == 2
    profile = found["profile"]
    assert list(profile) == list(PARTS)
    assert min(profile.values()) >= 0
    assert 0.8 * wall <= sum(profile.values()) <= wall + 0.01
    assert all(
        profile[part] > 0 for part in ("start-up", "pre-training", "training", "scoring", "writing")
    )
    assert profile["capture"] == 0  # there are no graphs on a CPU
    assert (profile["waiting"] > 0) == (jobs == 2)


def test_a_profile_has_a_line_for_each_part_and_is_printed_on_request_only(cli: Command) -> None:
    stopwatch.restart(time.monotonic() - 100)
    answer = cli("run", "mini/syn-uci", *TINY, "--profile")
    assert "%  start-up" not in answer.out
    lines = re.findall(r"^ +([\d.]+) s +(\d+) %  (\w\S+)", answer.err, re.MULTILINE)
    assert lines[0][2] == "start-up:"
    assert 98 <= sum(int(share) for _, share, _ in lines) <= 102
    total = re.search(r"^ +([\d.]+) s in all$", answer.err, re.MULTILINE)
    assert total is not None
    assert float(total[1]) >= 100
    again = cli("run", "mini/syn-uci", *TINY)
    assert again.out == answer.out
    assert "in all" not in again.err


def test_a_cluster_has_no_profile(cli: Command) -> None:
    assert_refused(cli(*GRID, "--on", "slurm"), "--profile")
