"""Logistic regression on the source alone, every class counting alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import ClosedForm, LinearFit

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BalancedLogistic(ClosedForm):
    """Logistic regression on rows that are standardised by the source.

    Assumes: p(y|x) = q(y|x) where the target's rows lie. It learns nothing from the target.
    Minimises: Σ_i CE(W z_i + b, y_i)/(c·n_{y_i}) · n + ‖W‖²/(2C), z = (f − mean)/sd of the source's
        columns. The logits are divided by a temperature that five-fold cross-validation finds.
    Cites: F. Pedregosa et al., Scikit-learn: Machine Learning in Python, JMLR 2011.
    Use when: a strong baseline on tables and embeddings is needed, within a second.
    """

    id = "logistic"
    sees_target = False
    calibrated = True

    inverse_strength: Annotated[float, Between(1e-6), Search(0.01, 100, log=True)] = 1.0
    """C, the inverse of the penalty."""

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        """Fit on the source's rows. (n_s, d), (n_s,), (n_t, d)"""
        x, y = fs.cpu().double().numpy(), ys.cpu().numpy()
        scale = Standardise.of(x)
        weight, bias = fit_logistic(scale(x), y, classes, self.inverse_strength)
        t = self._temperature(scale(x), y, classes)
        return LinearFit(*scale.unfold(weight / t, bias / t))

    def _temperature(self, x: Floats, y: NDArray[np.int64], classes: int) -> float:
        """Calibrate by cross-validation. (n_s, d), (n_s,)"""
        logits, sizes = np.zeros((len(y), classes)), np.bincount(y, minlength=classes)
        for train, test in folds_by_class(y):
            weight, bias = fit_logistic(x[train], y[train], classes, self.inverse_strength)
            logits[test] = x[test] @ weight.T + bias
        return best_temperature(logits, y, 1 / sizes[y] / (sizes > 0).sum())


@dataclass(frozen=True, eq=False)
class Standardise:
    """Columns less their mean, over their standard deviation; constant ones stay as they are."""

    mean: Floats
    """(d,)"""
    sd: Floats
    """(d,)"""

    @classmethod
    def of(cls, x: Floats) -> Standardise:
        """Take mean and standard deviation from rows. (n, d)"""
        sd = x.std(axis=0)
        return cls(x.mean(axis=0), np.where(sd > 1e-12 * np.abs(x).max(axis=0), sd, 1.0))

    def __call__(self, x: Floats) -> Floats:
        """Standardise rows. (n, d) → (n, d)"""
        z: Floats = (x - self.mean) / np.maximum(self.sd, 1e-300)
        return z

    def unfold(self, weight: Floats, bias: Floats) -> tuple[Tensor, Tensor]:
        """Make a head for plain rows of one for standardised rows. (c, d), (c,)"""
        plain = weight / np.maximum(self.sd, 1e-300)
        return torch.from_numpy(plain), torch.from_numpy(bias - plain @ self.mean)


def fit_logistic(
    x: Floats, y: NDArray[np.int64], classes: int, inverse_strength: float = 1.0
) -> tuple[Floats, Floats]:
    """Fit balanced logistic regression; a class without rows is never predicted. (c, d), (c,)"""
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, NEVER)
    present = np.unique(y)
    if len(present) < 2:  # which scikit-learn refuses
        bias[present] = 0.0
        return weight, bias
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=inverse_strength, max_iter=300, tol=1e-3, class_weight="balanced")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    own, intercept = model.coef_, model.intercept_
    if len(model.classes_) == 2:  # scikit-learn keeps one row for two classes
        own, intercept = np.vstack([-own, own]) / 2, np.r_[-intercept, intercept] / 2
    weight[model.classes_], bias[model.classes_] = own, intercept
    return weight, bias


NEVER = -1e4
"""Logit of a class that has no row."""
FOLDS = 5


def folds_by_class(y: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Split rows class by class; where a class has one row, all rows are both."""
    from sklearn.model_selection import StratifiedKFold

    rows, sizes = np.arange(len(y)), np.bincount(y)
    folds = int(min(FOLDS, sizes[sizes > 0].min()))
    if folds < 2:
        return [(rows, rows)]
    return list(StratifiedKFold(folds, shuffle=True, random_state=0).split(rows, y))


def best_temperature(z: Floats, y: NDArray[np.int64], weight: Floats) -> float:
    """Find the temperature of least weighted log loss on a grid. (n, c), (n,), (n,)"""
    grid, rows = np.exp(np.linspace(-1.5, 4, 45)), np.arange(len(y))
    loss = [-(weight * np.log(softmax_rows(z / t)[rows, y] + 1e-9)).sum() for t in grid]
    return float(grid[int(np.argmin(loss))])


def softmax_rows(z: Floats) -> Floats:
    """Rows that sum to one. (n, c) → (n, c)"""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p
