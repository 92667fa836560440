from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commands import assert_refused, files
from conftest import TINY, Command

from askew.core.errors import UserError
from askew.methods import PAPER
from askew.runs.config import RunRequest
from askew.runs.grid import read_grid, whole_benchmark

ROOT = Path(__file__).parents[2]
GRIDS = sorted((ROOT / "benchmarks" / "grids").glob("*.toml"))
BASE = RunRequest(task="", method="", shift="")
BEYOND = {
    "teacher-parts",
    "teacher-shifts",
    "control",
    "resampling",
    "office-home-recipes",
    "domainnet-recipes",
    "pacs-auto",
    "office-home-auto",
}
"""Grids of what the paper does not have."""

SMALL = """
title = "small"
benchmark = "mini"
tasks = ["syn-uci"]
methods = ["coal"]
seeds = 1
train = { pretrain = 20, rounds = 1, round = 10, batch = 16 }

[variant.full]

[variant.without-entropy]
params = { minimax = false }
"""


def test_the_paper_s_six_grids_and_those_beyond_it_are_there() -> None:
    names = {"ablation", "degrees", "digits", "domainnet", "office-home", "pacs", "sampler"}
    assert {path.stem for path in GRIDS} == names | BEYOND


@pytest.mark.parametrize("path", GRIDS, ids=lambda p: p.stem)
def test_a_grid_that_comes_with_askew_can_be_read_and_every_run_in_it_is_another(
    path: Path,
) -> None:
    requests = [request for _, request in read_grid(path).requests(BASE)]
    described = [
        (w.task, w.method, w.seed, w.shift, w.recipe, *w.params.items(), *w.training.items())
        for w in requests
    ]
    assert len(set(described)) == len(described) > 0


def test_the_grids_cover_the_paper_s_experiments() -> None:
    grids = {path.stem: read_grid(path).requests(BASE) for path in GRIDS}
    counts = {name: len(requests) for name, requests in grids.items() if name not in BEYOND}
    n = len(PAPER)
    assert counts == {
        "digits": n * 4 * 3,
        "office-home": n * 6 * 3,
        "domainnet": n * 12 * 3,
        "sampler": 2 * 2 * 5 * 3,
        "ablation": 4 * 3 * 3,
        "degrees": 6 * 5 * 3,
        "pacs": 2 * 4 * 4 * 3,
    }
    assert {w.shift for _, w in grids["domainnet"]} == {"natural"}
    assert {w.shift for _, w in grids["digits"]} == {"rs-ut"}
    assert {w.shift for _, w in grids["degrees"]} == {
        f"degree:{d}" for d in ("0", "0.2", "0.4", "0.6", "0.8", "1")
    }
    off = {name: tuple(w.params) for name, w in grids["ablation"]}
    assert off == {
        "full": (),
        "without-self-training": ("self_training",),
        "without-entropy": ("minimax",),
        "neither": ("self_training", "minimax"),
    }


def test_what_a_user_asks_for_comes_before_the_grid() -> None:
    grid = read_grid(next(p for p in GRIDS if p.stem == "sampler"))
    (request,) = [
        w
        for _, w in grid.narrowed(["usps-mnist"], ["dan"], 1).requests(
            RunRequest(task="", method="", shift="bs-bt")
        )
    ][:1]
    assert (request.task, request.method, request.shift) == ("digits/usps-mnist", "dan", "bs-bt")
    changed = grid.requests(RunRequest(task="", method="", training={"sampler": "natural"}))
    assert {w.training["sampler"] for _, w in changed} == {"natural"}
    with pytest.raises(UserError, match="There is no task of this grid 'syn-mnist'"):
        grid.narrowed(["syn-mnist"], [], 0)
    with pytest.raises(UserError, match="There is no method of this grid 'jan'"):
        grid.narrowed([], ["jan"], 0)


def test_a_first_seed_moves_the_seeds_and_nothing_else() -> None:
    grid = whole_benchmark("mini")
    later = replace(grid, first_seed=3, seeds=2).requests(BASE)
    assert {request.seed for _, request in later} == {3, 4}
    first = replace(grid, seeds=2).requests(BASE)
    assert [replace(request, seed=request.seed + 3) for _, request in first] == [
        request for _, request in later
    ]


def test_a_benchmark_by_its_name_is_a_grid_of_the_paper_s_methods_and_all_tasks() -> None:
    requests = whole_benchmark("mini").requests(BASE)
    assert len(requests) == 2 * len(PAPER) * 3
    assert {name for name, _ in requests} == {""}


def test_a_grid_is_run_named_and_only_what_is_missing_is_run_again(
    cli: Command, tmp_path: Path
) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    answer = cli("bench", "small.toml", "--jobs", 1)
    assert answer.code == 0, answer.err
    names = [
        line.strip().split("  ")[0]
        for line in answer.out.splitlines()
        if line.strip().startswith("coal")
    ]
    assert names == ["coal full", "coal without-entropy"]
    before = files(tmp_path / "runs")
    again = cli("bench", "small.toml", "--jobs", 1, "--format", "json")
    assert files(tmp_path / "runs") == before
    (table,) = json.loads(again.out)
    assert [line["variant"] for line in table["lines"]] == ["full", "without-entropy"]
    more = cli("bench", "small.toml", "--seeds", 2, "--jobs", 1, "--json")
    assert [row["n"] for row in json.loads(more.out)] == [2, 2]


def test_a_bench_by_name_takes_formats_too(cli: Command) -> None:
    ask = [
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source",
        "--seeds",
        1,
        "--jobs",
        1,
        *TINY,
    ]
    assert cli(*ask, "--format", "markdown").out.startswith(
        "## mini, rs-ut\n\n| method | syn-uci |\n"
    )


WRONG = {
    "not TOML": ("a = = 1", "The grid file my.toml is not TOML: "),
    "unknown entry": (
        'benchmark = "mini"\nmethod = ["coal"]',
        "The grid file my.toml has an unknown entry 'method'.",
    ),
    "neither": ("seeds = 2", "The grid file my.toml names neither a benchmark nor tasks."),
    "unknown benchmark": ('benchmark = "minni"', "There is no benchmark 'minni'."),
    "unknown task": ('tasks = ["mini/uci"]', "There is no task 'mini/uci'."),
    "unknown method": ('benchmark = "mini"\nmethods = ["cola"]', "There is no method 'cola'."),
    "no seeds": (
        'benchmark = "mini"\nseeds = 0',
        "The number of seeds must be between 1 and 10,000, found 0.",
    ),
    "text for a list": (
        'benchmark = "mini"\ntasks = "syn-uci"',
        "'tasks' in the grid file my.toml must be a list of",
    ),
    "numbers in a list": (
        'benchmark = "mini"\ntasks = [1]',
        "'tasks' in the grid file my.toml must be a list of",
    ),
    "variant without a table": (
        'benchmark = "mini"\nvariant = {a = 1}',
        "The grid file my.toml holds 'variant.a' = 1",
    ),
    "variant with seeds": (
        'benchmark = "mini"\n[variant.a]\nseeds = 1',
        "The grid file my.toml has an unknown entry 'variant.",
    ),
    "unknown setting": (
        'benchmark = "mini"\ntrain = {lrr = 1}',
        "There is no option of training 'lrr'.",
    ),
    "unknown shift": (
        'benchmark = "mini"\nshift = "sideways"',
        "There is no label shift 'sideways'.",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_grid_that_makes_no_sense_is_refused_and_nothing_is_written(
    cli: Command, tmp_path: Path, case: str
) -> None:
    text, sentence = WRONG[case]
    (tmp_path / "my.toml").write_text(text)
    answer = cli("bench", "my.toml")
    assert_refused(answer)
    assert answer.err.startswith(sentence)
    assert [p.name for p in tmp_path.iterdir()] == ["my.toml"]


def test_a_grid_that_is_not_there_is_refused(cli: Command) -> None:
    answer = cli("bench", "my.toml")
    assert_refused(answer)
    assert answer.err.startswith("The grid file my.toml does not exist.")


# --- methods that are code ---

EVIL = (
    "from pathlib import Path\nimport askew\nPath('ran').touch()\nclass Evil(askew.methods.Method):\n  "
    "  '''Evil.'''\n"
)


@pytest.fixture
def grid_with_code(tmp_path: Path) -> Path:
    (tmp_path / "evil.py").write_text(
        f"{EVIL}# {tmp_path}\n"
    )  # a file of the same content is run once
    (tmp_path / "grid.toml").write_text(SMALL.replace('["coal"]', '["coal", "evil.py:Evil"]'))
    return tmp_path / "grid.toml"


@pytest.mark.usefixtures("grid_with_code")
@pytest.mark.parametrize(
    "more", [(), ("--tasks", "nonsense"), ("--seeds", "0"), ("--methods", "evil.py:Other")]
)
def test_a_method_s_file_that_a_grid_names_is_not_run(
    cli: Command, tmp_path: Path, more: tuple[str, ...]
) -> None:
    assert_refused(cli("bench", "grid.toml", *more))
    assert {p.name for p in tmp_path.iterdir()} == {"grid.toml", "evil.py"}


@pytest.mark.usefixtures("grid_with_code")
def test_the_refusal_of_a_grid_with_code_tells_how_to_allow_it(cli: Command) -> None:
    answer = cli("bench", "grid.toml")
    assert answer.err.startswith(
        "The grid small names the method evil.py:Evil, which is code of somebody's file."
    )
    assert "--allow-code" in answer.err


@pytest.mark.usefixtures("grid_with_code")
@pytest.mark.parametrize("how", [("--methods", "evil.py:Evil"), ("--allow-code",)])
def test_a_method_s_file_that_was_typed_or_allowed_is_run(
    cli: Command, tmp_path: Path, how: tuple[str, ...]
) -> None:
    answer = cli("bench", "grid.toml", *how)
    assert answer.err.startswith("The method Evil: losses of phase 0 raised TypeError"), (
        answer
    )  # it has none
    assert (tmp_path / "ran").exists()


@pytest.mark.usefixtures("grid_with_code")
def test_a_grid_without_its_code_needs_no_leave(cli: Command, tmp_path: Path) -> None:
    answer = cli("bench", "grid.toml", "--methods", "coal", "--device", "gpu")
    assert answer.err.startswith("There is no device 'gpu'.")
    assert not (tmp_path / "ran").exists()


def test_reading_a_grid_runs_no_code(
    grid_with_code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = read_grid(grid_with_code)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UserError, match="which is code"):
        grid.check_code(())
    grid.check_code(["evil.py:Evil"])
