"""SENTRY against its formula, in value and in gradient."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from formula import NT, C, Formula, T, assert_is, given, shannon
from torch import Tensor

from askew.methods.sentry import MEMORY, SENTRY, RecentLabels, selective_entropy
from askew.testing import check_method

BOTH = {"features": 1, "head": 1}


def best(p: Tensor) -> list[int]:
    return [row.index(max(row)) for row in p.tolist()]


def selective(views: list[Tensor], pseudo: list[int]) -> tuple[Tensor, Counter[int]]:
    """Image by image, and how often how many views agreed."""
    found, entropies, votes = [best(p) for p in views], [shannon(p) for p in views], Counter[int]()
    terms = []
    for i, y in enumerate(pseudo):
        agree, not_agree = (
            [v for v in range(3) if (found[v][i] == y) == says] for says in (True, False)
        )
        votes[len(agree)] += 1
        terms.append(entropies[agree[0]][i] if len(agree) >= 2 else -entropies[not_agree[0]][i])
    return torch.stack(terms).sum() / len(pseudo), votes


def test_its_losses_and_gradients_are_those_of_the_formula() -> None:
    method = SENTRY(weight=0.3, balance=0.2)
    net, batch = given(method)
    f = Formula(net, batch)
    plain, *views = (f.p(f.f(x)) for x in batch.target_views)
    entropy, votes = selective(views, best(plain))
    assert sum(votes[n] for n in (0, 1)) > 0 < sum(votes[n] for n in (2, 3)), (
        "some images are consistent, some not"
    )
    last = [*best(plain), *(k % C for k in range(MEMORY - NT))]
    balance = torch.stack(
        [plain[:, k].mean() * math.log(last.count(k) / MEMORY) for k in range(C)]
    ).sum()
    want = {
        "label": (f.label(), BOTH),
        "selective": (0.3 * entropy, BOTH),
        "balance": (0.2 * balance, BOTH),
    }
    assert_is(method.losses(net, batch, {}, T), f, want)


@pytest.mark.parametrize(("agreeing", "sign"), [((0, 1, 2), 1), ((0, 2), 1), ((1,), -1), ((), -1)])
def test_the_majority_of_the_views_decides_and_the_first_on_its_side_is_taken(
    agreeing: tuple[int, ...], sign: int
) -> None:
    """Views of one image, each with an entropy of its own."""
    sure = [
        torch.tensor([z, 0.0]) if v in agreeing else torch.tensor([0.0, z])
        for v, z in enumerate((1.0, 2.0, 3.0))
    ]
    first = agreeing[0] if sign == 1 else next(v for v in range(3) if v not in agreeing)
    p = torch.sigmoid(torch.tensor([1.0, 2.0, 3.0]))[first].item()
    entropy = -p * math.log(p) - (1 - p) * math.log(1 - p)
    found = selective_entropy(torch.stack(sure)[:, None], torch.tensor([0]))
    assert found.item() == pytest.approx(sign * entropy, rel=1e-5)


def test_a_step_makes_consistent_images_surer_and_the_others_less_sure() -> None:
    pseudo = torch.tensor([0, 0])
    z = torch.tensor(
        [[[1.0, 0, 0], [0, 1.0, 0]]] * 3, requires_grad=True
    )  # (views, images, classes)
    (g,) = torch.autograd.grad(selective_entropy(z, pseudo), z)
    before, after = (x.softmax(dim=-1).amax(dim=-1)[0] for x in (z, z - 0.1 * g))
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_shares_are_of_the_last_256_labels_and_even_at_first() -> None:
    recent = RecentLabels(4)
    torch.testing.assert_close(recent(torch.zeros(0, dtype=torch.int64)), torch.full((4,), 0.25))
    for labels in (torch.full((200,), 1), torch.full((100,), 2)):
        shares = recent(labels)
    torch.testing.assert_close(
        shares, torch.tensor([1, 156, 100, 1]) / 256
    )  # a class that is missing counts as one
    torch.testing.assert_close(recent(torch.full((300,), 3)), torch.tensor([1, 1, 1, 256]) / 256)


def test_a_class_predicted_often_is_made_less_probable() -> None:
    method = SENTRY(balance=1.0)
    net, batch = given(method)
    with torch.no_grad():
        net["recent"](torch.full((MEMORY,), 0))
        net["head"].bias[0] += 5
    loss = method.losses(net, batch, {}, T)["balance"]
    (g,) = torch.autograd.grad(loss, [net["head"].bias])
    assert g.argmax() == 0, "a step lowers the bias of class 0 most"


def test_it_keeps_the_contract() -> None:
    check_method(SENTRY(weight=3.0, balance=1.0))
