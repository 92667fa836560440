"""`askew tune` from the command to the settings that a benchmark reads."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from commands import assert_refused, assert_refuses, files
from conftest import TINY, Answer, Command
from test_tune import own  # noqa: F401 -- a fixture

from askew.runs.recipes import read_settings

TUNE = ("tune", "mini/syn-uci", "--draw", 1, "--seeds", 1, "--jobs", 1, *TINY)
ASK = (*TUNE, "-m", "dann,source", "--trials", 2)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Answer]:
    """A folder in which tuning was done once, with its JSON; tests copy it."""
    from askew.cli import main

    folder = tmp_path_factory.mktemp("tuned")
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr("sys.argv", ["askew", *map(str, ASK), "--json"])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code, err.getvalue()
    return folder, Answer(0, out.getvalue(), err.getvalue())


@pytest.fixture
def home(first: tuple[Path, Answer], cli: Command, tmp_path: Path) -> Path:
    """A copy of it, in which the command line stands."""
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def done(folder: Path) -> dict[str, int]:
    """When each run was finished."""
    return {name: time for name, time in files(folder / "runs").items() if name.endswith("/done")}


def run_of(folder: Path, key: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "runs" / key / "run.json").read_text())["run"]
    return record


def test_tpe_is_a_sampler_of_the_command_and_resumes_what_it_drew(home: Path, cli: Command) -> None:
    pytest.importorskip("optuna", reason="tpe is Optuna's")
    answer = cli(*ASK, "--sampler", "tpe", "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert [(t["method"], t["origin"]) for t in found] == [
        ("dann", "settings"),
        ("dann", "searched"),
        ("source", "settings"),
    ]
    before = done(home)
    assert json.loads(cli(*ASK, "--sampler", "tpe", "--json").out) == found
    assert done(home) == before, "nothing is trained twice"


def test_the_json_names_every_trial_its_scores_and_the_chosen(first: tuple[Path, Answer]) -> None:
    folder, answer = first
    found = json.loads(answer.out)
    assert [(t["method"], t["origin"]) for t in found] == [
        ("dann", "settings"),
        ("dann", "searched"),
        ("source", "settings"),
    ]
    assert all(
        list(t["scores"]) == ["mini/syn-uci"] and t["scores"]["mini/syn-uci"] == [t["mean"]]
        for t in found
    )
    assert found[2]["params"] == {}
    assert found[2]["chosen"]
    assert [t["chosen"] for t in found[:2]] == [
        found[0]["mean"] >= found[1]["mean"],
        found[0]["mean"] < found[1]["mean"],
    ]
    # the scores are those of the runs
    scored = {
        run_of(folder, path.parent.name)["plan"][-1]["method"]["options"].get("weight"): json.loads(
            path.read_text()
        )
        for path in (folder / "runs").glob("*/scores.json")
        if not (path.parent / "pretraining").exists()
    }
    assert {t["params"].get("weight"): t["mean"] for t in found} == {
        weight: scores["whole"]["per_class_mean"] for weight, scores in scored.items()
    }


def test_the_file_holds_the_chosen_and_the_settings_that_it_began_from(
    first: tuple[Path, Answer],
) -> None:
    folder, answer = first
    (chosen,) = [t for t in json.loads(answer.out) if t["chosen"] and t["params"]]
    written = read_settings("mini", folder / "tuned.toml")
    before = read_settings("mini")
    assert written == before | {"method": before.get("method", {}) | {"dann": chosen["params"]}}
    text = (folder / "tuned.toml").read_text()
    assert f"# Written by: askew {' '.join(map(str, ASK))} --json\n" in text
    assert f"# dann: {chosen['mean']:.2f} ({chosen['origin']}; 2 trials)\n" in text
    assert answer.err == "settings in tuned.toml\n"
    assert sorted(p.name for p in folder.iterdir()) == ["runs", "tuned.toml"]


def test_a_second_call_trains_nothing_and_prints_and_writes_the_same(
    first: tuple[Path, Answer], home: Path, cli: Command
) -> None:
    before, text = files(home / "runs"), (home / "tuned.toml").read_bytes()
    assert len(done(home)) == 4  # three trials, and the pre-training that they share
    (home / "tuned.toml").unlink()
    assert cli(*ASK, "--json") == first[1]
    assert files(home / "runs") == before
    assert (home / "tuned.toml").read_bytes() == text


def test_the_table_marks_the_chosen(first: tuple[Path, Answer], home: Path, cli: Command) -> None:
    before = files(home / "runs")
    answer = cli(*ASK)
    assert answer.code == 0
    assert files(home / "runs") == before
    lines = [" ".join(line.split()) for line in answer.out.splitlines()]
    for trial in json.loads(first[1].out):
        label = " ".join(f"{name}={value}" for name, value in trial["params"].items())
        words = (
            trial["method"],
            trial["origin"],
            label,
            f"{trial['mean']:.2f}",
            f"{trial['mean']:.2f}",
        )
        assert " ".join(w for w in (*words, "chosen" if trial["chosen"] else "") if w) in lines


def test_one_trial_more_trains_that_alone(home: Path, cli: Command) -> None:
    before = files(home / "runs")
    found = json.loads(cli(*TUNE, "-m", "dann", "--trials", 3, "--json").out)
    assert [t["origin"] for t in found] == ["settings", "searched", "searched"]
    after = files(home / "runs")
    assert after | before == after
    (new,) = {name.partition("/")[0] for name in after.keys() - before.keys() if "/" in name}
    assert (
        run_of(home, new)["plan"][-1]["method"]["options"]["weight"] == found[2]["params"]["weight"]
    )


def test_a_task_named_twice_is_counted_once(home: Path, cli: Command) -> None:
    found = json.loads(cli("tune", "mini/syn-uci,mini/syn-uci", *ASK[2:], "--json").out)
    assert all(len(t["scores"]["mini/syn-uci"]) == 1 for t in found)


BENCH = ("bench", "mini", "--tasks", "syn-uci", "--seeds", 1, "--jobs", 1, *TINY)


def test_a_bench_uses_what_was_chosen(home: Path, cli: Command) -> None:
    before = done(home)
    (row,) = json.loads(cli(*BENCH, "--methods", "dann", "--settings", "tuned.toml", "--json").out)
    assert (row["method"], row["n"]) == ("dann", 1)
    new = [run_of(home, name.partition("/")[0]) for name in done(home).keys() - before.keys()]
    assert {run["draw"] for run in new} == {0}  # the reported one, which tuning has not seen
    (run,) = [run for run in new if len(run["plan"]) == 2]
    chosen = tomllib.loads((home / "tuned.toml").read_text())["method"]["dann"]["weight"]
    assert run["plan"][-1]["method"]["options"]["weight"] == chosen


@pytest.mark.usefixtures("own")
def test_a_better_point_is_found_for_a_method_from_a_file_and_used_by_a_bench(
    home: Path, cli: Command
) -> None:
    fresh = ("-m", "ranges.py:Idle", "-t", "pretrain=0")
    answer = cli(*TUNE, *fresh, "--trials", 2, "--write", "mine.toml", "--json")
    assert answer.code == 0, answer.err
    idle, other = json.loads(answer.out)
    assert (idle["params"], idle["chosen"], other["chosen"]) == ({"weight": 0.0}, False, True)
    assert idle["mean"] < other["mean"]
    assert 1 <= other["params"]["weight"] <= 2
    assert tomllib.loads((home / "mine.toml").read_text())["method"]["idle"] == other["params"]
    before = done(home)
    cli(*BENCH, "--methods", *fresh[1:], "--settings", "mine.toml")
    (name,) = done(home).keys() - before.keys()
    assert run_of(home, name.partition("/")[0])["plan"][-1]["method"]["options"] == other["params"]


def test_tuned_settings_are_what_the_next_tuning_begins_from(home: Path, cli: Command) -> None:
    (home / "mine.toml").write_text("[train]\nlr = 0.05\n[method.dann]\nweight = 0.5\n")
    found = json.loads(
        cli(*TUNE, "-m", "dann", "--trials", 1, "--settings", "mine.toml", "--json").out
    )
    assert [(t["origin"], t["params"], t["chosen"]) for t in found] == [
        ("settings", {"weight": 0.5}, True)
    ]
    assert tomllib.loads((home / "tuned.toml").read_text()) == tomllib.loads(
        (home / "mine.toml").read_text()
    )


def test_a_trial_that_breaks_is_reported_and_not_chosen(home: Path, cli: Command) -> None:
    (home / "mine.toml").write_text('[train]\nschedule = "cosine"\n[method.dann]\nweight = 1e38\n')
    ask = (*TUNE, "-m", "dann", "--trials", 2, "--settings", "mine.toml")
    answer = cli(*ask)
    assert answer.code == 0
    assert re.search(
        r"^mini/syn-uci dann seed 0: .* is not finite after step", answer.err, flags=re.M
    )
    assert re.search(r"dann +settings +weight=1e\+38 +– \(failed\) +–\s*$", answer.out, flags=re.M)
    assert re.search(r"dann +default +weight=1\.0 .*chosen", answer.out)
    assert tomllib.loads((home / "tuned.toml").read_text())["method"]["dann"]["weight"] == 1.0
    # with that point alone there is nothing to choose, and the settings stay as they were
    answer = cli(*ask[:-2], "--trials", 1, "--settings", "mine.toml")
    assert answer.code == 2
    assert answer.err.endswith(
        "No trial of dann finished.\n\nhint: see above; their settings stay as they were.\n"
    ), answer.err
    assert tomllib.loads((home / "tuned.toml").read_text()) == tomllib.loads(
        (home / "mine.toml").read_text()
    )


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "no trials": ((*TUNE, "--trials", 0), "--trials must be at least 1, found 0."),
    "no seeds": (
        ("tune", "mini/syn-uci", "--draw", 1, "--seeds", 0),
        "--seeds must be at least 1, found 0.",
    ),
    "reported task": (
        ("tune", "mini/syn-uci", *TINY),
        "The task mini/syn-uci is reported in tables: ",
    ),
    "reported task of digits": (
        ("tune", "digits/usps-mnist", "--draw", 1),
        "The task digits/usps-mnist is reported ",
    ),
    "two benchmarks": (
        ("tune", "digits/usps-uci,mini/syn-uci", "--draw", 1),
        "Settings belong to one benchmark, ",
    ),
    "unknown task": (("tune", "digits/usps-usi"), "There is no task 'digits/usps-usi'."),
    "no task": (("tune", ","), "Settings belong to one benchmark, found tasks of none."),
    "no data folder": (
        ("tune", "digits/usps-uci"),
        "This task needs real images, and no data folder was given.",
    ),
    "unknown method": ((*TUNE, "-m", "dann,sauce"), "There is no method 'sauce'."),
    "method file missing": ((*TUNE, "-m", "my.py:My"), "The method file my.py does not exist."),
    "file in a missing folder": (
        (*ASK, "--write", "no/tuned.toml"),
        "Cannot write a file no/tuned.toml: ",
    ),
    "file onto a folder": ((*ASK, "--write", "."), "Cannot write a file .: it is a folder."),
    "settings file missing": (
        (*ASK, "--settings", "my.toml"),
        "The settings file my.toml does not exist.",
    ),
    "unknown setting": ((*ASK, "-t", "lrr=1"), "There is no option of training 'lrr'."),
    "unknown device": ((*ASK, "--device", "gpu"), "There is no device 'gpu'."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_a_sentence_with_a_hint_and_writes_nothing(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    assert_refuses(cli, tmp_path, *WRONG[case])


def test_a_folder_in_the_way_of_the_file_is_left_alone(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "tuned.toml").mkdir()
    assert_refused(cli(*ASK))
    assert [p.name for p in tmp_path.rglob("*")] == ["tuned.toml"]
