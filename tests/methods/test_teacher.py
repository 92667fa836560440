"""The prior-aware teacher against its formula, and the average that teaches and predicts."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formula import NT, C, Formula, T, assert_is, given
from test_trainer import copied
from torch import Tensor

import askew
from askew.core import random
from askew.core.files import read_tensors
from askew.data.task import Task, TrainingData
from askew.inference.predictor import Predictor
from askew.methods.base import Method
from askew.methods.teacher import ClassShares, PriorAwareTeacher
from askew.nets.augment import Views
from askew.nets.layers import Dropout
from askew.nets.network import build
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.testing import check_method
from askew.training import loop
from askew.training.run import Run
from askew.training.snapshot import Checkpoint
from askew.training.trainer import Trainer, begin, fit

CPU = torch.device("cpu")
EVEN = float(np.float32(1 / C))
"""A class's moving share before the first batch, as a network's buffer holds it."""


# --- the losses ---


def aligned(
    q: np.ndarray[Any, Any], shares: np.ndarray[Any, Any], floor: float
) -> np.ndarray[Any, Any]:
    """q′ of one batch, row by row and class by class."""
    even = np.array(
        [[q[i, k] / max(shares[k], floor / C) for k in range(C)] for i in range(len(q))]
    )
    return np.array([row / row.sum() for row in even])


@pytest.mark.parametrize(("align", "floor"), [(True, 0.01), (True, 0.99), (False, 0.01)])
def test_its_losses_and_gradients_are_those_of_the_formula(align: bool, floor: float) -> None:
    method = PriorAwareTeacher(weight=1.7, threshold=0.7, aligned=align, floor=floor)
    net, batch = given(method)
    f = Formula(net, batch)
    q = f.taught(batch.target_views[1]).numpy()
    if align:
        q = aligned(q, 0.95 * EVEN + 0.05 * q.mean(axis=0), floor)
    sure = [i for i in range(NT) if max(q[i]) > 0.7]
    assert 0 < len(sure) < NT, "some images count, and some do not"
    p = f.p(f.ft)
    apart = [sum((p[i, k] - q[i, k]) ** 2 for k in range(C)) for i in sure]
    agree = 1.7 / NT * torch.stack([torch.as_tensor(term) for term in apart]).sum()
    both = {"features": 1, "head": 1}
    assert_is(
        method.losses(net, batch, {}, T), f, {"label": (f.label(), both), "agree": (agree, both)}
    )


def test_the_student_sees_one_view_and_the_teacher_the_other() -> None:
    method = PriorAwareTeacher(threshold=0.0)
    net, batch = given(method)
    before = method.losses(net, batch, {}, T)["agree"].item()
    for view in (0, 1):
        net, batch = given(method)
        views = list(batch.target_views)
        views[view] = views[view] + 1
        other = batch._replace(xt=views[0], target_views=tuple(views))
        assert method.losses(net, other, {}, T)["agree"].item() != pytest.approx(before)


def test_a_calm_teacher_sees_a_view_half_as_strong() -> None:
    assert PriorAwareTeacher().target_views == (1.0, 1.0)
    assert PriorAwareTeacher(calm=True).target_views == (1.0, 0.5)


def test_an_image_of_which_the_teacher_is_not_sure_does_not_count() -> None:
    method = PriorAwareTeacher(threshold=1.0)
    agree = method.losses(*given(method), {}, T)["agree"]
    assert agree.item() == 0


@pytest.mark.parametrize("floor", [0.01, 0.9])
def test_moving_shares_and_aligned_labels_follow_the_formula(floor: float) -> None:
    layer, shares = ClassShares(C).double(), np.full(C, EVEN)
    rng = np.random.default_rng(0)
    for _ in range(3):
        q = rng.dirichlet([5.0, 1.0, 0.02], size=8)
        shares = 0.95 * shares + 0.05 * np.array([q[:, k].sum() / 8 for k in range(C)])
        np.testing.assert_allclose(
            layer(torch.from_numpy(q), floor), aligned(q, shares, floor), rtol=1e-9
        )
        np.testing.assert_allclose(layer.shares, shares, rtol=1e-9)


def test_a_class_that_is_never_answered_is_not_weighed_up_without_bound() -> None:
    layer = ClassShares(C).double()
    q = torch.tensor([[0.9, 0.0999, 0.0001]], dtype=torch.float64)
    for _ in range(400):
        answer = layer(q, 0.01)
    np.testing.assert_allclose(answer[0], aligned(q.numpy(), q[0].numpy(), 0.01)[0], rtol=1e-3)
    assert answer[0, 2] < 0.02, (
        "0.0001/(0.01/c) is 0.03; without a floor it would be 1, as much as the other classes"
    )


@pytest.mark.parametrize("options", [{}, {"threshold": 0.0}, {"aligned": False, "memory": 1}])
def test_it_keeps_the_contract(options: Any) -> None:
    check_method(PriorAwareTeacher(**options))


# --- the teacher ---


def taught_run(
    make_run: Any, norm: str = "joint", method: Method | None = None, **more: Any
) -> Run:
    """Short and quick to learn, with random views of rows and an even target."""
    run = make_run(
        method or PriorAwareTeacher(threshold=0.4), head="linear", target_sampler="even", **more
    )
    net = dataclasses.replace(run.net, norm=norm)
    return dataclasses.replace(run, net=net, views=Views(views="rows"))


def trainer_of(run: Run, data: TrainingData, start: Checkpoint | None) -> Trainer:
    return begin(run, data, CPU, start, None, partial(Trainer, graph=False))


def started(run: Run, data: TrainingData) -> Checkpoint:
    assert run.before is not None
    *_, last = fit(run.before, data, CPU)
    return copied(last.weights())


@pytest.mark.parametrize("norm", ["joint", "split"])
def test_it_starts_as_the_pre_trained_student_with_its_batch_statistics(
    training_data: TrainingData, make_run: Any, norm: str
) -> None:
    run = taught_run(make_run, norm)
    start = started(run, training_data)
    state = trainer_of(run, training_data, start).net.state_dict()
    assert any("running_var" in name for name in start)
    for name, value in start.items():
        assert torch.equal(state[f"teacher.{name}"], value)
        assert torch.equal(state[name], value)


def test_neither_gradients_nor_optimiser_slots_are_made_for_it(
    training_data: TrainingData, make_run: Any
) -> None:
    run = taught_run(make_run, optimiser="adam")
    trainer = trainer_of(run, training_data, None)
    assert not list(trainer.net["teacher"].parameters())
    assert {name.partition(".")[0] for name in trainer.params} == {"features", "head"}
    assert not any("teacher" in name for name in trainer.optimiser.tensors())
    batch = trainer.feed.batch(torch.arange(12), torch.arange(12))
    assert not trainer.net["teacher"](batch.xt).requires_grad


def step_by_step(run: Run, data: TrainingData, monkeypatch: pytest.MonkeyPatch) -> list[Checkpoint]:
    """The network's tensors after every step."""
    monkeypatch.setattr(loop, "CPU_CHUNK", 1)
    return [copied(s.weights()) for s in fit(run, data, CPU, start=started(run, data))]


@pytest.mark.parametrize(
    "large", [1, 100, 1 << 30], ids=["one by one", "some of each", "all together"]
)
def test_it_is_the_average_of_the_student_over_as_many_steps_as_it_remembers(
    training_data: TrainingData, make_run: Any, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(loop, "_LARGE", large)
    run = taught_run(make_run, "split", PriorAwareTeacher(memory=3), rounds=2, round_steps=4)
    steps = step_by_step(run, training_data, monkeypatch)
    assert len(steps) == 8
    weights = [
        name for name in steps[0] if name.startswith(("features.", "head.")) and "_" not in name
    ]
    statistics = [
        name for name in steps[0] if name.startswith("features.") and ".source_running_" in name
    ]
    assert (len(weights), len(statistics)) == (10, 4)
    for name in weights + statistics:  # the target's statistics are the teacher's own
        mean = np.zeros(steps[0][name].shape)
        for i, after in enumerate(steps):
            d = 1 - 1 / min(i + 1, 3)
            mean = d * mean + (1 - d) * after[name].double().numpy()
            np.testing.assert_allclose(
                after[f"teacher.{name}"], mean, rtol=1e-5, atol=1e-7, err_msg=f"{name} {i}"
            )


def test_one_that_remembers_one_step_has_the_student_s_weights(
    training_data: TrainingData, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = taught_run(make_run, method=PriorAwareTeacher(memory=1), rounds=1, round_steps=3)
    for after in step_by_step(run, training_data, monkeypatch):
        for name, value in after.items():
            if f"teacher.{name}" in after and "num_batches" not in name:
                assert torch.equal(after[f"teacher.{name}"], value), name


def test_teacher_statistics_are_the_student_s_if_joint_and_its_own_if_split(
    training_data: TrainingData, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for norm in ("joint", "split"):
        after = step_by_step(
            taught_run(make_run, norm, rounds=1, round_steps=3), training_data, monkeypatch
        )[-1]
        for name in ("features.1.running_mean", "features.1.running_var"):
            assert torch.equal(after[f"teacher.{name}"], after[name]) == (norm == "joint")


def test_it_drops_other_features_than_the_student_in_the_same_step(
    training_data: TrainingData, make_run: Any
) -> None:
    net = trainer_of(taught_run(make_run), training_data, None).net
    masks = []
    for step in (1, 2):
        net.set_step_key(torch.tensor(random.key("step", step)))
        pairs = zip(net["features"].modules(), net["teacher"].features.modules(), strict=True)
        masks += [
            layer(torch.ones(20, 512)) > 0
            for pair in pairs
            for layer in pair
            if isinstance(layer, Dropout)
        ]
    assert len(masks) == 4
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert 0.4 < (one == other).float().mean() < 0.6


def plain_logits(run: Run, weights: Checkpoint, prefix: str, x: Tensor) -> Tensor:
    """Of a network that is only features and head, with those tensors whose names begin so."""
    parts, _ = build(run.net, tuple(x.shape[1:]), 3, 0)
    for part, module in parts.items():
        start = f"{prefix}{part}."
        named = {
            name.removeprefix(start): v for name, v in weights.items() if name.startswith(start)
        }
        module.load_state_dict(
            {name: v for name, v in named.items() if "source_running" not in name}
        )
    with torch.no_grad():
        logits: Tensor = parts["head"].eval()(parts["features"].eval()(x))
    return logits


def test_its_predictions_are_the_teacher_s(training_data: TrainingData, make_run: Any) -> None:
    run = taught_run(make_run)
    *_, last = fit(run, training_data, CPU)
    for domain, outputs in (
        (training_data.target, last.outputs.target),
        (training_data.test_images, last.outputs.test),
    ):
        x = torch.from_numpy(np.asarray(domain.x))
        torch.testing.assert_close(
            outputs, plain_logits(run, last.weights(), "teacher.", x), rtol=1e-4, atol=1e-4
        )
        assert (outputs - plain_logits(run, last.weights(), "", x)).abs().max() > 0.01


def test_the_teacher_of_the_round_before_labels_the_target(
    training_data: TrainingData, make_run: Any
) -> None:
    run = taught_run(make_run, rounds=2, round_steps=5)
    start = started(run, training_data)
    first, second = (
        (copied(s.checkpoint()), s.outputs.target.argmax(dim=1))
        for s in fit(run, training_data, CPU, start=start)
    )
    x = torch.from_numpy(np.asarray(training_data.target.x))
    assert torch.equal(first[0]["pseudo"], plain_logits(run, start, "", x).argmax(dim=1))
    assert torch.equal(second[0]["pseudo"], first[1])


# --- afterwards ---


@pytest.mark.parametrize("norm", ["joint", "split"])
def test_a_finished_run_loads_as_a_plain_model_that_predicts_what_the_run_did(
    task: Task, make_run: Any, tmp_path: Path, norm: str
) -> None:
    run, data, root = (
        taught_run(make_run, norm, rounds=2, round_steps=5),
        task.training_data,
        open_root(tmp_path / "r"),
    )
    list(execute(run, task, Execution(root=root, device=CPU)))
    outputs = read_tensors(root / run.key / "outputs.safetensors")[0]
    of_run = Predictor.of_run(root / run.key, "cpu")
    of_run.save(tmp_path / "model")
    for model in (of_run, askew.load(root / run.key, "cpu"), askew.load(tmp_path / "model", "cpu")):
        assert not any(name.startswith(("teacher.", "shares.")) for name in model.weights)
        for name, x in (("target", data.target.x), ("test", data.test_images.x)):
            np.testing.assert_allclose(
                model.logits(x), outputs[name].float(), rtol=2e-3, atol=2e-3, err_msg=name
            )
        held_out = model.logits(data.source_val.x, domain="source")
        np.testing.assert_allclose(held_out, outputs["source_val"].float(), rtol=2e-3, atol=2e-3)
