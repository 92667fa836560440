"""Answers that listen to neighbours: images that are nearest to each other mostly have one
class."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.outputs import Floats, Labels

NEAREST = 10
"""Neighbours that are looked at; 5 and 20 gain a little less on the development tasks
(results/own-data)."""
STEPS = 12
MOST_ROWS = 20_000
"""Images up to which answers are smoothed: the search for neighbours takes the square of their
number."""
_CHUNK = 1024


def smoothed(answers: Floats, rows: NDArray[Any]) -> Floats:
    """Posteriors p of images that mix with those of mutual nearest neighbours by cosine, in rows of
    features.

    p ← (1 − α)·p⁰ + α·W p, a few times: W_ij is 1/(how many there are) where each of i and j is
    among the nearest of the other, and who has none keeps its answer. Mutual ones alone, since the
    images of a rare class have many nearest ones of frequent classes, which in turn have nearer
    ones. α is how far neighbours agree to begin with, the mean of Σ_k p⁰_ik (W p⁰)_ik: where they
    do not, there are no clusters to listen to. (D. Zhou et al., Learning with local and global
    consistency, NIPS 2003.) (n, c), (n, d) → (n, c)
    """
    n = len(rows)
    if not 2 < n <= MOST_ROWS:
        return answers
    links = mutual_neighbours(rows, min(NEAREST, n - 1))
    degree = np.asarray(links.sum(axis=1)).ravel()
    some = degree > 0
    if not some.any():
        return answers
    weights = links.multiply(1 / np.maximum(degree, 1)[:, None]).tocsr()
    alpha = float(((weights @ answers) * answers).sum(axis=1)[some].mean())
    p = answers
    for _ in range(STEPS):
        p = np.where(some[:, None], (1 - alpha) * answers + alpha * (weights @ p), answers)
    return p


def mutual_neighbours(rows: NDArray[Any], k: int) -> Any:
    """A sparse matrix with a one where each of two rows is among the k nearest of the other, by
    cosine. (n, d) → (n, n)

    >>> rows = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    >>> mutual_neighbours(rows, 1).toarray().astype(int).tolist()
    [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    """
    from scipy.sparse import csr_array

    x = np.asarray(rows, dtype=np.float32)
    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.float32(1e-12))
    nearest = np.concatenate([_nearest(unit, first, k) for first in range(0, len(unit), _CHUNK)])
    begins = np.arange(0, nearest.size + 1, k)
    directed = csr_array(
        (np.ones(nearest.size), nearest.ravel(), begins), shape=(len(unit), len(unit))
    )
    return directed.multiply(directed.T).tocsr()


def _nearest(unit: NDArray[np.float32], first: int, k: int) -> Labels:
    """The k nearest of each of some rows, itself left out, in no order. (n, d) → (m, k)"""
    near = unit[first : first + _CHUNK] @ unit.T
    own = np.arange(len(near))
    near[own, first + own] = -np.inf
    found: Labels = np.argpartition(-near, k - 1, axis=1)[:, :k]
    return found
