"""An adaptation that is stopped anywhere goes on when the same command is started again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Command

import askew
from askew.runs.root import MARKER

pytestmark = pytest.mark.usefixtures("small_maps")

GOLDEN = Path(__file__).parents[1] / "golden"
ADAPT = (
    "adapt",
    GOLDEN / "source.npz",
    GOLDEN / "target.npz",
    "-o",
    "out",
    "--backbone",
    "bare",
    "--method",
    "coal",
)
ADAPT += ("-t", "pretrain=20", "-t", "rounds=2", "-t", "round=10", "-t", "batch=12")


def test_one_stopped_between_the_model_s_weights_and_its_card(cli: Command, tmp_path: Path) -> None:
    out = shutil.copytree(GOLDEN / "adaptation", tmp_path / "out")
    (out / "model" / "model.json").unlink()
    answer = cli(*ADAPT, "--overwrite")  # its data have moved
    assert answer.code == 0, answer.err
    assert askew.load(out).classes == ("ash", "birch", "cedar")


@pytest.mark.parametrize("command", [ADAPT, ("bench", "mini", "--out", "out/runs")])
def test_one_stopped_while_it_marked_its_folder(
    cli: Command, tmp_path: Path, command: tuple[object, ...]
) -> None:
    (tmp_path / "out" / "runs").mkdir(parents=True)
    (tmp_path / "out" / "runs" / f".{MARKER}.1").write_text("{")
    if command is ADAPT:
        answer = cli(*command)
        assert answer.code == 0, answer.err
        assert (tmp_path / "out" / "summary.json").exists()
    else:
        small = ("--tasks", "syn-uci", "--methods", "source", "--seeds", "1", "--jobs", "1")
        answer = cli(*command, *small, "-t", "pretrain=0", "-t", "rounds=1", "-t", "round=2")
        assert answer.code == 0, answer.err
    assert (tmp_path / "out" / "runs" / MARKER).exists()
