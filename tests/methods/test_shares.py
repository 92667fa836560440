"""Share-aware Gaussians: each equation of EM, the votes and the head, written out in numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.linear_model import LogisticRegression

from askew.methods.base import LinearFit
from askew.methods.shares import Moments, ShareAware, gaussian_head
from askew.testing import check_method

Array = np.ndarray


class Domains(NamedTuple):
    xs: Array
    ys: Array
    xt: Array
    yt: Array


def domains(
    sizes: list[int], target_sizes: list[int], *, far: float = 0.7, d: int = 6, apart: float = 1.0
) -> Domains:
    """Gaussian classes, and a target that lies elsewhere with other class shares."""
    rng = np.random.default_rng(0)
    means, spread = apart * rng.normal(size=(len(sizes), d)), rng.normal(size=(d, d)) / d**0.5
    ys, yt = (np.repeat(np.arange(len(sizes)), n) for n in (sizes, target_sizes))
    xs, xt = (means[y] + rng.normal(size=(len(y), d)) @ spread for y in (ys, yt))
    return Domains(xs, ys, xt + far, yt)


THREE = domains([12, 30, 8], [25, 5, 20])


def fitted(method: ShareAware, data: Domains, classes: int, dtype: str = "float64") -> LinearFit:
    xs, xt = (torch.from_numpy(x.astype(dtype)) for x in (data.xs, data.xt))
    return method.fit(xs, torch.from_numpy(data.ys), xt, classes)


class Em(NamedTuple):
    """What one method of EM holds, in the columns of its input."""

    means: Array
    within: Array
    shares: Array
    offset: Array
    logits: Array
    """Of the target's rows, for equal shares."""


def source_moments(xs: Array, ys: Array, classes: int, few: float) -> tuple[Array, Array, Array]:
    """Centre, drawn means and covariance, class by class."""
    of_class = [xs[ys == k] for k in range(classes)]
    centre = np.mean([x.mean(axis=0) for x in of_class], axis=0)
    means = [len(x) / (len(x) + few) * (x.mean(axis=0) - centre) for x in of_class]
    return centre, np.array(means), np.mean([np.cov(x.T, bias=True) for x in of_class], axis=0)


def written_out(data: Domains, method: ShareAware, anchor: float, steps: int) -> Em:
    """EM row by row and class by class."""
    c, n = data.ys.max() + 1, len(data.xt)
    centre, start, source = source_moments(data.xs, data.ys, c, method.few)
    g, within, pi = data.xt - centre, source, np.full(c, 1 / c)
    offset = g.mean(axis=0)
    mu = start + offset

    def log_densities() -> Array:
        ridge = method.shrinkage * np.trace(within) / len(within) * np.eye(len(within))
        return np.stack(
            [multivariate_normal(mu[k], within + ridge).logpdf(g) for k in range(c)], axis=1
        )

    for _ in range(steps):
        p = pi * np.exp(log_densities())
        r = p / p.sum(axis=1, keepdims=True)
        size = [sum(r[i, k] for i in range(n)) for k in range(c)]
        mean = np.array([sum(r[i, k] * g[i] for i in range(n)) / size[k] for k in range(c)])
        pi = np.array([(size[k] + 1) / (n + c) for k in range(c)])
        offset = sum(size[k] * (mean[k] - start[k]) for k in range(c)) / n
        mu = np.array(
            [
                (size[k] * mean[k] + anchor * (start[k] + offset)) / (size[k] + anchor)
                for k in range(c)
            ]
        )
        apart = sum(
            r[i, k] * np.outer(g[i] - mu[k], g[i] - mu[k]) for i in range(n) for k in range(c)
        )
        within = (source + apart / n) / 2
    return Em(mu, within, pi, offset, log_densities())


def odds(logits: Array) -> Array:
    """Log-odds to the first class, which leave out what all classes share."""
    return logits - logits[:, :1]


# --- EM ---


def test_source_moments_are_those_of_classes_that_count_alike() -> None:
    centre, means, within = source_moments(THREE.xs, THREE.ys, 3, 5.0)
    found = Moments.of(THREE.xs, THREE.ys, 3, 5.0)
    np.testing.assert_allclose(found.centre, centre, atol=1e-12)
    np.testing.assert_allclose(found.means, means, atol=1e-12)
    np.testing.assert_allclose(found.within, within, atol=1e-12)


def test_a_head_has_the_log_odds_of_gaussians_with_equal_shares() -> None:
    centre, means, within = source_moments(THREE.xs, THREE.ys, 3, 0.0)
    weight, bias = gaussian_head(means, within, centre, 0.2)
    full = within + 0.2 * np.trace(within) / len(within) * np.eye(len(within))
    logs = [multivariate_normal(m + centre, full).logpdf(THREE.xt) for m in means]
    np.testing.assert_allclose(
        odds(THREE.xt @ weight.T + bias), odds(np.stack(logs, axis=1)), atol=1e-8
    )


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("anchor", [0.5, 20.0])
def test_every_step_of_em_is_the_formula(steps: int, anchor: float) -> None:
    method = ShareAware(steps=steps, shrinkage=0.1, few=2.0)
    source = Moments.of(THREE.xs, THREE.ys, 3, method.few)
    found = method._move(source, THREE.xt, anchor)
    wanted = written_out(THREE, method, anchor, steps)
    np.testing.assert_allclose(found.shares, wanted.shares, atol=1e-10)
    np.testing.assert_allclose(found.offset, wanted.offset, atol=1e-10)
    weight, bias = gaussian_head(wanted.means, wanted.within, source.centre, method.shrinkage)
    np.testing.assert_allclose(found.weight, weight, atol=1e-8)  # of means and covariance
    np.testing.assert_allclose(found.bias, bias, atol=1e-8)
    logits = THREE.xt @ found.weight.T + found.bias
    np.testing.assert_allclose(odds(logits), odds(wanted.logits), atol=1e-7)


def test_steps_change_the_result() -> None:
    source = Moments.of(THREE.xs, THREE.ys, 3, 5.0)
    one, two = (ShareAware(steps=n)._move(source, THREE.xt, 20.0).shares for n in (1, 2))
    assert np.abs(one - two).max() > 1e-3


# --- the head that is saved ---


def test_the_head_is_the_weighted_mean_of_its_parts_on_standardised_columns() -> None:
    method = ShareAware()
    tensors = [torch.from_numpy(x) for x in (THREE.xs, THREE.ys, THREE.xt)]
    stacked = method.stack(*tensors, 3)
    mean, sd = THREE.xs.mean(axis=0), THREE.xs.std(axis=0)
    z = THREE._replace(xs=(THREE.xs - mean) / sd, xt=(THREE.xt - mean) / sd)
    centre, *_ = source_moments(z.xs, z.ys, 3, method.few)
    heads = []
    for anchor in (method.anchor, method.firm_anchor):
        em = written_out(z, method, anchor, method.steps)
        heads.append(gaussian_head(em.means, em.within, centre, method.shrinkage))
    regression = LogisticRegression(class_weight="balanced", tol=1e-3, max_iter=300).fit(z.xs, z.ys)
    heads.append((regression.coef_, regression.intercept_))
    logits = [z.xt @ weight.T + bias for weight, bias in heads]
    counts = (stacked.votes / stacked.temperatures).numpy()
    wanted = sum(v * one for v, one in zip(counts, logits, strict=True))
    found = THREE.xt @ stacked.weight.numpy().T + stacked.bias.numpy()
    np.testing.assert_allclose(odds(found), odds(np.asarray(wanted)), atol=1e-6)


def test_votes_and_shares_sum_to_one() -> None:
    tensors = [torch.from_numpy(x) for x in (THREE.xs, THREE.ys, THREE.xt)]
    found = ShareAware().stack(*tensors, 3)
    for values, length in ((found.votes, 3), (found.shares, 3)):
        assert values.shape == (length,)
        assert (values > 0).all()
        assert values.sum().item() == pytest.approx(1)


def test_gaussians_that_do_not_fit_moved_source_rows_count_less() -> None:
    """Rows around their means are Gaussian; rows on a circle around another class are not."""
    method, rng = ShareAware(), np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 200)
    ring = 6 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    round_rows = np.concatenate([rng.normal(size=(200, 2)), ring + 0.1 * rng.normal(size=(200, 2))])
    gaussian = np.concatenate([rng.normal(size=(200, 2)), rng.normal(size=(200, 2)) + 4])
    y = np.repeat([0, 1], 200)
    votes = []
    for x in (gaussian, round_rows):
        source = Moments.of(x, y, 2, method.few)
        moved = [method._move(source, x, method.anchor)]
        head = moved[0]._replace(bias=moved[0].bias - np.array([0.0, 50.0]))
        votes.append([float(method._votes(x, y, 2, heads)[0][0]) for heads in (moved, [head])])
    assert votes[0][1] < votes[0][0], "a head that is wrong on moved source rows"
    assert votes[0][0] > votes[1][0], "a family that is unlikely on held-out source rows"


def test_it_follows_reversed_shares_and_estimates_them() -> None:
    data = domains([180, 20], [20, 180], far=1.0, apart=1.5)
    tensors = [torch.from_numpy(x) for x in (data.xs, data.ys, data.xt)]
    found = ShareAware().stack(*tensors, 2)
    assert np.abs(found.shares.numpy() - [0.1, 0.9]).sum() < 0.15
    # Logistic regression, which does not move, has a part of the mean.
    moved = found.offset.numpy() / found.votes.numpy()[:2].sum()
    np.testing.assert_allclose(moved, np.full(6, 1.0), atol=0.3)
    z = torch.from_numpy(data.xt) @ found.weight.T + found.bias
    assert (z.argmax(dim=1).numpy() == data.yt).mean() > 0.9


# --- poor data ---


def assert_finite(found: LinearFit) -> None:
    assert found.bias is not None
    assert found.source_centre is not None
    for value in (found.weight, found.bias, found.source_centre):
        assert value.isfinite().all()


def test_a_class_without_rows_is_predicted_nowhere() -> None:
    labels = np.where(THREE.ys == 2, 3, THREE.ys)  # no row of class 2, of four
    found = fitted(ShareAware(), THREE._replace(ys=labels), 4)
    assert_finite(found)
    assert found.bias is not None
    z = torch.from_numpy(THREE.xt) @ found.weight.T + found.bias
    assert 2 not in z.argmax(dim=1).tolist()


def test_a_class_of_one_row_is_no_error() -> None:
    rows = np.r_[0:12, 12:42, 42:43]
    assert_finite(fitted(ShareAware(), THREE._replace(xs=THREE.xs[rows], ys=THREE.ys[rows]), 3))


def test_a_constant_column_counts_for_nothing() -> None:
    plain = fitted(ShareAware(shrinkage=0.001), THREE, 3)
    flat = [np.hstack([x, np.full((len(x), 1), 7.0)]) for x in (THREE.xs, THREE.xt)]
    found = fitted(ShareAware(shrinkage=0.001), THREE._replace(xs=flat[0], xt=flat[1]), 3)
    assert_finite(found)
    np.testing.assert_allclose(found.weight[:, -1], 0, atol=1e-9)
    np.testing.assert_allclose(found.weight[:, :-1], plain.weight, rtol=0.01, atol=0.01)


def test_rows_of_more_columns_than_rows_are_reduced_to_components() -> None:
    data = domains([12, 12, 12], [20, 5, 11], d=80, apart=2.0)
    found = fitted(ShareAware(components=30), data, 3)
    assert_finite(found)
    assert found.weight.shape == (3, 80)
    assert np.linalg.matrix_rank(found.weight.numpy()) <= 3
    z = torch.from_numpy(data.xt) @ found.weight.T + found.bias
    assert (z.argmax(dim=1).numpy() == data.yt).mean() > 0.9


def test_rows_of_single_precision_give_the_same_head() -> None:
    one, two = (fitted(ShareAware(), THREE, 3, dtype) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(one.weight, two.weight, rtol=1e-3, atol=1e-3)


def test_columns_of_any_scale_give_the_same_logits() -> None:
    scale, move = 10.0 ** np.arange(-3, 3), np.arange(6) * 100.0
    moved = [x * scale + move for x in (THREE.xs, THREE.xt)]
    plain, found = (
        fitted(ShareAware(), THREE, 3),
        fitted(ShareAware(), THREE._replace(xs=moved[0], xt=moved[1]), 3),
    )
    assert plain.bias is not None
    assert found.bias is not None
    ours = THREE.xt @ plain.weight.numpy().T + plain.bias.numpy()
    theirs = moved[1] @ found.weight.numpy().T + found.bias.numpy()
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_source_rows_are_moved_by_the_offset_before_the_head() -> None:
    tensors = [torch.from_numpy(x) for x in (THREE.xs, THREE.ys, THREE.xt)]
    found, stacked = ShareAware().fit(*tensors, 3), ShareAware().stack(*tensors, 3)
    assert found.source_centre is not None
    assert torch.equal(found.source_centre, -stacked.offset)
    assert found.target_centre is not None
    assert not found.target_centre.any()


def test_it_keeps_the_contract() -> None:
    check_method(ShareAware())
