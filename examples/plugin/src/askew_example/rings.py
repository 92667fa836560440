"""A benchmark of another package: three noisy rings in the plane, of which the target's are turned
and shifted."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

from askew.data import label_shift
from askew.data.domains import Labeled
from askew.data.task import Info, Pool, Shift, Task, make_task

TASKS = {"plain-noisy": Info(source="plain", target="noisy", network="mlp")}
SETTINGS = resources.files("askew_example") / "rings.toml"

_CLASSES = ("inner", "middle", "outer")
_NOISE = {"plain": 0.1, "noisy": 0.25}


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark under a label shift; `data` is not needed."""
    info, tail = TASKS[name], label_shift.DIGITS_TAIL[: len(_CLASSES)]
    source, target = (
        Pool.of(_rings(n, 200, draw), len(_CLASSES)) for n in (info.source, info.target)
    )
    test = _rings(
        info.target, 100, draw + 1_000_000
    )  # another seed, so that no test row is adapted on
    return make_task(
        f"rings/{name}", _CLASSES, tail / tail.sum(), shift, draw, source, target, test
    )


def _rings(domain: str, n: int, seed: int) -> Labeled:
    """n points of each ring, with their squared distances from the centre as a third feature."""
    rng = np.random.default_rng([seed, len(domain)])
    y = np.repeat(np.arange(len(_CLASSES)), n)
    angle, radius = rng.uniform(0, 2 * np.pi, len(y)), 1.0 + y
    plane = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    plane += _NOISE[domain] * rng.standard_normal(plane.shape) + (0.3 if domain == "noisy" else 0.0)
    x = np.concatenate([plane, (plane**2).sum(axis=1, keepdims=True)], axis=1)
    return Labeled(x.astype(np.float32), y.astype(np.int64))
