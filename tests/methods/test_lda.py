"""Discriminant analysis that moves to the target by EM, against the same written out in numpy."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conftest import MakeRun
from scipy.stats import multivariate_normal

from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.methods.lda import DiscriminantAnalysis, principal_components
from askew.runs.api import run as run_askew
from askew.testing import check_method
from askew.training.trainer import fit


def domains(
    sizes: list[int], target_sizes: list[int], far: float = 3.0, apart: float = 2.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gaussian classes in six dimensions; the target lies elsewhere, and its classes have other
    shares."""
    rng = np.random.default_rng(0)
    means, spread = apart * rng.normal(size=(len(sizes), 6)), rng.normal(size=(6, 6))
    ys, yt = (np.repeat(np.arange(len(sizes)), n) for n in (sizes, target_sizes))
    xs, xt = (means[y] + rng.normal(size=(len(y), 6)) @ spread for y in (ys, yt))
    return xs, ys, xt + far, yt


def written_out(
    xs: np.ndarray,
    ys: np.ndarray,
    xt: np.ndarray,
    anchor: float,
    few: float,
    shrinkage: float,
    steps: int,
    soft_labels: np.ndarray | None = None,
) -> np.ndarray:
    """Log-odds of the target's images, class by class and image by image, in all components."""
    classes = range(ys.max() + 1)
    of_class = [xs[ys == k] for k in classes]
    centre = np.mean([x.mean(axis=0) for x in of_class], axis=0)
    start = np.array([len(x) / (len(x) + few) * (x.mean(axis=0) - centre) for x in of_class])
    source = np.mean([np.cov(x.T, bias=True) for x in of_class], axis=0)
    g, mu, within = xt - xt.mean(axis=0), start, source

    def densities() -> np.ndarray:
        ridge = shrinkage * np.trace(within) / len(within) * np.eye(len(within))
        return np.stack(
            [multivariate_normal(mu[k], within + ridge).logpdf(g) for k in classes], axis=1
        )

    for _ in range(steps):
        p = np.exp(densities())
        r = p / p.sum(axis=1, keepdims=True) if soft_labels is None else soft_labels
        found = np.array([np.average(g, axis=0, weights=r[:, k]) for k in classes])
        share = np.array([r[:, k].sum() / (r[:, k].sum() + anchor) for k in classes])
        offset = np.average(found - start, axis=0, weights=share)
        mu = np.array(
            [s * f + (1 - s) * (m + offset) for s, f, m in zip(share, found, start, strict=True)]
        )
        apart = [
            [r[i, k] * np.outer(g[i] - mu[k], g[i] - mu[k]) for k in classes] for i in range(len(g))
        ]
        within = (source + np.sum(apart, axis=(0, 1)) / len(g)) / 2
    z = densities()
    return z - z[:, :1]


@pytest.mark.parametrize(
    ("anchor", "few", "shrinkage", "steps"), [(10, 5, 0.3, 0), (3, 0, 0.1, 1), (10, 5, 1, 6)]
)
def test_log_odds_are_those_of_gaussians_fitted_by_em(
    anchor: float, few: float, shrinkage: float, steps: int
) -> None:
    xs, ys, xt, _ = domains([9, 12, 5], [8, 4, 20])
    method = DiscriminantAnalysis(anchor=anchor, few=few, shrinkage=shrinkage, steps=steps)
    found = method.fit(*map(torch.from_numpy, (xs, ys, xt)), 3)
    assert found.bias is not None
    z = ((torch.from_numpy(xt) - found.target_centre) @ found.weight.T + found.bias).numpy()
    assert z - z[:, :1] == pytest.approx(
        written_out(xs, ys, xt, anchor, few, shrinkage, steps), abs=1e-8
    )


def test_given_the_answers_of_others_it_takes_one_step_from_them() -> None:
    xs, ys, xt, yt = domains([9, 12, 5], [8, 4, 20])
    soft_labels = 0.9 * np.eye(3)[yt] + 0.1 / 3
    method = DiscriminantAnalysis(anchor=3, few=2, shrinkage=0.1)
    found = method.fit(*map(torch.from_numpy, (xs, ys, xt)), 3, torch.from_numpy(soft_labels))
    assert found.bias is not None
    z = ((torch.from_numpy(xt) - found.target_centre) @ found.weight.T + found.bias).numpy()
    assert z - z[:, :1] == pytest.approx(
        written_out(xs, ys, xt, 3, 2, 0.1, 1, soft_labels), abs=1e-8
    )


def test_answers_in_the_training_data_reach_it(
    make_run: MakeRun, training_data: TrainingData
) -> None:
    run = make_run(DiscriminantAnalysis(), net="centred", head="linear", pretrain=0)
    soft_labels = np.eye(len(training_data.classes), dtype=np.float32)[
        np.zeros(len(training_data.target), dtype=np.int64)
    ]
    given = dataclasses.replace(training_data, soft_labels=soft_labels)
    first, second = (
        [*fit(run, data, torch.device("cpu"))][-1].outputs.target for data in (training_data, given)
    )
    assert not torch.allclose(first, second)


def test_it_follows_a_target_that_moved_and_whose_classes_have_other_shares() -> None:
    xs, ys, xt, yt = domains([60, 30, 6], [10, 30, 90], far=20.0, apart=8.0)
    found = DiscriminantAnalysis().fit(*map(torch.from_numpy, (xs, ys, xt)), 3)
    assert found.bias is not None
    for x, y, centre in ((xt, yt, found.target_centre), (xs, ys, found.source_centre)):
        z = (torch.from_numpy(x) - centre) @ found.weight.T + found.bias
        assert (z.argmax(dim=1).numpy() == y).mean() > 0.9


@pytest.mark.parametrize("rows", [4, 40])
def test_principal_components_are_orthogonal_and_keep_what_varies(rows: int) -> None:
    torch.manual_seed(0)
    s, t = torch.randn(rows, 12, dtype=torch.float64), torch.randn(rows, 12, dtype=torch.float64)
    basis = principal_components(s, torch.full((rows, 1), 1 / rows, dtype=torch.float64), t, 5)
    torch.testing.assert_close(basis.T @ basis, torch.eye(5, dtype=torch.float64))
    both = torch.cat([s, t])
    kept = torch.linalg.svdvals(both)[:5].square().sum()
    torch.testing.assert_close((both @ basis).square().sum(), kept)


def test_a_class_without_a_source_image_and_rows_that_are_all_alike_are_no_error() -> None:
    method = DiscriminantAnalysis()
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert method.fit(rows, torch.tensor([0, 0, 2, 2, 2, 0]), rows, 3).weight.isfinite().all()
    assert (
        method.fit(torch.ones(6, 4), torch.arange(6) % 3, torch.ones(5, 4), 3)
        .weight.isfinite()
        .all()
    )


def test_a_cosine_head_which_has_no_offset_is_refused(
    make_run: MakeRun, training_data: TrainingData
) -> None:
    run = make_run(DiscriminantAnalysis(), net="bare", head="cosine", pretrain=0)
    with pytest.raises(UserError, match="has an offset") as caught:
        list(fit(run, training_data, torch.device("cpu")))
    assert caught.value.hint == "-t head=linear."


def test_it_keeps_the_contract() -> None:
    check_method(DiscriminantAnalysis())


def test_each_domain_of_a_run_has_its_own_centre(
    make_run: MakeRun, training_data: TrainingData
) -> None:
    run = make_run(DiscriminantAnalysis(), net="centred", head="linear", pretrain=0)
    run = dataclasses.replace(run, net=dataclasses.replace(run.net, norm="split"))
    *_, last = fit(run, training_data, torch.device("cpu"))
    source, target = (
        torch.from_numpy(np.asarray(x)) for x in (training_data.source.x, training_data.target.x)
    )
    source, target = (torch.nn.functional.normalize(x, dim=1) for x in (source, target))
    wanted = DiscriminantAnalysis().fit(source, torch.from_numpy(training_data.source.y), target, 3)
    found = last.weights()
    assert wanted.target_centre is not None
    assert wanted.source_centre is not None
    torch.testing.assert_close(found["features.1.running_mean"], wanted.target_centre.float())
    torch.testing.assert_close(
        found["features.1.source_running_mean"], wanted.source_centre.float()
    )
    torch.testing.assert_close(found["head.weight"], wanted.weight.float(), rtol=1e-3, atol=1e-4)


def test_it_is_an_ordinary_run_on_pre_trained_features(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    short = {"pretrain": 20, "batch": 16}
    result = run_askew("mini/syn-uci", method="lda", training=short)
    assert 0 < result.scores["whole"]["per_class_mean"] < 100
