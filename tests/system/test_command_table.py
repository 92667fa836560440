"""Every command and every option with values that make no sense: a sentence, a hint, and nothing
written."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_table import SENSELESS, UNUSED, command_line, is_path, options
from commands import assert_refused, files
from conftest import Command
from small_models import predictor

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = ("nan", "inf", "negative", "overflow")
"""Values that are ordinary names where a path or a name of one's own is asked for."""


class Accepted(BaseException):
    """The command would begin its work now."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What commands can be given, and no way to begin long work or to reach the network."""
    from askew.cli import progress

    def begin(*args: Any, **more: Any) -> Any:
        raise Accepted

    def begin_training(training: Any) -> Any:
        next(training)
        raise Accepted

    def unreachable(*args: Any, **more: Any) -> Any:
        raise urllib.error.URLError("there is no network")

    monkeypatch.setattr(progress, "show_training", begin)
    monkeypatch.setattr(progress, "watch", begin_training)
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    shutil.copytree(GOLDEN / "adaptation", tmp_path / "adapted")
    shutil.copytree(GOLDEN / "adaptation" / "runs", tmp_path / "runs")
    for name in ("source.npz", "target.npz"):
        shutil.copy(GOLDEN / name, tmp_path)
    predictor().save(tmp_path / "model")
    np.save(tmp_path / "rows.npy", np.zeros((3, 8), np.float32))
    return tmp_path


def lines() -> list[Any]:
    return [pytest.param(name, option, id=f"{name} {option}") for name, option in options()]


@pytest.mark.parametrize(("name", "option"), lines())
def test_a_senseless_value_is_refused_in_a_sentence_and_nothing_is_written(
    cli: Command, world: Path, name: str, option: str
) -> None:
    before = files(world)
    unused = option in UNUSED or f"{name} {option}" in UNUSED
    for kind, value in SENSELESS.items():
        if unused and kind not in ("empty", "control"):
            continue
        try:
            answer = cli(*command_line(name, option, value))
        except Accepted:
            assert is_path(name, option), (kind, "was taken for a value")
            assert kind in NAMES
            continue
        if kind in NAMES and is_path(name, option) and answer.code == 0:
            continue  # an ordinary name of a file
        assert_refused(answer, kind)
        assert files(world) == before or is_path(name, option), kind
