"""A stage that restarts: fresh weights, a first refresh by the network before it, and a plan that
has one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from test_execute import finish, results
from test_trainer import Kept, assert_same, copied, kept
from torch import Tensor, nn

from askew.data.task import Task, TrainingData
from askew.methods import BBSE, SourceOnly
from askew.methods.base import Method, Outputs, Shape
from askew.nets.network import build
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution, execute
from askew.runs.store import RunFolder
from askew.training import loop
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint, Snapshot
from askew.training.trainer import Resume, fit

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class Curious(SourceOnly):
    """Keeps what each refresh saw of the target, and has a part of its own that nobody trains."""

    id = "curious"
    restarts = True

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"own": nn.Linear(shape.width, 1)}

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        return {"seen": outputs.target, "round": torch.tensor(round)}


def restarting(run: Run) -> Run:
    """The same run, with a restart in its last stage."""
    return dataclasses.replace(
        run, plan=(*run.plan[:-1], dataclasses.replace(run.plan[-1], restart=True))
    )


@pytest.fixture
def start(training_data: TrainingData, make_run: Any) -> Checkpoint:
    """A network that learnt from the source before, batch statistics included."""
    *_, last = fit(make_run(pretrain=0, rounds=5), training_data, CPU)
    return copied(last.weights())


def weights(snapshots: Iterator[Snapshot]) -> Checkpoint:
    *_, last = snapshots
    return copied(last.weights())


# --- fresh weights ---


def test_it_begins_from_fresh_weights(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    run = restarting(make_run(Curious(), lr=0.0, features_lr=0.0))
    after = weights(fit(run, training_data, CPU, start=start))
    parts, _ = build(run.net, (8,), 3, run.seed)
    fresh = {
        f"{part}.{n}": v.detach()
        for part, module in parts.items()
        for n, v in module.named_parameters()
    }
    assert_same({n: after[n] for n in fresh}, fresh)
    assert not any(torch.equal(after[n], start[n]) for n in fresh)


def test_nothing_of_the_network_before_lasts(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    run = restarting(make_run(Curious()))
    # neither in a weight nor in a batch statistic
    assert_same(
        weights(fit(run, training_data, CPU, start=start)), weights(fit(run, training_data, CPU))
    )


def test_without_a_restart_the_network_before_lasts(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    run = make_run(Curious())
    ours, theirs = (
        weights(fit(run, training_data, CPU, start=start)),
        weights(fit(run, training_data, CPU)),
    )
    assert not any(
        torch.equal(ours[n], theirs[n])
        for n in ours
        if n.endswith("weight") and not n.startswith("own.")
    )


# --- refreshes ---


def test_the_first_refresh_sees_the_network_before_and_later_ones_the_trained_one(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    before = make_run(pretrain=0, rounds=5)
    *_, last = fit(before, training_data, CPU)
    seen_before = last.outputs.target
    run = restarting(make_run(Curious()))
    given: list[Tensor] = []
    own: list[Tensor] = []
    for snapshot in fit(run, training_data, CPU, start=start):
        state = snapshot.checkpoint()
        assert state["state.round"] == len(given)
        given.append(state["state.seen"].clone())
        own.append(snapshot.outputs.target)
    assert torch.equal(given[0], seen_before)
    assert not torch.allclose(given[0], own[0], atol=0.1)
    assert torch.equal(given[1], own[0])
    assert torch.equal(given[2], own[1])


def test_a_balanced_target_goes_by_the_network_before_at_first(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    *_, last = fit(make_run(pretrain=0, rounds=5), training_data, CPU)
    run = restarting(make_run(Curious(), target_sampler="balanced", rounds=1))
    (only,) = fit(run, training_data, CPU, start=start)
    assert torch.equal(only.checkpoint()["pseudo"], last.outputs.target.argmax(dim=1))


def test_bbse_keeps_what_the_network_before_said(
    training_data: TrainingData, make_run: Any, start: Checkpoint
) -> None:
    run = restarting(make_run(BBSE()))
    ratios = [s.tensors["state.ratio"] for s in kept(fit(run, training_data, CPU, start=start))]
    assert len(ratios) == 3
    assert all(torch.equal(ratio, ratios[0]) for ratio in ratios)


# --- interrupted and resumed ---


@pytest.mark.parametrize("target_sampler", ["natural", "balanced"])
@pytest.mark.parametrize("method", [BBSE(), Curious()], ids=lambda m: m.id)
def test_going_on_from_any_snapshot_gives_the_same_bits(
    training_data: TrainingData,
    make_run: Any,
    start: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    target_sampler: str,
) -> None:
    monkeypatch.setattr(loop, "CPU_CHUNK", 4)  # so that snapshots also fall inside a round
    run = restarting(make_run(method, rounds=2, target_sampler=target_sampler))

    def rest(at: Kept | None) -> list[Kept]:
        resume = at and Resume(at.step, copied(at.tensors), list(at.losses))
        return kept(fit(run, training_data, CPU, start=start, resume=resume))

    whole = rest(None)
    assert [s.step for s in whole] == [4, 8, 10, 14, 18, 20]
    for i, at in enumerate(whole[:-1]):
        for ours, theirs in zip(rest(at), whole[i + 1 :], strict=True):
            assert ours.losses == theirs.losses
            assert_same(ours.tensors, theirs.tensors)


def test_a_run_stopped_anywhere_ends_as_an_undisturbed_one(
    task: Task, make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CPU_CHUNK", 4)
    source = make_run(SourceOnly(), rounds=2)
    run = dataclasses.replace(
        source,
        plan=(
            *source.plan,
            Stage(
                method=BBSE(), rounds=2, round_steps=10, optim=source.plan[-1].optim, restart=True
            ),
        ),
    )
    finish(run, task, tmp_path / "calm")
    lives: list[int] = []
    while not RunFolder(tmp_path / "rough" / run.key).done:
        progress = execute(
            run, task, Execution(root=tmp_path / "rough", device=CPU, checkpoint_every=0.0)
        )
        lives += [p.step for p in islice(progress, 3) if p.key == run.key][:1]
        progress.close()  # type: ignore[attr-defined]
    assert lives == [0, 0, 8, 14, 18]  # where each life of the last stage began
    assert results(tmp_path / "rough") == results(tmp_path / "calm")


# --- the plan ---


def planned(method: str, **training: Any) -> Run:
    return prepare(RunRequest(task="mini/syn-uci", method=method, training=training)).run


def test_bbse_is_planned_as_pre_training_then_source_only_then_a_restart() -> None:
    run = planned("bbse")
    assert [stage.method.id for stage in run.plan] == ["source", "source", "bbse"]
    assert [stage.restart for stage in run.plan] == [False, False, True]
    assert [(stage.rounds, stage.round_steps) for stage in run.plan[1:]] == [
        (10, run.plan[2].round_steps)
    ] * 2
    assert run.plan[1].optim == run.plan[2].optim


def test_bbse_goes_by_the_very_run_of_source_only() -> None:
    run = planned("bbse")
    assert run.before is not None
    assert run.before.key == planned("source").key
    # type: ignore[union-attr]
    assert planned("bbse", head="cosine").before.key == planned("source", head="cosine").key
    assert planned("bbse", rounds=3).before.key != planned("source").key  # type: ignore[union-attr]


def test_only_methods_that_restart_are_planned_with_one() -> None:
    run = planned("coal")
    assert [(stage.method.id, stage.restart) for stage in run.plan] == [
        ("source", False),
        ("coal", False),
    ]


def test_how_the_target_is_drawn_does_not_split_what_comes_before() -> None:
    for method in ("bbse", "coal"):
        natural, balanced = (
            planned(method, target_sampler=sampler) for sampler in ("natural", "balanced")
        )
        assert natural.key != balanced.key
        assert natural.before is not None
        assert balanced.before is not None
        assert natural.before.key == balanced.before.key
        assert balanced.before.target_sampler == "natural"
