from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import askew
from askew.core.errors import UserError
from askew.methods import COAL

TRAINING = {"pretrain": 20, "rounds": 2, "round": 10, "batch": 16}


def test_the_lines_in_the_package_s_docstring_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import askew.runs.api

    _, _, code = (askew.__doc__ or "").partition("\n\n")
    # the same call, made short
    monkeypatch.setattr(askew.runs.api, "run", partial(askew.runs.api.run, training=TRAINING))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert 0 <= float(capsys.readouterr().out) <= 100
    assert (tmp_path / "runs").is_dir()


def test_a_result_names_its_folder_and_is_read_when_it_is_asked_for_again(tmp_path: Path) -> None:
    call: Any = partial(
        askew.run, "mini/syn-uci", method="source", training=TRAINING, out=tmp_path / "runs"
    )
    first = call(seed=0)
    assert first.folder == tmp_path / "runs" / first.key
    assert set(first.scores) == {"whole", "paper"}
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert call(seed=0) == first
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert call(seed=1).key != first.key


def test_hyper_parameters_and_training_reach_the_run(tmp_path: Path) -> None:
    request = askew.runs.RunRequest(
        task="mini/syn-uci", method="coal", params={"alpha": 0.3}, training=TRAINING
    )
    planned = askew.runs.prepare(request)
    run, task = planned.run, planned.task
    assert run.method == COAL(alpha=0.3)
    assert [(s.rounds, s.round_steps) for s in run.plan] == [(1, 20), (2, 10)]
    assert task.origin == run.origin


def test_a_wrong_call_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no option of training 'rate'"):
        askew.run("mini/syn-uci", training={"rate": 1}, out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


class Silent(askew.methods.Method):
    """Breaks the contract: it has no losses."""

    id = "silent"


def test_run_and_bench_check_the_contract_of_a_method_first(tmp_path: Path) -> None:
    call: Any = {"training": TRAINING, "out": tmp_path / "runs"}
    with pytest.raises(UserError, match="The method Silent: losses of phase 0 raised TypeError"):
        askew.run("mini/syn-uci", Silent, **call)
    with pytest.raises(UserError, match="The method Silent: losses of phase 0 raised TypeError"):
        askew.bench("mini", [Silent], ["syn-uci"], seeds=1, **call)
    assert list(tmp_path.iterdir()) == []


def test_a_request_is_planned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from askew.runs import config
    from askew.runs.launch import jobs

    asked: list[askew.runs.RunRequest] = []

    def prepare(request: askew.runs.RunRequest) -> askew.runs.Planned:
        asked.append(request)
        return config.prepare(request)

    monkeypatch.setattr(jobs, "prepare", prepare)
    askew.run("mini/syn-uci", "source", training=TRAINING, out=tmp_path)
    assert len(asked) == 1
