"""Label shift as pure functions: how many images of each class a domain gives, and which ones.

The rule behind the published lists of class-imbalanced domain adaptation (Tan et al., 2020): `p` is
a long tail, n_k what a domain has of class k, and everything random depends on a seed alone.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from askew.core.errors import UserError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def long_tail(classes: int, shape: float, low: float, high: float) -> FloatArray:
    """The generalised Pareto density at evenly spaced points, class 0 the largest.

    p_k ∝ (1 + a·x_k)^(−1 − 1/a),  x evenly from low to high,  Σ p_k = 1
    """
    if classes < 1:
        raise UserError(
            f"A long tail needs at least one class, found {classes}.", "give classes >= 1."
        )
    if not (shape > 0 and 0 <= low <= high < np.inf):
        raise UserError(
            f"A long tail needs shape > 0 and 0 <= low <= high, found shape {shape}, low {low}, "
            f"high {high}.",
            "the digits use shape 1 from 1 to 10, Office-Home shape 100 from 1 to 5.",
        )
    x = np.linspace(low, high, classes)
    p: FloatArray = (1 + shape * x) ** (-1 - 1 / shape)
    p /= p.sum()
    p.flags.writeable = False  # tails are shared as constants
    return p


DIGITS_TAIL: Final = long_tail(10, 1, 1, 10)  # p_k ∝ 1/(k+2)², largest to smallest 30.25 : 1


def picture_tail(classes: int) -> FloatArray:
    """Office-Home's tail, about 5.04 : 1, for any number of classes."""
    return long_tail(classes, 100, 1, 5)


def total(sizes: npt.ArrayLike, p: npt.ArrayLike) -> int:
    """The size of a sample whose largest class, at either end, the domain can fill.

    N = floor(min(n_first, n_last) / p_0)
    """
    n, p = _sizes(sizes), _tail(p)
    if len(n) != len(p):
        raise UserError(
            f"There are {len(n)} class sizes for a tail of {len(p)}.", "give one size per class."
        )
    if min(n[0], n[-1]) == 0:
        raise UserError(
            f"The first and the last class need images, found {n[0]} and {n[-1]}.",
            "the rule scales with them: drop the empty classes or order the classes differently.",
        )
    return int(_floor(min(n[0], n[-1]) / p[0]))


def ut_counts(sizes: npt.ArrayLike, p: npt.ArrayLike) -> IntArray:
    """Unbalanced target: UT_k = min(floor(N·p_k), n_k)."""
    return np.minimum(_floor(total(sizes, p) * _tail(p)), _sizes(sizes))


def rs_counts(sizes: npt.ArrayLike, p: npt.ArrayLike) -> IntArray:
    """Reversely unbalanced source: RS_k = min(floor(N·p_(c−1−k)), n_k)."""
    return np.minimum(_floor(total(sizes, p) * _tail(p)[::-1]), _sizes(sizes))


def scaled_counts(counts: npt.ArrayLike, total: int) -> IntArray:
    """The same proportions with fewer images: n_k·total/Σn, rounded by largest remainder; never
    more than there are."""
    n = _sizes(counts)
    return n if total >= n.sum() else _round(n * (total / n.sum()))


def balanced_counts(sizes: npt.ArrayLike, total: int) -> IntArray:
    """BS and BT: a total spread evenly; what a full class cannot take spills over the others.

    n_k ← min(L, n_k) with L such that Σ = min(total, Σ n_k); of equal remainders, the first classes
    round up.
    """
    return _round(_level(_sizes(sizes), total))


def degree_counts(
    sizes: npt.ArrayLike, p: npt.ArrayLike, degree: float, side: Literal["source", "target"]
) -> IntArray:
    """Between balanced (d = 0) and RS or UT (d = 1), with the same total all the way.

    (1−d)·uniform + d·RS  or  (1−d)·uniform + d·UT,  rounded by largest remainder
    """
    if not 0 <= degree <= 1:
        raise UserError(
            f"A degree must lie in [0, 1], found {degree}.", "0 is balanced, 1 is RS or UT."
        )
    if side not in ("source", "target"):
        raise UserError(
            f"A side is 'source' or 'target', found {side!r}.", "RS for the source, else UT."
        )
    end = rs_counts(sizes, p) if side == "source" else ut_counts(sizes, p)
    # Both ends respect the caps, hence so does everything between them: no spill to follow along d.
    return _round((1 - degree) * _level(_sizes(sizes), int(end.sum())) + degree * end)


def dirichlet_counts(sizes: npt.ArrayLike, strength: float, seed: int) -> IntArray:
    """A random label distribution around the natural one, as large as the domain allows (RLSbench,
    Garg et al., 2023).

    q ~ Dirichlet(s·c·q_natural),  n = floor(min_k n_k/q_k),  n_k ← floor(n·q_k); smaller s,
    stronger shift.
    """
    n = _sizes(sizes)
    if not 0 < strength < np.inf:
        raise UserError(
            f"A strength must be positive, found {strength}.", "RLSbench uses 0.5, 1, 3, 10."
        )
    if not n.any():
        raise UserError(f"All {len(n)} classes are empty.", "give a domain with images.")
    has = n > 0  # a class without images has probability zero
    q = np.zeros(len(n))
    q[has] = np.random.default_rng(_seed(seed)).dirichlet(strength * len(n) * n[has] / n.sum())
    drawn = q > 1e-12  # rarer classes limit nothing, and n_k/q_k could overflow
    size = _floor(np.min(n[drawn] / q[drawn]))
    return np.minimum(_floor(size * q), n)


def draw(labels: npt.ArrayLike, counts: npt.ArrayLike, seed: int) -> IntArray:
    """The sorted indices of counts_k images of each class k, without replacement.

    Class k's draw depends on the seed, k and that class alone, and fewer is a prefix of more:
    counts that differ share images.
    """
    y, m = np.asarray(labels), _sizes(counts)
    has = _count(y, len(m))
    if (m > has).any():
        k = int(np.argmax(m > has))
        raise UserError(
            f"Class {k} has {has[k]} images; {m[k]} were asked for.", "ask for at most as many."
        )
    return np.sort(np.concatenate([_order(y, k, seed)[: m[k]] for k in range(len(m))]))


def hold_out(
    labels: npt.ArrayLike, taken: npt.ArrayLike, counts: npt.ArrayLike, seed: int
) -> IntArray:
    """The sorted indices of images outside `taken`, in the proportions of `counts`, as many as fit.

    m_k = max(1, floor(m·counts_k / Σ counts)), m the largest with floor(…) ≤ left_k; a class with
    nothing left gives nothing and does not limit m. With draw's seed, each class goes on where its
    draw ended.
    """
    y, m = np.asarray(labels), _sizes(counts)
    t = np.asarray(taken, dtype=np.int64)
    if t.size and not (t.min() >= 0 and t.max() < len(y)):
        raise UserError(
            f"An index in `taken` lies outside the {len(y)} labels.", "indices start at 0."
        )
    free = np.ones(len(y), dtype=bool)
    free[t] = False
    left = _count(y, len(m)) - _count(y[~free], len(m))
    open_ = (m > 0) & (left > 0)
    if not open_.any():
        return np.empty(0, dtype=np.int64)
    # floor(m·a/s) ≤ b  ⇔  m·a < (b+1)·s, in integers.
    s = m.sum()
    most = np.min(((left[open_] + 1) * s - 1) // m[open_])
    m = np.where(open_, np.maximum(1, most * m // s), 0)
    orders = [_order(y, k, seed) for k in range(len(m))]
    return np.sort(np.concatenate([o[free[o]][:j] for o, j in zip(orders, m, strict=True)]))


def js_distance(p: npt.ArrayLike, q: npt.ArrayLike) -> float:
    """The Jensen–Shannon distance of two label distributions, from 0 (equal) to 1 (disjoint);
    counts are normalised.

    √JS,  JS = (KL(p‖m) + KL(q‖m))/2 in bits (log base 2),  m = (p + q)/2
    """
    p, q = _normalised(p), _normalised(q)
    if len(p) != len(q):
        raise UserError(
            f"The two label distributions have {len(p)} and {len(q)} classes.",
            "compare like with like.",
        )
    m = (p + q) / 2
    js = sum(float(np.sum(r[r > 0] * np.log2(r[r > 0] / m[r > 0]))) for r in (p, q)) / 2
    return float(np.sqrt(np.clip(js, 0, 1)))


def _floor(x: npt.ArrayLike) -> IntArray:
    # A product that is whole in exact arithmetic must not lose one to rounding.
    return np.floor(np.asarray(x, dtype=np.float64) + 1e-9).astype(np.int64)


def _level(n: IntArray, total: int) -> FloatArray:
    """min(L, n_k) with L such that the sum is min(total, Σ n_k)."""
    if total < 0:
        raise UserError(
            f"A total cannot be negative, found {total}.", "give the number of images to spread."
        )
    level, left = 0.0, total
    for j, nk in enumerate(np.sort(n).tolist()):
        level = left / (len(n) - j)
        if level <= nk:
            break
        left -= nk
    return np.minimum(level, n)


def _round(quota: FloatArray) -> IntArray:
    """Largest remainder: whole numbers with the quota's sum, each less than one away; ties to the
    first."""
    m = _floor(quota)
    short = round(float(quota.sum())) - int(m.sum())
    m[np.argsort(m - quota, kind="stable")[:short]] += 1
    return m


def _order(y: npt.NDArray[np.generic], k: int, seed: int) -> IntArray:
    """The indices of class k in the order in which a draw takes them."""
    (members,) = np.nonzero(y == k)
    # Sorting raw words, because numpy fixes a bit generator's stream for good, and not Generator's
    # methods.
    keys = np.random.Philox(key=np.array([_seed(seed), k], dtype=np.uint64)).random_raw(
        len(members)
    )
    order: IntArray = members[np.argsort(keys, kind="stable")]
    return order


def _count(y: npt.NDArray[np.generic], classes: int) -> IntArray:
    whole = y.ndim == 1 and (y.size == 0 or np.issubdtype(y.dtype, np.integer))
    if not whole or (y.size and not (y.min() >= 0 and y.max() < classes)):
        raise UserError(
            f"Labels must be whole numbers from 0 to {classes - 1}.", "give one label per image."
        )
    return np.bincount(y.astype(np.int64), minlength=classes).astype(np.int64)


def _sizes(sizes: npt.ArrayLike) -> IntArray:
    n = np.asarray(sizes)
    if n.ndim != 1 or n.size == 0:
        raise UserError(
            f"Class sizes must be a non-empty row, found shape {n.shape}.",
            "give one number per class.",
        )
    if not np.issubdtype(n.dtype, np.integer) or n.min() < 0:
        raise UserError(
            f"Class sizes must be whole and not negative, found {n.tolist()}.", "count the images."
        )
    return n.astype(np.int64)


def _tail(p: npt.ArrayLike) -> FloatArray:
    q = np.asarray(p, dtype=np.float64)
    if not (_normalised(q)[0] > 0 and np.isclose(q.sum(), 1)):
        raise UserError("A tail must sum to one and start above zero.", "long_tail makes one.")
    return q


def _normalised(p: npt.ArrayLike) -> FloatArray:
    q = np.asarray(p, dtype=np.float64)
    if q.ndim != 1 or q.size == 0 or not (np.isfinite(q).all() and q.min() >= 0 and q.sum() > 0):
        raise UserError(
            "A label distribution must be a row of numbers >= 0, not all zero.",
            "give one number per class.",
        )
    normalised: FloatArray = q / q.sum()
    return normalised


def _seed(seed: int) -> int:
    if not 0 <= seed < 2**64:
        raise UserError(f"A seed is a whole number from 0 to 2^64 − 1, found {seed}.", "use 0.")
    return seed
