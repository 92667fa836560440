"""Prototypes: spherical k-means from the source's class means, against the same written out in
numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import MakeRun

from askew.data.task import TrainingData
from askew.methods.prototypes import Prototypes
from askew.runs.api import run as run_askew
from askew.testing import check_method
from askew.training.trainer import fit


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def written_out(
    xs: np.ndarray, ys: np.ndarray, xt: np.ndarray, anchor: float, steps: int
) -> np.ndarray:
    xs, xt = unit(xs), unit(xt)
    means = np.stack([xs[ys == k].mean(axis=0) for k in range(ys.max() + 1)])
    start = unit(means - means.mean(axis=0) + xt.mean(axis=0))
    w = start
    for _ in range(steps):
        near = np.array([max(range(len(w)), key=lambda k: x @ w[k]) for x in xt])
        w = unit(
            np.stack([anchor * start[k] + unit(xt[near == k].sum(axis=0)) for k in range(len(w))])
        )
    return w


@pytest.mark.parametrize(("anchor", "steps"), [(1.0, 0), (3.0, 1), (0.3, 7)])
def test_the_head_is_that_of_the_formula(anchor: float, steps: int) -> None:
    rng = np.random.default_rng(0)
    xs, xt, ys = rng.normal(size=(30, 5)), rng.normal(size=(40, 5)) + 0.3, np.arange(30) % 3
    w = Prototypes(anchor=anchor, steps=steps).fit(*map(torch.from_numpy, (xs, ys, xt)), 3).weight
    assert w.numpy() == pytest.approx(written_out(xs, ys, xt, anchor, steps), abs=1e-12)


def test_a_class_that_the_target_lacks_stays_where_it_began() -> None:
    ys = torch.arange(30) % 3
    fs = torch.eye(3)[ys].double() + 0.01 * torch.rand(30, 3, dtype=torch.float64)
    ft = fs[ys < 2]
    w, still = (Prototypes(steps=steps).fit(fs, ys, ft, 3).weight for steps in (20, 0))
    torch.testing.assert_close(w[2], still[2])
    assert set((ft @ w.T).argmax(dim=1).tolist()) == {0, 1}


def test_many_classes_far_from_their_source_keep_their_images_however_few() -> None:
    """Prototypes held in the source by the number of images would lose all of them to the few that
    move first."""
    rng = np.random.default_rng(0)
    centres, offset = rng.normal(size=(30, 64)), 4 * unit(rng.normal(size=64)) * np.sqrt(64)
    sizes = np.where(np.arange(30) < 3, 40, 6)
    ys, yt = np.repeat(np.arange(30), 5), np.repeat(np.arange(30), sizes)
    xs = centres[ys] + 0.3 * rng.normal(size=(len(ys), 64))
    xt = centres[yt] + offset + 0.3 * rng.normal(size=(len(yt), 64))
    w = Prototypes().fit(*map(torch.from_numpy, (xs, ys, xt)), 30).weight.numpy()
    right = (unit(xt) @ w.T).argmax(axis=1) == yt
    assert np.mean([right[yt == k].mean() for k in range(30)]) > 0.9


def test_it_keeps_the_contract() -> None:
    check_method(Prototypes())


def test_a_run_has_the_head_of_its_features(make_run: MakeRun, training_data: TrainingData) -> None:
    run = make_run(Prototypes(), net="bare", pretrain=0)
    *_, last = fit(run, training_data, torch.device("cpu"))
    source, target = (
        torch.from_numpy(np.asarray(x)) for x in (training_data.source.x, training_data.target.x)
    )
    wanted = Prototypes().fit(source, torch.from_numpy(training_data.source.y), target, 3).weight
    torch.testing.assert_close(last.weights()["head.prototypes.weight"], wanted)
    assert last.training_prior.tolist() == pytest.approx([1 / 3] * 3)


def test_it_is_an_ordinary_run_on_pre_trained_features(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    short = {"pretrain": 20, "batch": 16}
    result = run_askew("mini/syn-uci", method="prototypes", training=short)
    assert 0 < result.scores["whole"]["per_class_mean"] < 100
