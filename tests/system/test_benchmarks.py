"""The programs in benchmarks/ can be started, and the one that chooses settings does what results were made with."""

from __future__ import annotations

import importlib
import itertools
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(p.name for p in FOLDER.glob("*.py") if "__main__" in p.read_text())


def start(monkeypatch: pytest.MonkeyPatch, program: str, *words: str) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [program, *words])
    runpy.run_path(str(FOLDER / program), run_name="__main__")


def test_there_are_programs_to_start() -> None:
    assert {"develop.py", "judge.py", "speed.py"} <= set(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_starts_and_explains_itself(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if program == "stacked_conv.py":
        pytest.importorskip("triton")
    with pytest.raises(SystemExit) as end:
        start(monkeypatch, program, "--help")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_variants_are_run_on_their_tasks_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "train = { pretrain = 5, rounds = 2, round = 3, batch = 8 }"
    (tmp_path / "my.toml").write_text(
        f'[plain]\nmethod = "source"\n{short}\n[strong]\nhyper = {{ alpha = 0.3 }}\n{short}\n'
        f'[elsewhere]\ntasks = ["uci-syn"]\n{short}\n'
    )
    words = [str(tmp_path / "my.toml"), "--seeds", "1", "--out", str(tmp_path / "runs"), "--tasks", "mini/syn-uci"]
    start(monkeypatch, "develop.py", *words, "--device", "cpu")
    said = capsys.readouterr().out
    assert "2 pre-trainings and 2 runs are missing" in said, said
    assert [line.split()[:2] for line in said.splitlines()[-2:]] == [
        ["mini/syn-uci", "plain"],
        ["mini/syn-uci", "strong"],
    ]
    start(monkeypatch, "develop.py", *words, "--device", "cpu")
    assert "0 pre-trainings and 0 runs are missing" in capsys.readouterr().out


def test_settings_for_embeddings_are_tried_on_pairs_that_nothing_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    own = importlib.import_module("own")
    assert len(own.PAIRS) == 8
    assert not own.REPORTED & set(own.PAIRS)
    monkeypatch.setattr(own, "PAIRS", [("cartoon", "sketch")])
    rng = np.random.default_rng(0)
    for domain, kind in itertools.product(own.DOMAINS, ("cat", "dog")):
        (tmp_path / "pacs" / domain / kind).mkdir(parents=True)
        for i in range(6):
            picture = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            picture.save(tmp_path / "pacs" / domain / kind / f"{i}.png")
    own.embed(tmp_path / "pacs", tmp_path / "rows", "resnet18", "none")
    found = np.load(tmp_path / "rows" / "photo.npz")
    assert found["x"].shape == (12, 512)
    assert sorted(set(found["y"].tolist())) == ["cat", "dog"]
    short = "train = { pretrain = 2, rounds = 1, round = 2, batch = 2 }"
    (tmp_path / "my.toml").write_text(f"[base]\n{short}\n[strong]\nhyper = {{ coal = {{ alpha = 0.3 }} }}\n{short}\n")
    results = tmp_path / "results.jsonl"
    for _ in range(2):  # the second time there is nothing to do
        own.run_variants(tmp_path / "my.toml", tmp_path / "rows", results, auto=True)
        told = [json.loads(line) for line in results.read_text().splitlines()]
        assert len(told) == 12
    chosen = [row["mean"] for row in told if row["method"] == "auto"]
    assert set(chosen) <= {row["mean"] for row in told if row["method"] != "auto"}
    own.print_table(results)
    rows = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[-2:]]
    assert rows == ["| base", "| strong"]
