"""Small domains in memory, and the training data that they make."""

from __future__ import annotations

import numpy as np

from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TrainingData, make_unlabeled_task


def stripes(n: int, seed: int) -> Labeled:
    """n images in colour, with a bright stripe in a place for each of three classes, in noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.integers(0, 120, (n, 3, 32, 32))
    for k in range(3):
        x[y == k, :, 6 + 8 * k : 10 + 8 * k] += 100
    return Labeled(x.astype(np.uint8), y.astype(np.int64))


def training_data_of(
    source: Labeled,
    source_val: Labeled,
    target: Labeled,
    test: Labeled,
    classes: tuple[str, ...] = ("a", "b", "c"),
) -> TrainingData:
    """Training data of four labelled domains, the last two without their labels."""
    return TrainingData(source, source_val, target.unlabeled(), test.unlabeled(), classes)


def wide_task(classes: int) -> Task:
    """Two rows of each of so many classes, and as many without labels."""
    x = np.random.default_rng(0).normal(size=(2 * classes, 8)).astype(np.float32)
    names = tuple(f"class {k}" for k in range(classes))
    y = np.arange(2 * classes) % classes
    return make_unlabeled_task("own/rows", Labeled(x, y), Unlabeled(x), names)
