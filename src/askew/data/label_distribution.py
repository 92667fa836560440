"""How far apart the label distributions of a task's two domains are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from askew.data import label_shift
from askew.data.task import Task

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelDistributions:
    """Images of each class, and what follows from them."""

    classes: tuple[str, ...]
    source: Counts
    target: Counts
    test: Counts

    @classmethod
    def of(cls, task: Task) -> LabelDistributions:
        """A task's. It uses target labels, so nothing may be selected by it."""
        c = len(task.training_data.classes)
        test = np.bincount(task.test_labels.y, minlength=c)
        target = test if task.test_labels.target_sizes is None else task.test_labels.target_sizes
        return cls(task.training_data.classes, task.training_data.source.sizes(c), target, test)

    @property
    def distance(self) -> float:
        """Jensen–Shannon distance of source and target label distribution, from 0 (equal) to 1
        (disjoint)."""
        return label_shift.js_distance(self.source, self.target)

    @property
    def bound(self) -> float:
        """The least sum of source and target error that features can reach which look alike in both
        domains.

        ε_S + ε_T ≥ ½ (d_JS(p(y), q(y)) − d_JS(p(x), q(x)))²,  here with d_JS(p(x), q(x)) = 0

        (Zhao et al., ICML 2019, Theorem 4.3, as the paper quotes it; d in bits, with which the
        theorem holds as well.)
        """
        return self.distance**2 / 2

    @staticmethod
    def ratio(sizes: Counts) -> float:
        """Largest to smallest class, of those that have images."""
        return float(sizes.max() / sizes[sizes > 0].min())
