"""Prototypes in a discriminative subspace, against the same written out in numpy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import MakeRun
from scipy.linalg import eigh

from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.methods.subspace import Subspace, nearest
from askew.testing import check_method
from askew.training.trainer import fit


def domains(
    sizes: list[int], target_sizes: list[int], far: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Classes in ten dimensions that vary most where they do not differ; the target lies
    elsewhere."""
    rng = np.random.default_rng(0)
    means, noise = 3 * rng.normal(size=(len(sizes), 10)), np.diag([9.0, 9, 9, 1, 1, 1, 1, 1, 1, 1])
    means[:, :3] = 0
    ys, yt = (np.repeat(np.arange(len(sizes)), n) for n in (sizes, target_sizes))
    xs, xt = (means[y] + rng.normal(size=(len(y), 10)) @ noise for y in (ys, yt))
    return xs, ys, xt + far, yt


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def written_out(xs: np.ndarray, ys: np.ndarray, xt: np.ndarray, method: Subspace) -> np.ndarray:
    """The class of each target image, class by class, in all components."""
    classes = range(ys.max() + 1)
    s = xs - np.mean([xs[ys == k].mean(axis=0) for k in classes], axis=0)
    t = xt - xt.mean(axis=0)

    def scatter(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        own = [x[y == k] for k in classes if (y == k).any()]
        return np.mean([x.T @ x / len(x) for x in own], axis=0), np.mean(
            [np.cov(x.T, bias=True) for x in own], axis=0
        )

    def moved(start: np.ndarray, g: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = []
        for k in classes:
            n = (y == k).sum()
            pull = n / (n + method.few) * unit(g[y == k].mean(axis=0)) if n else 0
            found.append(unit(method.anchor * start[k] + pull))
        return np.array(found)

    in_all, within = of_source = scatter(s, ys)
    chosen, labels = np.zeros(len(t), dtype=bool), np.zeros(len(t), dtype=int)
    for number in range(1, method.rounds + 1):
        ridge = method.shrinkage * np.trace(within) / len(within) * np.eye(len(within))
        w = eigh(in_all, within + ridge)[1][:, ::-1][:, : method.dimensions]
        of_image, g = unit(s @ w), unit(t @ w)
        start = unit(np.array([of_image[ys == k].mean(axis=0) for k in classes]))
        prototypes = moved(start, g[chosen], labels[chosen]) if chosen.any() else start
        for _ in range(method.steps):
            prototypes = moved(start, g, (g @ prototypes.T).argmax(axis=1))
        near = g @ prototypes.T
        labels, chosen = near.argmax(axis=1), np.zeros(len(t), dtype=bool)
        for k in classes:
            rows = np.flatnonzero(labels == k)
            best = sorted(rows, key=lambda i: -near[i].max())
            chosen[best[: math.ceil(Fraction(len(rows) * number, method.rounds))]] = True
        in_all, within = (
            (a + b) / 2 for a, b in zip(of_source, scatter(t[chosen], labels[chosen]), strict=True)
        )
    return t @ w @ prototypes.T


@pytest.mark.parametrize(
    "method",
    [
        Subspace(),
        Subspace(rounds=1),
        Subspace(rounds=3, dimensions=2, anchor=0.3, few=0, shrinkage=2, steps=2),
    ],
)
def test_logits_are_those_of_the_rounds_written_out(method: Subspace) -> None:
    xs, ys, xt, _ = domains([9, 12, 5], [8, 14, 20], far=2.0)
    found = method.fit(*map(torch.from_numpy, (xs, ys, xt)), 3)
    z = ((torch.from_numpy(xt) - found.target_centre) @ found.weight.T).numpy()
    wanted = written_out(xs, ys, xt, method)
    assert (z.argmax(axis=1) == wanted.argmax(axis=1)).all()
    assert unit(z) == pytest.approx(unit(wanted), abs=1e-7)


def test_it_follows_a_target_that_moved_and_whose_classes_have_other_shares() -> None:
    xs, ys, xt, yt = domains([60, 30, 10], [15, 30, 60], far=20.0)
    found = Subspace().fit(*map(torch.from_numpy, (xs, ys, xt)), 3)
    for x, y, centre in ((xt, yt, found.target_centre), (xs, ys, found.source_centre)):
        z = (torch.from_numpy(x) - centre) @ found.weight.T
        assert np.mean([(z.argmax(dim=1).numpy()[y == k] == k).mean() for k in range(3)]) > 0.9


def test_the_nearest_share_of_each_class_is_selected_and_one_image_at_least() -> None:
    nearness, labels = torch.tensor([0.1, 0.9, 0.5, 0.2, 0.3]), torch.tensor([0, 0, 0, 2, 0])
    assert nearest(nearness, labels, 1, 2).tolist() == [False, True, True, True, False]
    assert nearest(nearness, labels, 1, 10).tolist() == [False, True, False, True, False]
    assert nearest(nearness, labels, 3, 3).all()


def test_a_class_without_a_source_image_and_rows_that_are_all_alike_are_no_error() -> None:
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    for method in (Subspace(), Subspace(anchor=0, few=0)):
        assert method.fit(rows, torch.tensor([0, 0, 2, 2, 2, 0]), rows, 3).weight.isfinite().all()
        assert (
            method.fit(torch.ones(6, 4), torch.arange(6) % 3, torch.ones(5, 4), 3)
            .weight.isfinite()
            .all()
        )


def test_a_cosine_head_which_would_scale_classes_is_refused(
    make_run: MakeRun, training_data: TrainingData
) -> None:
    run = make_run(Subspace(), net="centred", head="cosine", pretrain=0)
    with pytest.raises(UserError, match="has an offset"):
        list(fit(run, training_data, torch.device("cpu")))


def test_it_keeps_the_contract() -> None:
    check_method(Subspace())
