"""MCD against its formula, in value and in gradient, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from formula import Formula, T, assert_is, given
from torch import Tensor

from askew.data.task import TrainingData
from askew.methods.base import Phase
from askew.methods.mcd import MCD
from askew.testing import check_method
from askew.training.trainer import fit

CPU = torch.device("cpu")


class TwoHeads(Formula):
    """Both heads on the features, or each behind `depth` layers of linear, batch norm (statistics 0
    and 1) and ReLU."""

    depth = 0

    def p(self, f: Tensor, head: str = "head") -> Tensor:
        neck = "neck1" if head == "head" else "neck2"
        for i in range(self.depth):
            scaled = self.linear(f"{neck}.{2 * i}", f) / (1 + 1e-5) ** 0.5
            f = (
                scaled * self.w[f"{neck}.{2 * i + 1}.weight"] + self.w[f"{neck}.{2 * i + 1}.bias"]
            ).clamp(min=0)
        return super().p(f, head)

    def labels(self) -> Tensor:
        return self.label(head="head") + self.label(head="head2")

    def discrepancy(self) -> Tensor:
        one, two = self.p(self.ft, "head"), self.p(self.ft, "head2")
        return (one - two).abs().sum() / one.numel()


@pytest.mark.parametrize("depth", [0, 2])
def test_the_losses_and_gradients_of_its_phases_are_those_of_the_formula(depth: int) -> None:
    method = MCD(weight=0.3, depth=depth)
    net, batch = given(method)
    f = TwoHeads(net, batch)
    f.depth = depth
    heads = {"head": 1, "head2": 1} | ({"neck1": 1, "neck2": 1} if depth else {})
    all_parts, labels, apart = {"features": 1} | heads, f.labels(), 0.3 * f.discrepancy()
    a, b, c = (phase.losses(net, batch, {}, T) for phase in method.phases())
    assert_is(a, f, {"label": (labels, all_parts)})
    assert_is(b, f, {"hold": (labels, all_parts), "disagree": (-apart, all_parts)})
    assert_is(c, f, {"agree": (apart, all_parts)})


def test_its_phases_train_all_then_the_heads_then_the_features_four_times() -> None:
    assert [(p.trains, p.repeat) for p in MCD().phases()] == [
        (None, 1),
        (("head", "head2"), 1),
        (("features",), 4),
    ]
    _, heads, features = MCD(depth=2, feature_steps=3).phases()
    assert set(heads.trains or ()) == {"head", "head2", "neck1", "neck2"}
    assert (features.trains, features.repeat) == (("features",), 3)


@dataclass(frozen=True, kw_only=True)
class Only(MCD):
    """One of MCD's phases, by itself."""

    id = "only"
    phase: int

    def phases(self) -> tuple[Phase, ...]:
        return (super().phases()[self.phase],)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_phase_moves_those_it_trains_and_no_other(
    training_data: TrainingData, make_run: Any, phase: int, depth: int
) -> None:
    heads = {"head", "head2"} | ({"neck1", "neck2"} if depth else set())
    weights = {}
    for rate in (0.0, 0.05):
        run = make_run(
            Only(phase=phase, depth=depth),
            pretrain=0,
            rounds=1,
            round_steps=2,
            lr=rate,
            features_lr=rate,
            weight_decay=0.0,
        )
        *_, last = fit(run, training_data, CPU)
        weights[rate] = {
            n: v.clone() for n, v in last.weights().items() if n.endswith((".weight", ".bias"))
        }
    fresh, after = weights.values()
    moved = {name.partition(".")[0] for name in fresh if not torch.equal(fresh[name], after[name])}
    assert moved == ({"features"} | heads, heads, {"features"})[phase]


def test_a_step_updates_heads_in_a_and_b_and_features_in_a_and_every_c(
    training_data: TrainingData, make_run: Any
) -> None:
    *_, last = fit(
        make_run(MCD(feature_steps=3), pretrain=0, rounds=1, optimiser="adam"), training_data, CPU
    )
    counts = {
        part: last.checkpoint()[f"optim.count.{part}"].item()
        for part in ("features", "head", "head2")
    }
    assert counts == {"features": 10 * (1 + 3), "head": 10 * 2, "head2": 10 * 2}
    assert set(last.losses) == {"label", "hold", "disagree", "agree"}


def test_heads_that_are_equal_agree() -> None:
    net, batch = given(MCD())
    net["head2"].load_state_dict(net["head"].state_dict())
    assert MCD().agree(net, batch, {}, T)["agree"].item() == 0


def test_its_prediction_is_the_mean_of_both_heads() -> None:
    net, batch = given(MCD())
    A, a, B, b, B2, b2 = (p.detach().numpy() for p in net.parameters())
    f = np.tanh(batch.xt.numpy() @ A.T + a)
    np.testing.assert_allclose(
        MCD().predict(net, batch.xt).detach(), f @ (B + B2).T / 2 + (b + b2) / 2, rtol=1e-9
    )


def test_its_prediction_goes_through_each_head_s_own_layers() -> None:
    method = MCD(depth=2)
    net, batch = given(method)
    f = TwoHeads(net, batch)
    f.depth = 2
    logs = f.p(f.ft, "head").log() + f.p(f.ft, "head2").log()
    want = logs.exp().sqrt() / logs.exp().sqrt().sum(
        dim=1, keepdim=True
    )  # softmax of the mean logit
    torch.testing.assert_close(method.predict(net, batch.xt).softmax(dim=1), want)


def test_deeper_heads_keep_the_contract() -> None:
    check_method(MCD(depth=2))
