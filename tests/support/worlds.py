"""Worlds of Gaussian classes, in which the right posterior is known, for the tests of trust."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from askew.data.label_shift import DIGITS_TAIL
from askew.evaluation.outputs import DomainOutputs

Array = np.ndarray[Any, np.dtype[Any]]
TAIL = np.array(DIGITS_TAIL)
RARE = TAIL[::-1]
"""Priors of target and source under RS-UT: what is common in one is rare in the other, 30 to 1."""
EVEN = np.full(10, 0.1)


class World(NamedTuple):
    outputs: DomainOutputs
    target_y: Array
    x: Array
    """Of the held-out source."""

    @property
    def accuracy(self) -> float:
        """True per-class mean on the target."""
        right = self.outputs.target.argmax(axis=1) == self.target_y
        return float(np.mean([right[self.target_y == k].mean() for k in np.unique(self.target_y)]))


def world(
    n_val: int = 300,
    n_target: int = 600,
    p: Array = RARE,
    q: Array = TAIL,
    *,
    apart: float = 3.0,
    sharp: float = 1.0,
    seen: Array = EVEN,
    moved: float = 0.0,
    knows: float = 0.0,
    seed: int = 0,
) -> World:
    """x ~ N(apart·e_y, I), the target moved by a random vector; logits for the training prior
    `seen`.

    Likelihoods are `sharp` times as sure as they should be. A network that `knows` a share of the
    move takes it back.
    """
    rng = np.random.default_rng(seed)
    c = len(p)
    y, target_y = rng.choice(c, n_val, p=p), rng.choice(c, n_target, p=q)
    x = apart * np.eye(c)[y] + rng.normal(size=(n_val, c))
    xt = apart * np.eye(c)[target_y] + rng.normal(size=(n_target, c))
    xt = xt + (1 - knows) * moved * rng.normal(size=c)
    logits, target = (sharp * apart * v + np.log(seen) for v in (x, xt))
    return World(DomainOutputs.of(logits, y, target, seen), target_y, x)


def noisy_worlds() -> list[World]:
    """Three networks of one world, from the worst to the best, by independent noise on the
    logits."""
    whole, rng = world(400, 700), np.random.default_rng(1)

    def blurred(noise: float) -> World:
        val, target = (
            v + noise * rng.normal(size=v.shape)
            for v in (whole.outputs.source_val, whole.outputs.target)
        )
        return whole._replace(
            outputs=DomainOutputs.of(val, whole.outputs.source_val_y, target, EVEN)
        )

    return [blurred(noise) for noise in (8.0, 4.0, 1.0)]
