"""Balanced logistic regression against scikit-learn's, on columns of any scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from askew.methods.logistic import BalancedLogistic
from askew.testing import check_method


def rows(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping classes in five columns of different scales."""
    rng, y = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(sizes), 5))[y] + rng.normal(size=(len(y), 5))
    return x * [1, 10, 0.1, 3, 1] + [0, 5, -3, 100, 1], y


def logits(
    x: np.ndarray, y: np.ndarray, at: np.ndarray, classes: int, **params: float
) -> np.ndarray:
    found = BalancedLogistic(**params).fit(*map(torch.from_numpy, (x, y, at)), classes)
    assert found.bias is not None
    z: np.ndarray = at @ found.weight.numpy().T + found.bias.numpy()
    return z


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p: np.ndarray = e / e.sum(axis=1, keepdims=True)
    return p


@pytest.mark.parametrize("sizes", [[40, 10, 25], [40, 8]])
@pytest.mark.parametrize("strength", [1.0, 0.05])
def test_logits_are_scikit_learn_s_on_standardised_columns_over_a_temperature(
    sizes: list[int], strength: float
) -> None:
    x, y = rows(sizes)
    model = LogisticRegression(C=strength, class_weight="balanced", tol=1e-10, max_iter=10_000)
    wanted = make_pipeline(StandardScaler(), model).fit(x, y).predict_log_proba(x)
    found = np.log(softmax(logits(x, y, x, len(sizes), inverse_strength=strength)))
    odds = [z[:, 1:] - z[:, :1] for z in (found, wanted)]
    temperature = (odds[1] * odds[0]).sum() / (odds[0] ** 2).sum()
    assert 0.2 < temperature < 60
    np.testing.assert_allclose(odds[0] * temperature, odds[1], atol=0.02)


def test_probabilities_are_calibrated_by_cross_validation() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 30)), np.arange(60) % 2
    p = softmax(logits(x, y, rng.normal(size=(500, 30)), 2))
    assert p.max(axis=1).mean() < 0.65, "labels by chance are right on half of other rows"


def test_classes_count_alike() -> None:
    x, y = rows([60, 6])
    plain = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y).predict(x)
    found = logits(x, y, x, 2).argmax(axis=1)
    assert (found[y == 1] == 1).mean() > (plain[y == 1] == 1).mean()


def test_columns_of_any_scale_give_the_same_predictions() -> None:
    x, y = rows([40, 10, 25])
    moved = x * 10.0 ** np.array([-8, -3, 0, 4, 9]) + [0, 1, 2, 3, 4]
    np.testing.assert_allclose(logits(moved, y, moved, 3), logits(x, y, x, 3), atol=1e-4)


def test_a_constant_column_counts_for_nothing() -> None:
    x, y = rows([40, 10, 25])
    flat = np.hstack([x, np.full((len(x), 1), 1e6)])
    np.testing.assert_allclose(logits(flat, y, flat, 3), logits(x, y, x, 3), atol=1e-6)


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_class_is_never_predicted(missing: int) -> None:
    x, y = rows([40, 10, 25])
    labels = np.delete(np.arange(4), missing)[y]
    assert missing not in logits(x, labels, 100 * x, 4).argmax(axis=1)


def test_one_class_alone_is_always_predicted() -> None:
    x, _ = rows([40])
    assert set(logits(x, np.full(40, 2), x, 3).argmax(axis=1)) == {2}


def test_it_keeps_the_contract() -> None:
    check_method(BalancedLogistic())
