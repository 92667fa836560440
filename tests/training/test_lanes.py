"""Lanes: many runs at once take the steps that each would take by itself."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command, rows
from parity import assert_same_steps
from toy_data import training_data_of
from trained import TRAINED, small

from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TestLabels, TrainingData
from askew.evaluation.priors import UnsurePriorWarning
from askew.methods import SourceOnly
from askew.nets.augment import Views
from askew.nets.spec import NetworkSpec, parse_network
from askew.nets.triton import draws
from askew.runs.execute import Broken, Execution, execute, execute_lanes
from askew.runs.root import open_root
from askew.runs.store import RunFolder
from askew.training.lane_groups import lane_shape, lanes_that_pay
from askew.training.lanes import fit_lanes
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint, NotFinite, Snapshot
from askew.training.trainer import Resume, fit

CPU = torch.device("cpu")
SHARE = 2e-3
"""Of a step: a batched product sums in another order than one alone."""
ADAM_SHARE = 2e-2
"""The same under Adam, which also turns weights whose gradient is hardly more than rounding."""


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """From an untrained network no class prior can be estimated, which BBSE says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsurePriorWarning)
        yield


def data_of(seed: int, targets: int = 60) -> TrainingData:
    sizes = ((90, 0.0), (30, 0.0), (targets, 0.5), (30, 0.5))
    return training_data_of(*(rows(n, shift, seed + i) for i, (n, shift) in enumerate(sizes)))


def noise_of(*shape: int) -> TrainingData:
    """Images of nothing, of three classes."""
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 256, (n, *shape), dtype=np.uint8) for n in (24, 6, 24, 6)]
    y = np.arange(24) % 3
    return TrainingData(
        source=Labeled(x[0], y),
        source_val=Labeled(x[1], y[:6]),
        target=Unlabeled(x[2]),
        test_images=Unlabeled(x[3]),
        classes=("a", "b", "c"),
    )


HERE, THERE = data_of(0), data_of(10, targets=40)
GREY = noise_of(1, 28, 28)
DATA = {data.origin: data for data in (HERE, THERE, GREY)}


def run_of(
    training_data: TrainingData,
    seed: int,
    id: str = "coal",
    *,
    net: str = "mlp",
    norm: str = "joint",
    views: str = "none",
    target_sampler: str = "natural",
    round_steps: int = 1,
    optimiser: str = "sgd",
    **hyper: Any,
) -> Run:
    """Two steps with a refresh between them, unless it is to be longer."""
    method = small(id, **hyper)
    rate = 0.01 if optimiser == "sgd" else 0.001
    optim = Optim(optimiser=optimiser, lr=rate, features_lr=rate)  # type: ignore[arg-type]
    stage = Stage(
        method=method, rounds=2, round_steps=round_steps, optim=optim, restart=method.restarts
    )
    return Run(
        task="toy",
        shift="natural",
        draw=0,
        origin=training_data.origin,
        net=parse_network(net, head=method.head, norm=norm),  # type: ignore[arg-type]
        plan=(stage,),
        batch=12,
        sampler="balanced",
        target_sampler=target_sampler,
        precision="float32",
        seed=seed,
        threads=1,  # type: ignore[arg-type]
        views=Views(views=views),  # type: ignore[arg-type]
    )


def started(run: Run) -> Checkpoint:
    """The weights from which both ways go: those of a network that has learnt a little from the
    source."""
    stage = Stage(
        method=SourceOnly(), rounds=1, round_steps=10, optim=Optim(lr=0.01, features_lr=0.01)
    )
    return _source_only(dataclasses.replace(run, plan=(stage,), target_sampler="natural"))


@functools.cache
def _source_only(run: Run) -> Checkpoint:
    *_, last = fit(run, DATA[run.origin], CPU)
    return {name: value.clone() for name, value in last.weights().items()}


def together(
    runs: list[Run], training_datas: list[TrainingData], resumes: Sequence[Resume] | None = None
) -> list[list[Snapshot | NotFinite]]:
    return list(
        fit_lanes(runs, training_datas, CPU, starts=[started(run) for run in runs], resumes=resumes)
    )


def alone(run: Run, resume: Resume | None = None) -> Snapshot:
    *_, last = fit(run, DATA[run.origin], CPU, start=started(run), resume=resume)
    return last


def assert_same(run: Run, single: Snapshot, lane: Snapshot | NotFinite) -> None:
    """The whole checkpoint, the losses, and what the network says."""
    assert isinstance(lane, Snapshot)
    adam = run.plan[-1].optim.optimiser != "sgd"
    begun = {} if run.plan[-1].restart else started(run)
    assert_same_steps(
        begun, single.checkpoint(), lane.checkpoint(), ADAM_SHARE if adam else SHARE, adam=adam
    )
    assert lane.losses == pytest.approx(single.losses, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(
        lane.outputs.target, single.outputs.target, rtol=1e-3, atol=0.05 if adam else 1e-3
    )
    torch.testing.assert_close(lane.training_prior, single.training_prior)


TAUGHT = {"norm": "split", "target_sampler": "even", "optimiser": "adam", "threshold": 0.4}
"""How the teacher is trained; sure of what it says, so that its agreement counts."""


@pytest.mark.parametrize(
    ("id", "how"),
    [
        *((id, {}) for id in TRAINED),
        ("dann", {"target_sampler": "balanced"}),
        ("coal", {"target_sampler": "balanced"}),
        ("dann", {"norm": "split", "views": "rows"}),
        ("coal", {"optimiser": "adam", "target_sampler": "even"}),
        ("teacher", {"views": "rows", "threshold": 0.4}),
        ("teacher", {"views": "rows", **TAUGHT}),
        ("fixmatch", {"views": "rows", "norm": "split", "threshold": 0.4}),
        ("sentry", {"views": "rows", "target_sampler": "even"}),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(map(str, v.values())) or "plain",
)
def test_each_lane_takes_the_steps_of_the_run_by_itself(id: str, how: dict[str, Any]) -> None:
    """Lanes of other seeds, and of other data with fewer target images."""
    cases = [(HERE, 0), (HERE, 1), (THERE, 1)]
    runs = [run_of(training_data, seed, id, **how) for training_data, seed in cases]
    last = together(runs, [training_data for training_data, _ in cases])[-1]
    for run, lane in zip(runs, last, strict=True):
        assert_same(run, alone(run), lane)


@pytest.mark.parametrize(
    ("id", "how"),
    [
        ("dann", {}),
        ("teacher", {"views": "affine+intensity", **TAUGHT}),
        ("sentry", {"views": "affine"}),
    ],
    ids=["dann", "teacher", "sentry"],
)
def test_lanes_of_a_convolutional_network_take_the_steps_of_each_by_itself(
    id: str, how: dict[str, Any]
) -> None:
    runs = [run_of(GREY, seed, id, net="digits-28", **how) for seed in (0, 1)]
    for run, lane in zip(runs, together(runs, [GREY, GREY])[-1], strict=True):
        assert_same(run, alone(run), lane)


def test_views_of_lanes_are_drawn_outside_of_vmap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU draws by a kernel, for all lanes at once."""
    wrapped = []

    def trusted(kind: str, keys: torch.Tensor, *shape: object) -> bool:
        wrapped.append(torch._C._functorch.is_functorch_wrapped_tensor(keys))
        return False

    monkeypatch.setattr(draws, "_trusted", trusted)
    together([run_of(HERE, seed, "teacher", views="rows") for seed in (0, 1)], [HERE, HERE])
    assert wrapped
    assert not any(wrapped)


def test_lanes_may_differ_in_float_hyper_parameters() -> None:
    runs = [run_of(HERE, 0, alpha=alpha, k0=k0) for alpha, k0 in ((0.1, 0.05), (0.5, 0.4))]
    assert lane_shape(runs[0]) == lane_shape(runs[1])
    last = together(runs, [HERE, HERE])[-1]
    for run, lane in zip(runs, last, strict=True):
        assert_same(run, alone(run), lane)


def test_what_changes_a_step_is_part_of_the_shape() -> None:
    run = run_of(HERE, 0)
    assert lane_shape(run) == lane_shape(
        dataclasses.replace(run, seed=7, task="other", draw=3, origin="x", shift="y")
    )
    others = [
        run_of(HERE, 0, "dann"),
        run_of(HERE, 0, updates="two"),
        run_of(HERE, 0, views="rows"),
        run_of(HERE, 0, target_sampler="even"),
        dataclasses.replace(run, batch=13),
        dataclasses.replace(run, net=NetworkSpec(layers="bare", head="cosine")),
        dataclasses.replace(run, plan=(dataclasses.replace(run.plan[0], rounds=3),)),
        dataclasses.replace(run, plan=(dataclasses.replace(run.plan[0], optim=Optim(lr=0.5)),)),
    ]
    assert lane_shape(run) not in {lane_shape(other) for other in others}


def test_a_lane_that_breaks_harms_no_other() -> None:
    runs = [
        run_of(HERE, 0, "dan", weight=1.0),
        run_of(HERE, 1, "dan", weight=1e38),
        run_of(HERE, 2, "dan", weight=1.0),
    ]
    first, broken, third = together(runs, [HERE] * 3)[-1]
    assert isinstance(broken, NotFinite)
    for run, lane in ((runs[0], first), (runs[2], third)):
        assert_same(run, alone(run), lane)


def copied(snapshot: Snapshot) -> Resume:
    tensors = {name: value.clone() for name, value in snapshot.checkpoint().items()}
    return Resume(snapshot.step, tensors, list(snapshot.losses))


@pytest.mark.parametrize(
    ("id", "how"),
    [
        *((id, {"target_sampler": "balanced"}) for id in ("coal", "bbse", "mcd")),
        ("teacher", {"views": "rows", **TAUGHT}),
    ],
    ids=["coal", "bbse", "mcd", "teacher"],
)
def test_a_checkpoint_of_a_lane_goes_on_by_itself_and_the_other_way_round(
    id: str, how: dict[str, Any]
) -> None:
    runs = [run_of(HERE, seed, id, **how) for seed in (0, 1)]
    seen = fit_lanes(runs, [HERE, HERE], CPU, starts=[started(run) for run in runs])
    middle = [copied(s) for s in next(seen) if isinstance(s, Snapshot)]
    assert middle[0].step == 1
    *_, whole = seen
    again = together(runs, [HERE, HERE], resumes=middle)[-1]
    for i, run in enumerate(runs):
        lane, resumed = whole[i], again[i]
        assert isinstance(lane, Snapshot)
        assert isinstance(resumed, Snapshot)
        assert_same(run, alone(run, middle[i]), lane)
        assert all(
            torch.equal(value, lane.checkpoint()[name])
            for name, value in resumed.checkpoint().items()
        )


# --- in folders ---


@pytest.fixture(scope="module")
def task() -> Task:
    test = np.random.default_rng(0).integers(0, 3, 30)
    return Task("toy", HERE, TestLabels(test, np.arange(10), HERE.classes))


def with_source_before(run: Run) -> Run:
    first = Stage(method=SourceOnly(), rounds=1, round_steps=10, optim=run.plan[0].optim)
    return dataclasses.replace(run, plan=(first, *run.plan))


def test_every_lane_ends_as_an_ordinary_folder_and_none_is_trained_twice(
    task: Task, tmp_path: Path
) -> None:
    runs = [with_source_before(run_of(HERE, seed, round_steps=10)) for seed in (0, 1)]
    how = Execution(root=open_root(tmp_path / "lanes"), device=CPU, checkpoint_every=0.0)
    list(execute_lanes([(run, task) for run in runs], how))
    for run in runs:
        list(execute(run, task, Execution(root=open_root(tmp_path / "alone"), device=CPU)))
        lane, alone = (RunFolder(tmp_path / name / run.key) for name in ("lanes", "alone"))
        assert {p.name for p in lane.path.iterdir()} == {p.name for p in alone.path.iterdir()}
        assert [e["step"] for e in lane.trace()] == [e["step"] for e in alone.trace()]
        assert json.loads((lane.path / "run.json").read_text())["lanes"] == 2
        assert lane.scores()["whole"]["images"] == 30
        # type: ignore[union-attr]
        assert RunFolder(tmp_path / "lanes" / run.before.key).pretraining
    assert list(execute_lanes([(run, task) for run in runs], how)) == []


def test_lanes_that_stopped_at_different_steps_all_end(task: Task, tmp_path: Path) -> None:
    """A grid may be interrupted twice, with other lanes together each time."""
    runs = [run_of(HERE, seed, round_steps=10) for seed in (0, 1, 2)]
    how = Execution(root=tmp_path, device=CPU, checkpoint_every=0.0)
    for _, event in zip(
        range(3), execute_lanes([(runs[0], task), (runs[1], task)], how), strict=False
    ):
        assert not isinstance(event, Broken)
    assert RunFolder(tmp_path / runs[0].key).has_checkpoint
    list(execute_lanes([(run, task) for run in runs], how))
    for run in runs:
        assert RunFolder(tmp_path / run.key).done


def test_a_broken_lane_is_named_and_the_others_are_kept(task: Task, tmp_path: Path) -> None:
    runs = [run_of(HERE, 0, "dan", weight=1e38), run_of(HERE, 1, "dan")]
    events = list(
        execute_lanes([(run, task) for run in runs], Execution(root=tmp_path, device=CPU))
    )
    (broken,) = [event for event in events if isinstance(event, Broken)]
    assert broken.key == runs[0].key
    assert "is not finite" in str(broken.error)
    assert [RunFolder(tmp_path / run.key).done for run in runs] == [False, True]


def test_bench_trains_seeds_as_lanes_and_prints_the_same_table(cli: Command) -> None:
    tiny = (
        "-t",
        "pretrain=4",
        "-t",
        "rounds=1",
        "-t",
        "round=4",
        "-t",
        "batch=16",
        "--seeds",
        "2",
        "--jobs",
        "1",
    )
    grid = ("bench", "mini", "--tasks", "syn-uci", "--methods", "coal", *tiny, "--json")
    tables = [
        json.loads(cli(*grid, "--lanes", lanes, "--out", f"runs{lanes}").out) for lanes in (1, 2)
    ]
    for alone, lanes in zip(*tables, strict=True):
        assert lanes["seeds"] == alone["seeds"] == [0, 1]
        assert lanes["whole"]["values"] == pytest.approx(alone["whole"]["values"], abs=1.0)
    folders = [
        p for p in Path("runs2").glob("*/run.json") if not (p.parent / "pretraining").exists()
    ]
    assert {json.loads(p.read_text())["lanes"] for p in folders} == {2}


def test_lanes_are_taken_by_themselves_where_they_pay() -> None:
    small, large = (
        dataclasses.replace(run_of(HERE, 0), net=parse_network(name))
        for name in ("digits-28", "resnet50")
    )
    cuda = torch.device("cuda")
    assert lanes_that_pay(small, cuda) > lanes_that_pay(
        dataclasses.replace(small, net=NetworkSpec(layers="digits-32")), cuda
    )
    assert lanes_that_pay(large, cuda) == lanes_that_pay(small, CPU) == 1
