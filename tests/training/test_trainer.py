from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData
from askew.methods import COAL, SourceOnly
from askew.methods.base import Batch, Losses, Method, Outputs, Phase, Shape, State
from askew.methods.losses import cross_entropy
from askew.nets.network import Net, build
from askew.training import loop
from askew.training.snapshot import Checkpoint, NotFinite, Snapshot
from askew.training.trainer import Resume, Run, built_on, fit

CPU = torch.device("cpu")


class Kept(typing.NamedTuple):
    """A snapshot that outlives the next step."""

    step: int
    round_ends: bool
    losses: dict[str, float]
    tensors: Checkpoint


def copied(tensors: Checkpoint) -> Checkpoint:
    return {name: value.clone() for name, value in tensors.items()}


def kept(snapshots: Iterator[Snapshot]) -> list[Kept]:
    return [Kept(s.step, s.round_ends, s.losses, copied(s.checkpoint())) for s in snapshots]


def weights_of(run: Run, training_data: TrainingData, **how: Any) -> Checkpoint:
    """The network's parameters after training."""
    *_, last = fit(run, training_data, CPU, **how)
    return copied(
        {n: v for n, v in last.weights().items() if "running" not in n and "num_batches" not in n}
    )


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@dataclass(frozen=True, kw_only=True)
class Turns(Method):
    """Two phases: the head learns the source, then a critic of its own learns twice; nobody trains
    the features."""

    id = "turns"

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        return {"critic": nn.Linear(shape.width, shape.classes)}

    def phases(self) -> tuple[Phase, ...]:
        return Phase(self.losses, trains=("head",)), Phase(
            self.second, trains=("critic",), repeat=2
        )

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"label": cross_entropy(net["head"](net["features"](batch.xs)), batch.ys)}

    def second(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {"critic": cross_entropy(net["critic"](net["features"](batch.xs)), batch.ys)}


@dataclass(frozen=True, kw_only=True)
class Broken(SourceOnly):
    """Its loss turns to NaN half-way."""

    id = "broken"

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        return {
            "label": super().losses(net, batch, state, t)["label"]
            * torch.where(t < 0.5, 1.0, torch.nan)
        }


@pytest.mark.parametrize("net", ["mlp", "bare"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_training_lowers_the_loss(
    training_data: TrainingData, make_run: Any, net: str, kind: str
) -> None:
    run = make_run(rounds=4, pretrain=0, net=net, head="linear", optimiser=kind)
    label = [s.losses["label"] for s in fit(run, training_data, CPU)]
    assert label[-1] < 0.8 * label[0]


@pytest.mark.parametrize(
    ("method", "kind", "target_sampler"),
    [
        (SourceOnly(), "sgd", "natural"),
        (COAL(), "sgd", "natural"),
        (COAL(), "sgd", "balanced"),
        (COAL(), "adam", "natural"),
        (COAL(updates="two"), "adam", "balanced"),
        (Turns(), "adam", "natural"),
    ],
    ids=lambda v: v if isinstance(v, str) else v.id,
)
def test_going_on_from_any_snapshot_gives_the_same_bits(
    training_data: TrainingData,
    make_run: Any,
    monkeypatch: pytest.MonkeyPatch,
    method: Method,
    kind: str,
    target_sampler: str,
) -> None:
    monkeypatch.setattr(loop, "CPU_CHUNK", 4)  # so that snapshots also fall inside a round
    run = make_run(method, rounds=2, optimiser=kind, target_sampler=target_sampler)
    start = weights_of(run.before, training_data)
    whole = kept(fit(run, training_data, CPU, start=start))
    assert [(s.step, s.round_ends) for s in whole] == [
        (4, False),
        (8, False),
        (10, True),
        (14, False),
        (18, False),
        (20, True),
    ]
    for i, at in enumerate(whole[:-1]):
        resume = Resume(at.step, copied(at.tensors), list(at.losses))
        rest = kept(fit(run, training_data, CPU, start=start, resume=resume))
        assert [s.step for s in rest] == [s.step for s in whole[i + 1 :]]
        for ours, theirs in zip(rest, whole[i + 1 :], strict=True):
            assert ours.losses == theirs.losses
            assert_same(ours.tensors, theirs.tensors)


def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    training_data: TrainingData, make_run: Any
) -> None:
    first, again, other = (weights_of(make_run(COAL(), seed=s), training_data) for s in (0, 0, 1))
    assert_same(first, again)
    assert not any(
        torch.equal(first[n], other[n])
        for n in first
        if n.endswith("weight") and first[n].ndim == 2
    )


def test_the_global_random_state_neither_matters_nor_changes(
    training_data: TrainingData, make_run: Any
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = weights_of(make_run(Turns()), training_data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert_same(first, weights_of(make_run(Turns()), training_data))


def test_looking_at_a_snapshot_changes_nothing(training_data: TrainingData, make_run: Any) -> None:
    run = make_run(COAL())
    for snapshot in fit(run, training_data, CPU):
        assert snapshot.outputs.test.shape == (60, 3)
        assert snapshot.outputs.target.shape == (90, 3)
        assert snapshot.outputs.source_val.shape == (30, 3)
        looked = copied(snapshot.checkpoint())
    assert_same(looked, kept(fit(run, training_data, CPU))[-1].tensors)


def until_not_finite(run: Run, training_data: TrainingData) -> tuple[list[Kept], NotFinite]:
    """What was handed out, and the error that ended it."""
    seen: list[Kept] = []

    def watch() -> None:
        for snapshot in fit(run, training_data, CPU):
            seen.extend(kept(iter([snapshot])))

    with pytest.raises(NotFinite) as caught:
        watch()
    return seen, caught.value


def test_an_absurd_rate_stops_training_with_nothing_handed_out(
    training_data: TrainingData, make_run: Any
) -> None:
    seen, error = until_not_finite(make_run(lr=1e30, features_lr=1e30, pretrain=0), training_data)
    assert not seen
    assert error.what in ("the loss 'label' is not finite", "a weight is not finite")


def test_a_loss_that_turns_nan_stops_training_before_anything_is_saved(
    training_data: TrainingData, make_run: Any
) -> None:
    seen, error = until_not_finite(make_run(Broken(), rounds=4, pretrain=0), training_data)
    assert [s.step for s in seen] == [10, 20]
    assert all(torch.isfinite(v).all() for s in seen for v in s.tensors.values())
    assert (error.what, error.step) == ("the loss 'label' is not finite", 30)


@pytest.mark.parametrize("method", [SourceOnly(), COAL()], ids=lambda m: m.id)
def test_bf16_trains_weights_that_stay_float32(
    training_data: TrainingData, make_run: Any, method: Method
) -> None:
    last = kept(fit(make_run(method, precision="bf16"), training_data, CPU))[-1]
    assert all(torch.isfinite(torch.tensor(v)) for v in last.losses.values())
    assert {v.dtype for n, v in last.tensors.items() if n.endswith("weight")} == {torch.float32}
    exact = kept(fit(make_run(method), training_data, CPU))[-1]
    assert not torch.equal(
        last.tensors["net.features.0.weight"], exact.tensors["net.features.0.weight"]
    )


def test_a_phase_trains_only_what_it_names(training_data: TrainingData, make_run: Any) -> None:
    run = make_run(Turns(), pretrain=0, optimiser="adam")
    parts, _ = build(run.net, (8,), 3, run.seed)
    fresh = {
        f"{p}.{n}": v.detach() for p, module in parts.items() for n, v in module.named_parameters()
    }
    *_, last = fit(run, training_data, CPU)
    after = last.weights()
    assert all(torch.equal(after[n], fresh[n]) for n in fresh if n.startswith("features."))
    assert not torch.equal(after["head.prototypes.weight"], fresh["head.prototypes.weight"])
    counts = {
        part: last.checkpoint()[f"optim.count.{part}"].item()
        for part in ("features", "head", "critic")
    }
    assert counts == {"features": 0, "head": 30, "critic": 60}  # in 30 steps
    assert set(last.losses) == {"label", "critic"}


def test_a_round_begins_with_one_refresh(training_data: TrainingData, make_run: Any) -> None:
    rounds: list[tuple[int, torch.Size]] = []

    @dataclass(frozen=True, kw_only=True)
    class Curious(SourceOnly):
        id = "curious"

        def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
            rounds.append((round, outputs.target.shape))
            return {"seen": torch.tensor(float(round))}

    states = [
        s.tensors["state.seen"].item() for s in kept(fit(make_run(Curious()), training_data, CPU))
    ]
    assert rounds == [(r, torch.Size([90, 3])) for r in range(3)]
    assert states == [0, 1, 2]


def test_training_is_never_handed_a_target_label() -> None:
    hints = typing.get_type_hints(fit)
    assert hints["training_data"] is TrainingData
    assert set(inspect.signature(fit).parameters) == {
        "run",
        "training_data",
        "device",
        "start",
        "resume",
        "graph",
    }
    fields = typing.get_type_hints(TrainingData)
    assert fields == {
        "source": Labeled,
        "source_val": Labeled,
        "target": Unlabeled,
        "test_images": Unlabeled,
        "classes": tuple[str, ...],
        # of networks that were trained without a target label either
        "soft_labels": NDArray[np.float32] | None,
    }
    assert [f.name for f in dataclasses.fields(Unlabeled)] == ["x"]
    # nor does a batch, or what a method may ask of the network, carry one
    assert Batch._fields == ("xs", "ys", "xt", "it", "source_views", "target_views", "key")
    assert {n for n in vars(Outputs) if not n.startswith("_")} == {
        "target",
        "source_val",
        "source_val_y",
        "source_prior",
        "soft_labels",
    }


def test_a_stage_starts_from_the_weights_it_is_given(
    training_data: TrainingData, make_run: Any
) -> None:
    run = make_run(Turns(), lr=0.0, features_lr=0.0, weight_decay=0.0)
    start = {n: v + 1 for n, v in weights_of(run.before, training_data).items()}
    after = weights_of(run, training_data, start=start)
    assert_same({n: after[n] for n in start}, start)
    assert {n for n in after if n not in start} == {"critic.weight", "critic.bias"}


def test_a_later_stage_sees_other_batches_than_the_one_before(
    training_data: TrainingData, make_run: Any
) -> None:
    seen: list[list[int]] = []

    @dataclass(frozen=True, kw_only=True)
    class Noting(SourceOnly):
        id = "noting"

        def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
            seen.append(batch.it.tolist())
            return super().losses(net, batch, state, t)

    run = make_run(Noting(), rounds=1)
    for stage in (dataclasses.replace(run, plan=run.plan[1:]), run):
        list(fit(stage, training_data, CPU))
    alone, after = seen[:10], seen[10:]
    assert all(a != b for a, b in zip(alone, after, strict=True))
    assert all(a != b for a, b in pairwise(seen))


def test_pre_trained_weights_of_another_network_are_refused_and_not_passed_over() -> None:
    fresh = {
        "features.1.weight": torch.zeros(2),
        "head.bias": torch.zeros(1),
        "critic.bias": torch.ones(1),
    }
    start = {"features.1.weight": torch.ones(2), "head.bias": torch.ones(1)}
    assert built_on(start, fresh) == start | {"critic.bias": fresh["critic.bias"]}
    with pytest.raises(UserError, match=r"no features\.3\.weight"):
        built_on({"features.3.weight": torch.ones(2), "head.bias": torch.ones(1)}, fresh)
