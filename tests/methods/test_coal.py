"""COAL against the paper's formulas, written out on their own, in value and in gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from askew.methods.base import Batch, Losses, State, join_domains
from askew.methods.coal import COAL
from askew.nets.heads import CosineHead
from askew.nets.network import Net
from askew.testing import check_method

N, D, W, C, TARGET = 12, 5, 4, 3, 30
TEMPERATURE = 0.2
T = torch.tensor(0.5)


class Given(NamedTuple):
    net: Net
    batch: Batch
    state: dict[str, Tensor]


@pytest.fixture
def given() -> Given:
    """A network without dropout, so that the formula can be written out; half of the target is
    trusted."""
    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(D, W), nn.Tanh())
    net = Net(
        {"features": features, "head": CosineHead(W, C, TEMPERATURE)}, W, split_norm=False
    ).double()
    x = torch.randn(2, N, D, dtype=torch.float64)
    state = {"pseudo": torch.randint(C, (TARGET,)), "mask": (torch.rand(TARGET) < 0.5).double()}
    return Given(
        net, Batch(x[0], torch.arange(N) % C, x[1] + 0.5, torch.randperm(TARGET)[:N]), state
    )


class Paper:
    """L_ST and L_H as the paper has them, from weights alone: h(x) = softmax(f·w/(T‖f‖)), f =
    tanh(Ax + a)."""

    def __init__(self, given: Given) -> None:
        self.weights = [p.detach().clone().requires_grad_() for p in given.net.parameters()]
        A, a, self.prototypes = self.weights
        self.batch, self.state = given.batch, given.state
        self.fs, self.ft = (torch.tanh(x @ A.T + a) for x in (self.batch.xs, self.batch.xt))

    def log_h(self, f: Tensor) -> Tensor:
        cosine = (f @ self.prototypes.T) / f.pow(2).sum(dim=1, keepdim=True).sqrt()
        return torch.log(torch.softmax(cosine / TEMPERATURE, dim=1))

    def label(self) -> Tensor:
        log_h = self.log_h(self.fs)
        return -torch.stack([log_h[i, y] for i, y in enumerate(self.batch.ys.tolist())]).mean()

    def self_training(self) -> Tensor:
        """The mean is over the batch, of which the untrusted are a part."""
        log_h = self.log_h(self.ft)
        each = [
            -self.state["mask"][row] * log_h[i, self.state["pseudo"][row]]
            for i, row in enumerate(self.batch.it.tolist())
        ]
        return torch.stack(each).sum() / N

    def entropy(self) -> Tensor:
        log_h = self.log_h(self.ft)
        return -(log_h.exp() * log_h).sum() / N

    def gradients(self, of: Tensor) -> list[Tensor]:
        return list(
            torch.autograd.grad(of, self.weights, retain_graph=True, materialize_grads=True)
        )


def gradients(net: Net, losses: Losses) -> list[Tensor]:
    total = torch.stack(list(losses.values())).sum()
    return list(torch.autograd.grad(total, list(net.parameters()), materialize_grads=True))


def assert_equal(found: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


# What is minimised


def test_its_losses_are_the_papers(given: Given) -> None:
    losses, paper = COAL(alpha=0.3).losses(*given, T), Paper(given)
    assert list(losses) == ["label", "self", "entropy"]
    assert losses["label"].item() == pytest.approx(paper.label().item())
    assert losses["self"].item() == pytest.approx(paper.self_training().item())
    assert losses["entropy"].item() == pytest.approx(-0.3 * paper.entropy().item())


def test_its_losses_are_the_papers_in_numpy(given: Given) -> None:
    A, a, prototypes = (p.detach().numpy() for p in given.net.parameters())
    batch, state = (
        (np.asarray(v) for v in given.batch[:4]),
        {k: v.numpy() for k, v in given.state.items()},
    )
    xs, ys, xt, it = batch

    def h(x: np.ndarray) -> np.ndarray:
        f = np.tanh(x @ A.T + a)
        z = np.exp(f @ prototypes.T / (TEMPERATURE * np.linalg.norm(f, axis=1, keepdims=True)))
        probability: np.ndarray = z / z.sum(axis=1, keepdims=True)
        return probability

    rows = np.arange(N)
    losses = COAL(alpha=0.3).losses(*given, T)
    assert losses["label"].item() == pytest.approx(np.mean(-np.log(h(xs)[rows, ys])))
    trusted = np.mean(-np.log(h(xt)[rows, state["pseudo"][it]]) * state["mask"][it])
    assert losses["self"].item() == pytest.approx(trusted)
    assert losses["entropy"].item() == pytest.approx(
        -0.3 * np.mean(-(h(xt) * np.log(h(xt))).sum(axis=1))
    )


def test_the_classifier_descends_l_st_minus_l_h_and_the_features_l_st_plus_l_h(
    given: Given,
) -> None:
    alpha, paper = 0.3, Paper(given)
    found = gradients(given.net, COAL(alpha=alpha).losses(*given, T))
    st, h = paper.gradients(paper.label() + paper.self_training()), paper.gradients(paper.entropy())
    features = [s + alpha * e for s, e in zip(st[:2], h[:2], strict=True)]
    classifier = [s - alpha * e for s, e in zip(st[2:], h[2:], strict=True)]
    assert_equal(found, [*features, *classifier])
    assert all(e.abs().max() > 1e-4 for e in h), "the entropy has a say in this comparison"


def test_a_step_raises_the_entropy_by_the_head_and_lowers_it_by_the_features(given: Given) -> None:
    grads = gradients(given.net, {"entropy": COAL(alpha=1.0).losses(*given, T)["entropy"]})
    before = Paper(given).entropy().item()
    for moved, sign in ((slice(0, 2), -1), (slice(2, 3), 1)):
        params = list(given.net.parameters())
        with torch.no_grad():
            for p, g in zip(params[moved], grads[moved], strict=True):
                p -= 1e-4 * g
            change = Paper(given).entropy().item() - before
            for p, g in zip(params[moved], grads[moved], strict=True):
                p += 1e-4 * g
        assert sign * change > 0


def test_an_untrusted_image_teaches_no_label(given: Given) -> None:
    nothing = given.state | {"mask": torch.zeros(TARGET, dtype=torch.float64)}
    term = {"self": COAL().losses(given.net, given.batch, nothing, T)["self"]}
    assert term["self"].item() == 0
    assert not any(g.any() for g in gradients(given.net, term))


# Switches


@pytest.mark.parametrize(
    ("switches", "left"),
    [
        ({"self_training": False}, ["label", "entropy"]),
        ({"minimax": False}, ["label", "self"]),
        ({"self_training": False, "minimax": False}, ["label"]),
    ],
)
def test_a_switch_removes_its_term_and_no_other(
    given: Given, switches: Any, left: list[str]
) -> None:
    whole, some = COAL().losses(*given, T), COAL(**switches).losses(*given, T)
    assert list(some) == left
    assert all(some[name].item() == whole[name].item() for name in left)


def test_without_self_training_the_state_is_not_read(given: Given) -> None:
    assert COAL(self_training=False).losses(given.net, given.batch, {}, T)


def test_one_update_has_one_phase_and_two_updates_have_two(given: Given) -> None:
    assert len(COAL().phases()) == 1
    first, second = COAL(updates="two").phases()
    assert list(first.losses(*given, T)) == ["label", "self"]
    assert list(second.losses(*given, T)) == ["entropy"]
    assert first.trains is second.trains is None
    assert len(COAL(updates="two", minimax=False).phases()) == 1, (
        "there is nothing to do in a second"
    )


def test_the_terms_of_two_updates_are_those_of_one(given: Given) -> None:
    whole = COAL(alpha=0.3).losses(*given, T)
    parts: Losses = {}
    for phase in COAL(alpha=0.3, updates="two").phases():
        parts |= phase.losses(*given, T)
    torch.testing.assert_close(parts, whole)
    assert_equal(gradients(given.net, parts), gradients(given.net, whole))


# Batch statistics


@pytest.mark.parametrize("split", [False, True])
def test_batch_statistics_are_of_both_domains_together_or_of_each_by_itself(
    given: Given, split: bool
) -> None:
    norm = nn.BatchNorm1d(D, affine=False).double()
    net = Net({"features": norm, "head": nn.Identity()}, D, split_norm=split)
    xs, xt = given.batch.xs, given.batch.xt
    pools = (
        [(xs, xs), (xt, xt)] if split else [(xs, torch.cat([xs, xt])), (xt, torch.cat([xs, xt]))]
    )
    for f, (x, pool) in zip(join_domains(net, given.batch), pools, strict=True):
        torch.testing.assert_close(
            f, (x - pool.mean(dim=0)) / (pool.var(dim=0, correction=0) + 1e-5).sqrt()
        )


# Pseudo-labels


class DomainOutputs(NamedTuple):
    target: Tensor
    source_val: Tensor = torch.zeros(0, C)
    source_val_y: Tensor = torch.zeros(0, dtype=torch.int64)


def refreshed(method: COAL, logits: Tensor, round: int) -> State:
    return method.refresh(DomainOutputs(logits), round)


def test_pseudo_labels_are_the_most_probable_classes_and_masks_the_top_k_of_each() -> None:
    logits = 3 * torch.randn(
        200, C, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    state = refreshed(COAL(k0=0.2), logits, 0)
    p = np.exp(logits.numpy())
    p /= p.sum(axis=1, keepdims=True)
    pseudo, confidence = p.argmax(axis=1), p.max(axis=1)
    assert state["pseudo"].tolist() == pseudo.tolist()
    for k in range(C):
        members = np.flatnonzero(pseudo == k)
        trusted = set(
            members[np.argsort(-confidence[members])][: int(np.ceil(0.2 * len(members)))].tolist()
        )
        assert set(np.flatnonzero(state["mask"].numpy() * (pseudo == k)).tolist()) == trusted
        assert 0 < len(trusted) < len(members)


def test_a_rare_and_doubtful_class_has_its_share_too() -> None:
    logits = torch.tensor([[9.0, 0, 0]] * 90 + [[0, 0.1, 0]] * 10)
    state = refreshed(COAL(k0=0.1), logits, 0)
    assert state["mask"][:90].sum() == 9
    assert state["mask"][90:].sum() == 1


def test_the_share_grows_by_k_step_a_round_up_to_k_max() -> None:
    logits = torch.stack(
        [torch.linspace(0, 5, 100), torch.zeros(100), torch.full((100,), -1.0)], dim=1
    )
    method = COAL(k0=0.2, k_step=0.05, k_max=0.5)
    trusted = [int(refreshed(method, logits, round)["mask"].sum()) for round in range(10)]
    assert trusted == [20, 25, 30, 35, 40, 45, 50, 50, 50, 50]
    masks = [refreshed(method, logits, round)["mask"] for round in (0, 3)]
    assert (masks[0] <= masks[1]).all(), "who is trusted once stays trusted while logits stay"


def test_a_first_share_above_k_max_is_k_max() -> None:
    logits = torch.stack([torch.linspace(1, 5, 100), torch.zeros(100)], dim=1)
    assert refreshed(COAL(k0=0.5, k_max=0.3), logits, 0)["mask"].sum() == 30


# The contract


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"updates": "two"},
        {"minimax": False},
        {"self_training": False},
        {"alpha": 2.0, "k0": 1.0},
    ],
)
def test_it_keeps_the_contract(options: Any) -> None:
    check_method(COAL(**options))
