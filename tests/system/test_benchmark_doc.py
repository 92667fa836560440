"""docs/benchmark.md: its commands run, or, where they need real data, fail only because of that."""

from __future__ import annotations

import inspect
import re
import shutil
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from conftest import TINY, Command
from test_docs import ROOT, blocks, commands

from askew.data.benchmarks import BENCHMARKS
from askew.reports.findings import run_findings
from askew.runs.grid import read_grid

PAGE = ROOT / "docs" / "benchmark.md"
SMALL = [words for words, _ in commands(PAGE) if any(word.startswith("mini") for word in words)]
LARGE = [words for words, _ in commands(PAGE) if words not in SMALL]


def test_the_example_on_mini_runs_from_top_to_bottom(cli: Command, tmp_path: Path) -> None:
    assert [words[1] for words in SMALL] == ["bench", "table", "figure", "figure", "report"]
    for _, command, *rest in SMALL:
        short = ["--jobs", "1", *TINY] if command == "bench" else []
        answer = cli(command, *rest, *short)
        assert answer.code == 0, answer.err
    assert {p.name for p in tmp_path.iterdir()} == {
        "mini-runs",
        "mix.svg",
        "classes.svg",
        "report.html",
    }


@pytest.mark.parametrize("words", LARGE, ids=" ".join)
def test_a_command_that_needs_data_or_runs_lacks_nothing_else(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    benchmark = Path(words[2]).stem
    if (
        benchmark in BENCHMARKS
        and not (resources.files("askew.runs.settings") / f"{benchmark}.toml").is_file()
    ):
        pytest.skip(f"askew has no settings of {benchmark} yet")
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    shutil.copytree(ROOT / "benchmarks" / "grids", tmp_path / "benchmarks" / "grids")
    answer = cli(*words[1:])
    assert answer.code == 2
    lacking = (
        "This task needs real images, and no data folder was given.",
        "runs is not a folder of askew runs.",
    )
    assert answer.err.startswith(lacking), answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["benchmarks"]


def test_every_grid_is_named(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for path in (ROOT / "benchmarks" / "grids").rglob("*.toml"):
        assert str(path.relative_to(ROOT)) in text
        assert path.parent.name == "development" or f"| `{path.stem}` |" in text


def test_the_grid_that_it_shows_is_one(tmp_path: Path) -> None:
    (shown,) = blocks(PAGE, "toml")
    tomllib.loads(shown)
    (tmp_path / "own.toml").write_text(shown)
    assert [variant.name for variant in read_grid(tmp_path / "own.toml").variants] == [
        "full",
        "half",
        "fewer-rounds",
    ]


def test_every_check_is_listed() -> None:
    coded = set(re.findall(r'"(A\d{3})"', inspect.getsource(run_findings)))
    assert set(re.findall(r"^\| (A\d{3}) \|", PAGE.read_text(), flags=re.M)) == coded
