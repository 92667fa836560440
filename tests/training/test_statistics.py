"""Batch statistics of each domain by itself: what they become, and which images are predicted with
them."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import rows
from torch import Tensor, nn
from toy_data import training_data_of

from askew.core.files import read_tensors
from askew.data.task import Task, TestLabels
from askew.inference.predictor import Predictor, load
from askew.methods import DANN, SourceOnly
from askew.methods.base import Batch, Method, join_domains
from askew.methods.teacher import PriorAwareTeacher
from askew.nets.network import Net, build
from askew.nets.spec import NetworkSpec
from askew.reports.features import network_features
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.training.lanes import fit_lanes
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint, Snapshot
from askew.training.trainer import Trainer, begin, fit

CPU = torch.device("cpu")
FAR = 3.0
"""How far the target's rows are moved: far enough that the other domain's statistics show."""


DATA = training_data_of(rows(60, 0, 0), rows(30, 0, 1), rows(60, FAR, 2), rows(30, FAR, 3))
TASK = Task("toy", DATA, TestLabels(rows(30, FAR, 3).y, np.arange(10), DATA.classes))


def run_of(
    method: Method, norm: str = "split", lr: float = 0.02, steps: int = 20, seed: int = 0
) -> Run:
    optim = Optim(lr=lr, features_lr=lr)
    return Run(
        task="toy",
        shift="natural",
        draw=0,
        origin=DATA.origin,
        net=NetworkSpec(layers="mlp", norm=norm),  # type: ignore[arg-type]
        plan=(
            Stage(method=SourceOnly(), rounds=1, round_steps=10, optim=optim),
            Stage(method=method, rounds=1, round_steps=steps, optim=optim),
        ),
        batch=60,
        sampler="natural",
        target_sampler="natural",
        precision="float32",
        seed=seed,
        threads=1,
    )


def pre_trained(run: Run) -> Checkpoint:
    assert run.before is not None
    *_, last = fit(run.before, DATA, CPU)
    return {name: value.clone() for name, value in last.weights().items()}


def of_source(name: str) -> bool:
    return "source_running" in name


# --- what they become ---


def test_each_domain_s_running_statistics_become_its_own_mean_and_variance() -> None:
    norm = nn.BatchNorm1d(8, affine=False).double()
    net = Net({"features": norm, "head": nn.Identity()}, 8, split_norm=True)
    xs, xt = (torch.from_numpy(domain.x).double() for domain in (DATA.source, DATA.target))
    for _ in range(200):
        join_domains(net, Batch(xs, torch.zeros(60), xt, torch.arange(60)))
    found = net.state_dict()
    for prefix, x in (("source_", xs), ("", xt)):
        torch.testing.assert_close(
            found[f"features.{prefix}running_mean"], x.mean(dim=0), rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            found[f"features.{prefix}running_var"], x.var(dim=0), rtol=1e-6, atol=1e-6
        )


def test_in_training_too_each_domain_s_statistics_are_its_own() -> None:
    """With a rate of nought, and batches that hold a whole domain."""
    run = run_of(DANN(hidden=16), lr=0.0, steps=120)
    *_, last = fit(run, DATA, CPU)
    found = last.weights()
    weight, bias = found["features.0.weight"].double(), found["features.0.bias"].double()
    for prefix, domain in (("source_", DATA.source.x), ("", DATA.target.x)):
        h = torch.from_numpy(domain).double() @ weight.T + bias
        torch.testing.assert_close(
            found[f"features.1.{prefix}running_mean"].double(), h.mean(0), rtol=0, atol=1e-3
        )
        torch.testing.assert_close(
            found[f"features.1.{prefix}running_var"].double(), h.var(0), rtol=1e-3, atol=1e-3
        )


def test_within_source_statistics_the_source_s_are_in_use_even_after_an_error() -> None:
    net = Net(
        {"features": nn.BatchNorm1d(2, affine=False), "head": nn.Identity()}, 2, split_norm=True
    ).eval()
    norm = net["features"]
    norm.running_mean.fill_(1)
    norm.source_running_mean.fill_(-1)
    x = torch.zeros(1, 2)
    assert norm(x)[0, 0] == pytest.approx(-1, abs=1e-4)
    with net.source_statistics():
        assert norm(x)[0, 0] == pytest.approx(1, abs=1e-4)
    assert norm(x)[0, 0] == pytest.approx(-1, abs=1e-4)
    with pytest.raises(RuntimeError), net.source_statistics():
        norm(torch.zeros(1, 3))
    assert norm(x)[0, 0] == pytest.approx(-1, abs=1e-4)


# --- where they start ---


def test_a_run_that_never_sees_the_target_has_one_set_for_all() -> None:
    run = run_of(SourceOnly())
    *_, last = fit(run, DATA, CPU)
    assert not any(map(of_source, last.weights()))
    *_, joint = fit(run_of(SourceOnly(), norm="joint"), DATA, CPU)
    for name, value in last.weights().items():
        assert torch.equal(value, joint.weights()[name])
    for name in ("target", "source_val", "test"):
        assert torch.equal(getattr(last.outputs, name), getattr(joint.outputs, name))


@pytest.mark.parametrize("method", [DANN(hidden=16), PriorAwareTeacher()], ids=lambda m: m.id)
def test_a_method_starts_both_sets_from_those_of_pre_training(method: Method) -> None:
    run = run_of(method)
    start = pre_trained(run)
    state = begin(run, DATA, CPU, start, None, partial(Trainer, graph=False)).net.state_dict()
    sets = [name for name in state if "running_" in name]
    assert len(sets) == 2 * 2 * 2 * (
        2 if method.teacher else 1
    )  # layers, mean and variance, domains, networks
    for name in sets:
        assert torch.equal(state[name], start[name.removeprefix("teacher.").replace("source_", "")])


# --- which images are predicted with them ---


def plain_logits(
    weights: Checkpoint, x: np.ndarray[Any, Any], domain: str, prefix: str = ""
) -> Tensor:
    """Of a network with one set of statistics, which is the domain's."""
    parts, _ = build(NetworkSpec(layers="mlp"), (8,), 3, 0)
    for part, module in parts.items():
        start = f"{prefix}{part}."
        named = {
            name.removeprefix(start): value
            for name, value in weights.items()
            if name.startswith(start)
        }
        own = {name: value for name, value in named.items() if not of_source(name)}
        if domain == "source":
            own |= {
                name.replace("source_", ""): value
                for name, value in named.items()
                if of_source(name)
            }
        module.load_state_dict(own)
    with torch.no_grad():
        logits: Tensor = parts["head"].eval()(parts["features"].eval()(torch.from_numpy(x)))
    return logits


def assert_predicted_by_domain(snapshot: Snapshot) -> None:
    """Target and test images with the target's statistics, held-out source with the source's."""
    weights, outputs = snapshot.weights(), snapshot.outputs
    prefix = "teacher." if any(name.startswith("teacher.") for name in weights) else ""
    for found, x, domain, other in (
        (outputs.target, DATA.target.x, "target", "source"),
        (outputs.test, DATA.test_images.x, "target", "source"),
        (outputs.source_val, DATA.source_val.x, "source", "target"),
    ):
        torch.testing.assert_close(
            found, plain_logits(weights, x, domain, prefix), rtol=1e-4, atol=1e-4
        )
        assert (found - plain_logits(weights, x, other, prefix)).abs().max() > 0.1


@pytest.mark.parametrize("method", [DANN(hidden=16), PriorAwareTeacher()], ids=lambda m: m.id)
def test_images_are_predicted_with_the_statistics_of_their_domain(method: Method) -> None:
    run = run_of(method)
    *_, last = fit(run, DATA, CPU, start=pre_trained(run))
    assert_predicted_by_domain(last)


@pytest.mark.parametrize("method", [DANN(hidden=16), PriorAwareTeacher()], ids=lambda m: m.id)
def test_in_lanes_too(method: Method) -> None:
    runs = [run_of(method, seed=seed) for seed in (0, 1)]
    *_, last = fit_lanes(runs, [DATA, DATA], CPU, starts=[pre_trained(run) for run in runs])
    for lane in last:
        assert isinstance(lane, Snapshot)
        assert_predicted_by_domain(lane)


def test_a_saved_model_predicts_either_domain_with_its_statistics(tmp_path: Path) -> None:
    run = run_of(DANN(hidden=16), steps=10)
    root = open_root(tmp_path / "runs")
    list(execute(run, TASK, Execution(root=root, device=CPU)))
    model = Predictor.of_run(root / run.key, "cpu")
    model.save(tmp_path / "model")
    for found in (model, load(tmp_path / "model", "cpu")):
        for x, domain in ((DATA.target.x, "target"), (DATA.source_val.x, "source")):
            logits = torch.from_numpy(found.logits(x, domain=domain))  # type: ignore[arg-type]
            torch.testing.assert_close(
                logits, plain_logits(found.weights, x, domain), rtol=1e-4, atol=1e-4
            )
        assert (
            np.abs(
                found.logits(DATA.source_val.x) - found.logits(DATA.source_val.x, domain="source")
            ).max()
            > 0.1
        )


def test_a_model_with_one_set_predicts_both_domains_with_it(tmp_path: Path) -> None:
    run = dataclasses.replace(run_of(SourceOnly()), plan=run_of(SourceOnly()).plan[:1])
    root = open_root(tmp_path / "runs")
    list(execute(run, TASK, Execution(root=root, device=CPU)))
    model = Predictor.of_run(root / run.key, "cpu")
    np.testing.assert_array_equal(
        model.logits(DATA.target.x), model.logits(DATA.target.x, domain="source")
    )


@pytest.mark.parametrize("norm", ["split", "joint"])
def test_a_map_of_features_shows_each_domain_with_its_statistics(tmp_path: Path, norm: str) -> None:
    run = run_of(DANN(hidden=16), norm, steps=10)
    root = open_root(tmp_path / "runs")
    list(execute(run, TASK, Execution(root=root, device=CPU)))
    features = network_features(root / run.key, run.describe(), DATA)
    head = read_tensors(root / run.key / "weights.safetensors")[0]
    for x, domain in ((DATA.source.x, "source"), (DATA.target.x, "target")):
        # type: ignore[arg-type]
        logits = features(x, domain) @ head["head.weight"].numpy().T + head["head.bias"].numpy()
        np.testing.assert_allclose(logits, plain_logits(head, x, domain), rtol=1e-4, atol=1e-4)
