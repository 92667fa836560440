"""A result is replaced as a whole, and only by another one that was asked for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptations import LENGTH, SHORT, Made, domains, drawn, make, request_for
from commands import assert_refused
from conftest import Command

import askew
from askew import UserError
from askew.adaptation import switch
from askew.adaptation.artifacts import write_artifacts

XS, YS = drawn(60, [0.5, 0.3, 0.2], 0.0, 0)
XT, _ = drawn(40, [0.2, 0.3, 0.5], 0.3, 1)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Command) -> Path:
    """A folder with two domains and an adaptation of them by one method."""
    monkeypatch.chdir(tmp_path)
    domains(tmp_path)
    assert cli("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mcc", *SHORT).code == 0
    return tmp_path


def test_another_request_does_not_replace_a_result(own: Path, cli: Command) -> None:
    np.savez(own / "other.npz", x=XT)
    before = {p: p.read_bytes() for p in (own / "out").glob("*.*")}
    same = ("adapt", "source.npz", "target.npz", "-o", "out", "-m", "mcc", *SHORT)
    for words, what in (
        (("adapt", "source.npz", "other.npz", "-o", "out", "-m", "mcc", *SHORT), "target"),
        ((*same, "--quick"), "--quick"),
        ((*same, "--seed", "1"), "seed"),
        ((*same[:5], "-m", "dann", *SHORT), "methods"),
        ((*same, "-t", "rounds=3"), "training settings"),
    ):
        answer = cli(*words)
        assert_refused(answer)
        assert what in answer.err
        assert "--overwrite" in answer.err
    assert {p: p.read_bytes() for p in (own / "out").glob("*.*")} == before
    assert cli(*same).code == 0, "the same request continues"
    assert cli("choose", "out", "source").code == 0
    assert cli(*same).code == 0, "a switch is no other request"


def test_overwrite_replaces_a_result(own: Path, cli: Command) -> None:
    np.savez(own / "other.npz", x=XT)
    words = ("adapt", "source.npz", "other.npz", "-o", "out", "-m", "mcc", *SHORT)
    answer = cli(*words, "--overwrite")
    assert answer.code == 0, answer.err
    assert json.loads((own / "out" / "summary.json").read_text())["images"]["target"] == len(XT)


def test_data_in_memory_do_not_replace_those_of_another_array(tmp_path: Path) -> None:
    how: dict[str, Any] = {"methods": "mcc", "training": LENGTH}
    askew.adapt((XS, YS), XT, tmp_path / "out", **how)
    askew.adapt((XS.copy(), YS), XT.copy(), tmp_path / "out", **how)
    with pytest.raises(UserError, match="another target") as error:
        askew.adapt((XS, YS), XT[:30], tmp_path / "out", **how)
    assert "overwrite=True" in (error.value.hint or "")
    askew.adapt((XS, YS), XT[:30], tmp_path / "out", overwrite=True, **how)


def test_a_model_adapted_again_does_not_replace_an_adaptation(own: Path, cli: Command) -> None:
    np.savez(own / "next.npz", x=XT)
    words = ("adapt", "--model", "out", "next.npz", "-o", "out", "-t", "rounds=1", "-t", "round=2")
    assert_refused(cli(*words))
    again = [word if word != "out" or i == 2 else "again" for i, word in enumerate(words)]
    assert cli(*again).code == 0
    assert cli(*again).code == 0


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("moves", [0, 1, 2, 3, 4, 5])
def test_a_kill_while_a_result_is_replaced_leaves_no_readable_mixture(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    out = shutil.copytree(made.out, tmp_path / "out")
    xt, _ = drawn(50, [0.3, 0.4, 0.3], 0.1, 7)
    np.savez(tmp_path / "target.npz", x=xt)
    other = make(
        request_for(Path(made.request.source), tmp_path / "target.npz", methods=("mcc",)),
        tmp_path / "other",
    )
    shutil.copytree(other.out / "runs", out / "runs", dirs_exist_ok=True)
    left, replace = [moves], Path.replace

    def counted(self: Path, place: Path) -> Path:
        if ".result." in str(self.parent) and ".result." not in str(place.parent):
            if not left[0]:
                raise Killed
            left[0] -= 1
        return replace(self, place)

    monkeypatch.setattr(Path, "replace", counted)
    with pytest.raises(Killed):
        write_artifacts(other.found, out, map_features=lambda rows: [(0.0, 0.0)] * len(rows))
    monkeypatch.undo()
    images = json.loads((out / "summary.json").read_text())["images"]["target"]
    assert images == 102, "the summary is replaced last"
    if moves < 2:  # weights of the new model lie beside the earlier model, whole
        assert len(askew.load(out).predict(xt)) == 50
        assert len(made.found.predicted) == len(switch_names(out))
        return
    labels = {str(row): "ant" for row in range(5)}
    for read in (lambda: askew.load(out), lambda: askew.load(out / "model")):
        with pytest.raises(UserError, match="stopped while it replaced"):
            read()
    with pytest.raises(UserError, match="stopped while it replaced"):
        askew.audit(out, labels)
    write_artifacts(other.found, out, map_features=lambda rows: [(0.0, 0.0)] * len(rows))
    assert len(switch_names(out)) == 50
    assert askew.load(out).classes == ("ant", "bee", "cat")
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def switch_names(out: Path) -> list[str]:
    return list(json.loads((out / "target.json").read_text())["names"])


def test_a_summary_holds_a_hash_of_each_file(made: Made) -> None:
    files = json.loads((made.out / "summary.json").read_text())["files"]
    assert set(files) == {"model", "predictions.csv", "report.html", "target.json"}
    assert files["predictions.csv"] == switch.file_digest(made.out / "predictions.csv")
