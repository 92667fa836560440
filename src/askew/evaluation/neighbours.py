"""Label propagation: probabilities smoothed over mutual nearest neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.evaluation.outputs import Floats, Labels

NEAREST = 10
"""Neighbours per image; 5 and 20 improve accuracy a little less (results/auto/development.md)."""
STEPS = 12
MOST_ROWS = 20_000
"""Most images that are smoothed: the cost of the search grows with the square of their number."""
_CHUNK = 1024


def smooth_over_neighbours(p0: Floats, features: NDArray[Any]) -> Floats:
    """Smooth probabilities over mutual nearest neighbours by cosine. (n, c), (n, d) → (n, c)

    p ← (1 − α)·p⁰ + α·W p, STEPS times. W_ij = 1/(number of neighbours of i) where i and j are each
    among the nearest of the other. An image without such a neighbour keeps its probabilities.

    Neighbours have to be mutual, because images of a rare class have many nearest neighbours of
    frequent classes, which in turn have nearer ones. α is the agreement of neighbours before
    smoothing, the mean of Σ_k p⁰_ik (W p⁰)_ik: without clusters, little is smoothed.

    D. Zhou et al., Learning with local and global consistency, NIPS 2003.
    """
    n = len(features)
    if not 2 < n <= MOST_ROWS:
        return p0
    links = mutual_neighbours(features, min(NEAREST, n - 1))
    degree = np.asarray(links.sum(axis=1)).ravel()
    some = degree > 0
    if not some.any():
        return p0
    weights = links.multiply(1 / np.maximum(degree, 1)[:, None]).tocsr()
    alpha = float(((weights @ p0) * p0).sum(axis=1)[some].mean())
    p = p0
    for _ in range(STEPS):
        p = np.where(some[:, None], (1 - alpha) * p0 + alpha * (weights @ p), p0)
    return p


def mutual_neighbours(rows: NDArray[Any], k: int) -> Any:
    """Build a sparse matrix with a one where two rows are each among the k nearest of the other.

    Nearness is by cosine. (n, d) → (n, n)

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
    """Find the k nearest rows of each row in a chunk, other than itself. (n, d) → (m, k)"""
    near = unit[first : first + _CHUNK] @ unit.T
    diagonal = np.arange(len(near))
    near[diagonal, first + diagonal] = -np.inf
    nearest: Labels = np.argpartition(-near, k - 1, axis=1)[:, :k]
    return nearest
