from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from askew.evaluation.metrics import mean
from askew.reports.paper import paper_numbers
from askew.reports.results import as_json, cell, collect, std
from askew.runs.root import open_root


def put(
    root: Path, name: str, value: float, *, done: bool = True, scored: bool = True, **changes: Any
) -> Path:
    """A run's folder as `execute` leaves it, with the scores that we want."""
    options = {"alpha": changes.pop("alpha", 0.1)}
    method = {"id": changes.pop("method", "coal"), "revision": "1", "options": options}
    stages = [
        {
            "method": {"id": "source", "revision": "1", "options": {}},
            "round_steps": changes.pop("pretrain", 400),
        },
        {"method": method, "rounds": changes.pop("rounds", 10)},
    ]
    run = {
        "task": "digits/usps-mnist",
        "seed": 0,
        "shift": "rs-ut",
        "batch": 32,
        "plan": stages,
    } | changes
    folder = root / name
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"run": run, "notes": ["a note"]}))
    scores = {
        "per_class_mean": value,
        "overall": value + 1,
        "worst": value - 10,
        "interval": [value - 1, value + 1],
    }
    if scored:
        (folder / "scores.json").write_text(
            json.dumps({"whole": scores, "paper": scores | {"per_class_mean": 50.0}})
        )
    if done:
        (folder / "done").touch()
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return open_root(tmp_path / "runs")


def test_a_cell_is_mean_and_sample_standard_deviation() -> None:
    assert mean([1.0, 2.0, 6.0]) == 3.0
    assert std([1.0, 2.0, 6.0]) == pytest.approx(7**0.5)  # (4 + 1 + 9) / (3 − 1)
    assert std([1.0]) is None
    assert (cell([1.0, 2.0, 6.0]), cell([1.234]), cell([])) == ("3.00 ± 2.65", "1.23", "–")


def test_seeds_make_one_row_in_their_order(root: Path) -> None:
    folders = [
        put(root, str(seed), value, seed=seed) for seed, value in ((2, 30.0), (0, 10.0), (1, 20.0))
    ]
    (row,) = collect(folders)
    assert (row.task, row.label, row.seeds, row.values) == (
        "digits/usps-mnist",
        "coal",
        (0, 1, 2),
        (10.0, 20.0, 30.0),
    )
    assert row.paper_values == (50.0, 50.0, 50.0)
    assert row.intervals[0] == (9.0, 11.0)
    assert row.notes == ("a note",)


def test_tasks_and_methods_have_rows_of_their_own_and_coal_comes_last(root: Path) -> None:
    folders = [
        put(root, "c", 3),
        put(root, "d", 4, method="dann"),
        put(root, "s", 1, method="source"),
    ]
    folders.append(put(root, "o", 2, task="digits/mnist-usps"))
    rows = collect(folders)
    assert [(r.task.removeprefix("digits/"), r.label) for r in rows] == [
        ("mnist-usps", "coal"),
        ("usps-mnist", "source"),
        ("usps-mnist", "dann"),
        ("usps-mnist", "coal"),
    ]


def test_rows_of_one_method_are_named_by_what_differs(root: Path) -> None:
    folders = [
        put(root, str(i), i, alpha=alpha, seed=seed)
        for i, (alpha, seed) in enumerate([(0.1, 0), (0.2, 1)])
    ]
    assert [r.label for r in collect(folders)] == ["coal alpha=0.1", "coal alpha=0.2"]
    folders.append(put(root, "r", 5, alpha=0.1, rounds=20, batch=16))
    assert {r.variant for r in collect(folders)} == {
        "batch=32 alpha=0.1 rounds=10",
        "batch=32 alpha=0.2 rounds=10",
        "batch=16 alpha=0.1 rounds=20",
    }


def test_a_method_s_variants_do_not_rename_another_method_s_rows(root: Path) -> None:
    folders = [put(root, "a", 1), put(root, "b", 2, alpha=0.5), put(root, "c", 3, method="dann")]
    assert [r.label for r in collect(folders)] == ["dann", "coal alpha=0.1", "coal alpha=0.5"]


def test_the_paper_s_number_stands_beside_ours(root: Path) -> None:
    put(root, "a", 70.0)
    put(root, "b", 72.0, seed=1)
    put(root, "m", 1.0, task="mini/syn-uci")
    coal, mini = as_json(collect(p for p in sorted(root.iterdir()) if p.is_dir()))
    assert coal == {
        "task": "digits/usps-mnist",
        "method": "coal",
        "variant": "",
        "reweighted": False,
        "seeds": [0, 1],
        "n": 2,
        "whole": {"mean": 71.0, "spread": pytest.approx(2**0.5), "values": [70.0, 72.0]},
        "ensemble": None,
        "paper_test": {"mean": 50.0, "spread": 0.0, "overall": 72.0},
        "overall": 72.0,
        "worst_class": 61.0,
        "intervals": [[69.0, 71.0], [71.0, 73.0]],
        "paper": (88.12, 0.37),
        "notes": ["a note"],
    }
    assert mini["paper"] is None
    assert mini["whole"]["spread"] is None
    json.dumps([coal, mini])


def test_the_paper_s_table_is_whole() -> None:
    numbers = paper_numbers()
    assert len(numbers) == 22
    assert all(len(methods) == 12 for methods in numbers.values())
    assert numbers["digits/svhn-mnist"]["coal"] == (65.67, 1.29)


def test_runs_that_failed_or_are_not_finished_are_not_counted(cli: Any, root: Path) -> None:
    put(root, "done", 70.0)
    put(root, "killed", 10.0, seed=1, done=False)
    put(root, "unscored", 10.0, seed=2, scored=False)
    put(root, "failed", 10.0, seed=3, done=False, scored=False)
    (row,) = json.loads(cli("table", root, "--json").out)
    assert (row["n"], row["seeds"], row["whole"]["mean"]) == (1, [0], 70.0)


def test_the_printed_table_shows_both_exams_the_paper_and_the_notes(cli: Any, root: Path) -> None:
    put(root, "a", 70.0)
    put(root, "b", 72.0, seed=1)
    answer = cli("table", root)
    assert answer.code == 0
    line = next(x for x in answer.out.splitlines() if x.strip().startswith("digits/usps-mnist"))
    wanted = (
        "digits/usps-mnist coal 2 71.00 ± 1.41 70.0 – 72.0 50.00 ± 0.00 88.12 ± 0.37 72.00 61.0"
    )
    assert " ".join(line.split()) == wanted
    assert "mean ± sample standard deviation over n seeds" in answer.out
    assert "Note: a note." in answer.out
