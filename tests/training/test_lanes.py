"""Lanes: many runs at once end as each would by itself."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command, rows

from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TestLabels, TrainingData
from askew.evaluation.prior_estimators import UnsurePriorWarning
from askew.methods import METHODS, make_method
from askew.nets.spec import NetSpec
from askew.runs.execute import Broken, Execution, execute, execute_lanes
from askew.runs.store import RunFolder, open_root
from askew.training.lane_groups import lane_shape, lanes_that_pay
from askew.training.lanes import fit_lanes
from askew.training.loop import Checkpoint, NotFinite, Snapshot
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.trainer import Resume, fit

CPU = torch.device("cpu")
TOLERANCE = 5e-3
"""Of a tensor's size, in float32, after 20 steps: a batched product sums in another order than one alone. Five times
that for momenta, which are gradients: a ReLU on the edge moves those more than it moves weights."""


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """An untrained network can tell no class mix, which BBSE says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsurePriorWarning)
        yield


def study_of(seed: int, targets: int = 60) -> TrainingData:
    part = [rows(n, shift, seed + i) for i, (n, shift) in enumerate(((90, 0.0), (30, 0.0), (targets, 0.5), (30, 0.5)))]
    return TrainingData(part[0], part[1], part[2].unlabeled(), part[3].unlabeled(), ("a", "b", "c"))


HERE, THERE = study_of(0), study_of(10, targets=40)


def run_of(
    training_data: TrainingData, seed: int, id: str = "coal", *, target_sampler: str = "natural", **hyper: Any
) -> Run:
    method = make_method(id, hyper)
    stage = Stage(method, 2, 10, Optim(lr=0.01, features_lr=0.01), restart=method.restarts)
    net = NetSpec(name="mlp", head=method.head)
    return Run(
        task="toy", shift="natural", draw=0, origin=training_data.origin, net=net, plan=(stage,), batch=12,
        sampler="balanced",
        target_sampler=target_sampler, precision="float32", seed=seed, threads=1,  # type: ignore[arg-type]
    )  # fmt: skip


def together(runs: list[Run], training_datas: list[TrainingData], **more: Any) -> list[list[Snapshot | NotFinite]]:
    return list(fit_lanes(runs, training_datas, CPU, starts=[None] * len(runs), **more))


def assert_close(one: Checkpoint, other: Checkpoint) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        apart, size = (other[name].double() - value.double()).norm(), value.double().norm()
        tolerance = TOLERANCE * (5 if name.startswith("optim.") else 1)
        assert apart <= 1e-6 + tolerance * size, f"{name}: {apart:.2g} apart, of a size of {size:.2g}"


@pytest.mark.parametrize(
    ("id", "target_sampler"), [*((id, "natural") for id in METHODS), ("dann", "balanced"), ("coal", "balanced")]
)
def test_each_lane_ends_as_the_run_by_itself(id: str, target_sampler: str) -> None:
    """Lanes of other seeds, and of another study with fewer target images."""
    cases = [(HERE, 0), (HERE, 1), (THERE, 1)]
    runs = [run_of(training_data, seed, id, target_sampler=target_sampler) for training_data, seed in cases]
    last = together(runs, [training_data for training_data, _ in cases])[-1]
    for run, (training_data, _), lane in zip(runs, cases, last, strict=True):
        *_, alone = fit(run, training_data, CPU)
        assert isinstance(lane, Snapshot)
        assert_close(alone.checkpoint(), lane.checkpoint())
        assert lane.losses == pytest.approx(alone.losses, rel=1e-3, abs=1e-5)
        torch.testing.assert_close(lane.outputs.target, alone.outputs.target, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(lane.training_prior, alone.training_prior)


def test_lanes_of_a_convolutional_network_end_as_each_by_itself() -> None:
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8) for n in (24, 6, 24, 6)]
    y = np.arange(24) % 3
    training_data = TrainingData(
        Labeled(x[0], y), Labeled(x[1], y[:6]), Unlabeled(x[2]), Unlabeled(x[3]), ("a", "b", "c")
    )
    runs = [dataclasses.replace(run_of(training_data, seed, "dann"), net=NetSpec(name="digits-28")) for seed in (0, 1)]
    for run, lane in zip(runs, together(runs, [training_data, training_data])[-1], strict=True):
        *_, alone = fit(run, training_data, CPU)
        assert isinstance(lane, Snapshot)
        assert_close(alone.weights(), lane.weights())


def test_lanes_may_differ_in_float_hyper_parameters() -> None:
    runs = [run_of(HERE, 0, alpha=alpha, k0=k0) for alpha, k0 in ((0.1, 0.05), (0.5, 0.4))]
    assert lane_shape(runs[0]) == lane_shape(runs[1])
    last = together(runs, [HERE, HERE])[-1]
    for run, lane in zip(runs, last, strict=True):
        *_, alone = fit(run, HERE, CPU)
        assert isinstance(lane, Snapshot)
        assert_close(alone.checkpoint(), lane.checkpoint())


def test_what_changes_a_step_is_part_of_the_shape() -> None:
    run = run_of(HERE, 0)
    assert lane_shape(run) == lane_shape(dataclasses.replace(run, seed=7, task="other", draw=3, origin="x", shift="y"))
    others = [
        run_of(HERE, 0, "dann"),
        run_of(HERE, 0, updates="two"),
        dataclasses.replace(run, batch=13),
        dataclasses.replace(run, net=NetSpec(name="bare", head="cosine")),
        dataclasses.replace(run, plan=(dataclasses.replace(run.plan[0], rounds=3),)),
        dataclasses.replace(run, plan=(dataclasses.replace(run.plan[0], optim=Optim(lr=0.5)),)),
    ]
    assert lane_shape(run) not in {lane_shape(other) for other in others}


def test_a_lane_that_breaks_harms_no_other() -> None:
    runs = [run_of(HERE, 0, "dan", weight=1.0), run_of(HERE, 1, "dan", weight=1e38), run_of(HERE, 2, "dan", weight=1.0)]
    first, broken, third = together(runs, [HERE] * 3)[-1]
    assert isinstance(broken, NotFinite)
    for run, lane in ((runs[0], first), (runs[2], third)):
        *_, alone = fit(run, HERE, CPU)
        assert isinstance(lane, Snapshot)
        assert_close(alone.weights(), lane.weights())


def copied(snapshot: Snapshot) -> Resume:
    tensors = {name: value.clone() for name, value in snapshot.checkpoint().items()}
    return Resume(snapshot.step, tensors, list(snapshot.losses))


@pytest.mark.parametrize("id", ["coal", "bbse", "mcd"])
def test_a_checkpoint_of_a_lane_goes_on_by_itself_and_the_other_way_round(id: str) -> None:
    runs = [run_of(HERE, seed, id, target_sampler="balanced") for seed in (0, 1)]
    seen = fit_lanes(runs, [HERE, HERE], CPU, starts=[None, None])
    middle = [copied(s) for s in next(seen) if isinstance(s, Snapshot)]
    assert 0 < middle[0].step < 20
    *_, whole = seen
    again = together(runs, [HERE, HERE], resumes=middle)[-1]
    for i, run in enumerate(runs):
        *_, alone = fit(run, HERE, CPU, resume=middle[i])
        lane, resumed = whole[i], again[i]
        assert isinstance(lane, Snapshot)
        assert isinstance(resumed, Snapshot)
        assert_close(lane.weights(), alone.weights())
        assert all(torch.equal(value, lane.checkpoint()[name]) for name, value in resumed.checkpoint().items())


# --- in folders ---


@pytest.fixture(scope="module")
def task() -> Task:
    test = np.random.default_rng(0).integers(0, 3, 30)
    return Task("toy", HERE, TestLabels(test, np.arange(10), HERE.classes))


def with_source_before(run: Run) -> Run:
    first = Stage(make_method("source", {}), 1, 10, run.plan[0].optim)
    return dataclasses.replace(run, plan=(first, *run.plan))


def test_every_lane_ends_as_an_ordinary_folder_and_none_is_trained_twice(task: Task, tmp_path: Path) -> None:
    runs = [with_source_before(run_of(HERE, seed)) for seed in (0, 1)]
    how = Execution(open_root(tmp_path / "lanes"), CPU, checkpoint_every=0.0)
    list(execute_lanes([(run, task) for run in runs], how))
    for run in runs:
        list(execute(run, task, Execution(open_root(tmp_path / "alone"), CPU)))
        lane, alone = (RunFolder(tmp_path / name / run.key) for name in ("lanes", "alone"))
        assert {p.name for p in lane.path.iterdir()} == {p.name for p in alone.path.iterdir()}
        assert [e["step"] for e in lane.trace()] == [e["step"] for e in alone.trace()]
        assert json.loads((lane.path / "run.json").read_text())["lanes"] == 2
        assert lane.scores()["whole"]["images"] == 30
        assert RunFolder(tmp_path / "lanes" / run.before.key).pretraining  # type: ignore[union-attr]
    assert list(execute_lanes([(run, task) for run in runs], how)) == []


def test_lanes_that_stopped_at_different_steps_all_end(task: Task, tmp_path: Path) -> None:
    """A grid may be interrupted twice, with other lanes together each time."""
    runs = [run_of(HERE, seed) for seed in (0, 1, 2)]
    how = Execution(tmp_path, CPU, checkpoint_every=0.0)
    for _, event in zip(range(3), execute_lanes([(runs[0], task), (runs[1], task)], how), strict=False):
        assert not isinstance(event, Broken)
    assert RunFolder(tmp_path / runs[0].key).has_checkpoint
    list(execute_lanes([(run, task) for run in runs], how))
    for run in runs:
        assert RunFolder(tmp_path / run.key).done


def test_a_broken_lane_is_named_and_the_others_are_kept(task: Task, tmp_path: Path) -> None:
    runs = [run_of(HERE, 0, "dan", weight=1e38), run_of(HERE, 1, "dan")]
    events = list(execute_lanes([(run, task) for run in runs], Execution(tmp_path, CPU)))
    (broken,) = [event for event in events if isinstance(event, Broken)]
    assert broken.key == runs[0].key
    assert "is not finite" in str(broken.error)
    assert [RunFolder(tmp_path / run.key).done for run in runs] == [False, True]


def test_bench_trains_seeds_as_lanes_and_prints_the_same_table(cli: Command) -> None:
    tiny = ("-t", "pretrain=10", "-t", "rounds=1", "-t", "round=10", "-t", "batch=16", "--seeds", "2", "--jobs", "1")
    grid = ("bench", "mini", "--tasks", "syn-uci", "--methods", "dann,coal", *tiny, "--json")
    tables = [json.loads(cli(*grid, "--lanes", lanes, "--out", f"runs{lanes}").out) for lanes in (1, 2)]
    for alone, lanes in zip(*tables, strict=True):
        assert lanes["seeds"] == alone["seeds"] == [0, 1]
        assert lanes["whole"]["values"] == pytest.approx(alone["whole"]["values"], abs=1.0)
    folders = [p for p in Path("runs2").glob("*/run.json") if not (p.parent / "pretraining").exists()]
    assert {json.loads(p.read_text())["lanes"] for p in folders} == {2}


def test_lanes_are_taken_by_themselves_where_they_pay() -> None:
    small, large = (dataclasses.replace(run_of(HERE, 0), net=NetSpec(name=name)) for name in ("digits-28", "resnet50"))
    cuda = torch.device("cuda")
    assert lanes_that_pay(small, cuda) > lanes_that_pay(dataclasses.replace(small, net=NetSpec(name="digits-32")), cuda)
    assert lanes_that_pay(large, cuda) == lanes_that_pay(small, CPU) == 1
