"""The guided teacher against its formula, and what the given soft labels decide."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from formula import NT, C, Formula, T, assert_is, given
from test_teacher import CPU, EVEN, aligned, started, taught_run, trainer_of

from askew.data.task import TrainingData
from askew.methods.guided import GuidedTeacher
from askew.methods.teacher import PriorAwareTeacher
from askew.testing import check_method
from askew.training.trainer import fit


def given_soft_labels(rows: int = NT + 4) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).dirichlet([1.0] * C, size=rows))


def test_its_losses_and_gradients_are_those_of_the_formula() -> None:
    method = GuidedTeacher(weight=1.7, threshold=0.7, guidance=0.6, until=0.4)
    net, batch = given(method)
    batch = batch._replace(it=torch.arange(NT) + 3)  # other rows than the first
    soft_labels, f = given_soft_labels(), Formula(net, batch)
    q = f.taught(batch.target_views[1]).numpy()
    q = aligned(q, 0.95 * EVEN + 0.05 * q.mean(axis=0), method.floor)
    sure = [i for i in range(NT) if max(q[i]) > 0.7]
    p, w = f.p(f.ft), 1 - 0.1 / 0.4
    apart = [sum((p[i, k] - q[i, k]) ** 2 for k in range(C)) for i in sure]
    agree = (1 - w) * 1.7 / NT * torch.stack([torch.as_tensor(term) for term in apart]).sum()
    told = [-sum(soft_labels[i + 3, k] * p[i, k].log() for k in range(C)) for i in range(NT)]
    guided = w * 0.6 / NT * torch.stack([torch.as_tensor(term) for term in told]).sum()
    shares = {"features": 1, "head": 1}
    want = {"label": (f.label(), shares), "agree": (agree, shares), "soft": (guided, shares)}
    assert_is(method.losses(net, batch, {"soft": soft_labels}, T), f, want)


def test_from_the_set_progress_on_it_is_the_teacher() -> None:
    method, plain = GuidedTeacher(until=0.1, threshold=0.4), PriorAwareTeacher(threshold=0.4)
    late = torch.tensor(0.7)
    losses = method.losses(*given(method), {"soft": given_soft_labels()}, late)
    assert losses.pop("soft").item() == 0
    want = plain.losses(*given(plain), {}, late)
    assert {name: value.item() for name, value in losses.items()} == {
        n: v.item() for n, v in want.items()
    }


@pytest.mark.parametrize("options", [{}, {"until": 1.0}, {"confusion": True, "calm": True}])
def test_it_keeps_the_contract(options: Any) -> None:
    check_method(GuidedTeacher(**options))


def answered(data: TrainingData) -> TrainingData:
    """With soft labels that name one class for all images but one."""
    y = np.zeros(len(data.target), dtype=np.int64)
    y[5] = 1
    return dataclasses.replace(
        data, soft_labels=np.eye(len(data.classes), dtype=np.float32)[y] * 0.9 + 0.01
    )


def test_the_first_even_draw_goes_by_the_given_soft_labels_and_later_ones_by_its_own(
    training_data: TrainingData, make_run: Any
) -> None:
    data = answered(training_data)
    run = taught_run(make_run, method=GuidedTeacher())
    trainer = trainer_of(run, data, started(run, data))
    trainer.refresh(0)
    assert trainer.pseudo is not None
    assert torch.nonzero(trainer.pseudo).flatten().tolist() == [5]
    trainer.refresh(1)
    assert trainer.pseudo.tolist() == trainer.outputs().target.argmax(dim=1).tolist()
    assert data.soft_labels is not None
    np.testing.assert_array_equal(trainer.state["soft"], data.soft_labels)  # they stay


def test_answers_of_others_are_followed(training_data: TrainingData, make_run: Any) -> None:
    data = answered(training_data)
    run = taught_run(make_run, method=GuidedTeacher(guidance=10.0, until=1.0, threshold=1.0))
    *_, last = fit(run, data, CPU, start=started(run, data))
    alone = taught_run(make_run, method=GuidedTeacher(guidance=0.0, threshold=1.0))
    *_, other = fit(alone, data, CPU, start=started(alone, data))
    named, unnamed = (
        (one.outputs.target.argmax(dim=1) == 0).float().mean() for one in (last, other)
    )
    assert named > unnamed + 0.2, "more images are called what they were said to be"


def test_without_answers_it_begins_with_those_of_the_network(
    training_data: TrainingData, make_run: Any
) -> None:
    run = taught_run(make_run, method=GuidedTeacher())
    trainer = trainer_of(run, training_data, started(run, training_data))
    before = trainer.outputs().target.softmax(dim=1)
    trainer.refresh(0)
    torch.testing.assert_close(trainer.state["soft"], before)
