"""What may be asked for: seeds, draws, numbers of steps, and the order in which settings override
each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command

import askew
from askew.core.errors import UserError
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import make_unlabeled_task
from askew.runs.config import MOST_SEEDS, RunRequest, plan_run, prepare
from askew.runs.grid import whole_benchmark
from askew.runs.tune import Trial, requests_of, trials
from askew.training.run import key_before


@pytest.mark.parametrize("name", ["seed", "draw"])
@pytest.mark.parametrize(
    "value", [float("nan"), 1.5, "x", "1", None, True, -1, 2**63, np.float64(1), [0]]
)
def test_a_seed_or_draw_that_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(
        UserError, match=f"^The {name} must be (a whole number|0 or more|less than)"
    ):
        RunRequest(task="mini/syn-uci", method="coal", **{name: value})


@pytest.mark.parametrize("seed", [float("nan"), "x", None, -1])
def test_the_python_call_refuses_such_a_seed_and_writes_nothing(tmp_path: Path, seed: Any) -> None:
    with pytest.raises(UserError, match="The seed must be"):
        askew.run("mini/syn-uci", "source", seed=seed, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_seed_of_numpy_names_the_run_that_python_s_names() -> None:
    request = RunRequest(task="mini/syn-uci", method="source", seed=np.int64(3), draw=np.uint8(1))
    assert (type(request.seed), type(request.draw)) == (int, int)
    assert (
        prepare(request).run.key
        == prepare(RunRequest(task="mini/syn-uci", method="source", seed=3, draw=1)).run.key
    )


def test_a_request_is_named_by_task_method_and_seed() -> None:
    assert (
        RunRequest(task="mini/syn-uci", method="coal", seed=2).label == "mini/syn-uci coal seed 2"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("bench", "mini", "--seeds", 10**9),
            "The number of seeds must be between 1 and 10,000, found 1,000,000,000.",
        ),
        (
            ("tune", "mini/syn-uci", "--draw", 1, "--seeds", 10**9),
            "The number of seeds must be between 1 and 10,000, found 1,000,000,000.",
        ),
        (
            ("tune", "mini/syn-uci", "--draw", 1, "--trials", 10**9),
            "The number of trials must be at most 10,000, found 1,000,000,000.",
        ),
        (
            ("run", "mini/syn-uci", "-t", "rounds=1e21"),
            "The option 'rounds' of training must be a whole number",
        ),
        (
            ("run", "mini/syn-uci", "-t", f"rounds={10**21}"),
            "The option 'rounds' of training must be between 1 and 1,000,000,000",
        ),
        (
            ("run", "mini/syn-uci", "-t", "rounds=1000000", "-t", "round=1000000"),
            "1,000,000 rounds of 1,000,000 steps are more than 1,000,000,000 steps.",
        ),
        (
            ("run", "mini/syn-uci", "-t", "batch=1000000000"),
            "The option 'batch' of training must be between 2 and",
        ),
    ],
)
def test_numbers_without_sense_are_refused_at_once_and_leave_nothing(
    cli: Command, tmp_path: Path, words: tuple[object, ...], sentence: str
) -> None:
    answer = cli(*words)
    assert answer.code == 2
    assert answer.err.startswith(sentence)
    assert "hint: " in answer.err
    assert not list(tmp_path.iterdir())


def test_an_upper_limit_comes_with_its_reason() -> None:
    with pytest.raises(UserError) as caught:
        prepare(RunRequest(task="mini/syn-uci", method="source", training={"rounds": 1e21}))
    assert caught.value.hint.endswith("A fast GPU takes two weeks for as many steps.")
    with pytest.raises(UserError) as caught:
        prepare(RunRequest(task="mini/syn-uci", method="source", training={"rounds": 0}))
    assert "two weeks" not in caught.value.hint


def test_the_most_seeds_are_still_taken() -> None:
    assert whole_benchmark("mini").narrowed([], [], MOST_SEEDS).seeds == MOST_SEEDS
    trial = Trial("source", "settings", {})
    assert (
        len(requests_of(trial, ["mini/syn-uci"], MOST_SEEDS, RunRequest(task="", method="")))
        == MOST_SEEDS
    )
    with pytest.raises(UserError, match="The number of trials"):
        trials("coal", {}, 10**9)


SETTINGS = """
[train]
lr = 1.0
batch = 10
rounds = 1

[method.coal]
alpha = 0.1
k0 = 0.2
train = {lr = 2.0, batch = 20}

[task.syn-uci]
train = {lr = 3.0}

[task.syn-uci.method.coal]
alpha = 0.3
train = {rounds = 4}
"""


def test_a_task_s_settings_override_those_of_all_and_a_method_s_those_of_all_methods(
    tmp_path: Path,
) -> None:
    (tmp_path / "my.toml").write_text(SETTINGS)
    run = prepare(
        RunRequest(
            task="mini/syn-uci", method="coal", settings=tmp_path / "my.toml", training={"round": 7}
        )
    ).run
    stage = run.plan[-1]
    assert (run.batch, stage.optim.lr, stage.rounds, stage.round_steps) == (20, 3.0, 4, 7)
    options = run.describe()["plan"][-1]["method"]["options"]
    assert (options["alpha"], options["k0"]) == (0.3, 0.2)
    other = prepare(
        RunRequest(task="mini/uci-syn", method="coal", settings=tmp_path / "my.toml")
    ).run
    assert (other.batch, other.plan[-1].optim.lr, other.plan[-1].rounds) == (20, 2.0, 1)


@pytest.mark.parametrize("method", ["lda", "prototypes"])
def test_a_closed_form_takes_one_step_after_the_pre_training(method: str) -> None:
    runs = [
        prepare(
            RunRequest(task="mini/syn-uci", method=method, training={"pretrain": 20, "round": n})
        ).run
        for n in (2, 7)
    ]
    assert [stage.steps for stage in runs[0].plan] == [20, 1]
    assert runs[0].key == runs[1].key


@pytest.mark.parametrize("training", [{}, {"pretrain": 20}], ids=["as set", "asked for"])
@pytest.mark.parametrize("method", ["lda", "prototypes"])
def test_what_is_computed_from_rows_as_they_are_has_no_pre_training(
    method: str, training: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    source = Labeled(rng.normal(size=(40, 4)).astype(np.float32), np.arange(40) % 2)
    task = make_unlabeled_task("own/embeddings", source, Unlabeled(source.x), ("a", "b"))

    def steps(name: str, **more: Any) -> list[int]:
        request = RunRequest(
            task="own/embeddings", method=name, shift="natural", training=training | more
        )
        return [stage.steps for stage in plan_run(request, task, "mlp").plan]

    assert steps(method) == [1]
    assert len(steps(method, net="mlp")) == len(steps("source")) == 2, (
        "an mlp has something to learn first"
    )


def test_a_run_s_description_tells_which_run_it_continues() -> None:
    for method in (
        "coal",
        "teacher",
    ):  # the teacher draws the target evenly, which its pre-training does not
        run = prepare(RunRequest(task="mini/syn-uci", method=method)).run
        assert run.before is not None
        assert key_before(json.loads(json.dumps(run.describe()))) == run.before.key
        assert key_before(run.before.describe()) is None
