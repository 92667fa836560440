"""Tables with known labels to adapt between: made, of scikit-learn under made shifts, and real.

Every group is a list of `Pair`. Groups named in REPORTED were looked at once, after the design was
fixed; all others are for development.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
DEVELOPED_ON = {("cleveland", "hungarian"), ("hungarian", "cleveland")}
REPORTED = ("heart, reported", "wine", "sensors")
MOST_ROWS = 1500


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """A labelled source and a target whose labels only scoring sees."""

    name: str
    xs: Floats
    ys: Labels
    xt: Floats
    yt: Labels
    best: Labels | None = field(default=None)
    """Predictions of the best possible rule for equal shares, where it is known. (n_t,)"""

    @property
    def classes(self) -> int:
        return int(max(self.ys.max(), self.yt.max())) + 1


# --- made tables ---


def made(  # noqa: PLR0913
    seed: int,
    classes: int,
    width: int,
    ratio: float,
    *,
    offset: float = 0.0,
    move: float = 0.0,
    rows: tuple[int, int] = (400, 400),
    heavy: bool = False,
    rotation: float = 0.0,
    absent: int = 0,
) -> Pair:
    """Make Gaussian classes whose shares are ratio : 1 in the source and reversed in the target."""
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=(classes, width))
    apart = [np.linalg.norm(a - b) for a, b in itertools.combinations(mu, 2)]
    mu *= 3.5 / np.median(apart)
    moved = mu + move * rng.normal(size=mu.shape) + offset * rng.choice([-1, 1], width)
    shares = ratio ** (-np.arange(classes) / (classes - 1))
    shares /= shares.sum()
    reversed_shares = shares[::-1].copy()
    reversed_shares[rng.choice(classes, absent, replace=False)] = 0
    reversed_shares /= reversed_shares.sum()

    def draw(n: int, p: Floats, means: Floats) -> tuple[Floats, Labels]:
        y = rng.choice(classes, n, p=p)
        some = np.flatnonzero(p)
        y[: len(some)] = some
        noise = (
            rng.standard_t(3, size=(n, width)) / 3**0.5 if heavy else rng.normal(size=(n, width))
        )
        return means[y] + noise, y

    xs, ys = draw(rows[0], shares, mu)
    xt, yt = draw(rows[1], reversed_shares, moved)
    best = ((xt[:, None] - moved) ** 2).sum(axis=2).argmin(axis=1)
    if rotation:
        xt = xt @ _rotation(rng, width, rotation)
    name = f"{classes} classes, {width} columns, {ratio:g} : 1"
    return Pair(name=name, xs=xs, ys=ys, xt=xt, yt=yt, best=best)


def _rotation(rng: np.random.Generator, width: int, angle: float) -> Floats:
    """Rotate by at most that angle, in radians, in a random direction."""
    skew = rng.normal(size=(width, width))
    skew = (skew - skew.T) / 2
    values, vectors = np.linalg.eig(skew * angle / np.linalg.norm(skew, 2))
    found: Floats = ((vectors * np.exp(values)) @ np.linalg.inv(vectors)).real
    return found


def grid(seeds: int) -> list[Pair]:
    """Make the grid: classes, columns, shares, a common offset, and class means that move."""
    every = itertools.product(
        range(seeds), (2, 3, 5, 10), (8, 32), (1, 9, 30), (0.0, 0.5), (0.0, 0.3)
    )
    return [
        made(number, c, d, ratio, offset=offset, move=move)
        for number, (_, c, d, ratio, offset, move) in enumerate(every)
    ]


def variants(seeds: int) -> dict[str, list[Pair]]:
    """Make tables that break an assumption: heavy tails, rotations, absent classes, few rows."""
    shapes = list(itertools.product(range(seeds), (2, 3, 5, 10), (8, 32), (1, 9, 30)))
    return {
        "heavy tails": [
            made(10_000 + i, c, d, r, offset=0.5, move=0.3, heavy=True)
            for i, (_, c, d, r) in enumerate(shapes)
        ],
        "rotations": [
            made(20_000 + i, c, d, r, offset=0.25, rotation=(0.4, 0.8)[i % 2])
            for i, (_, c, d, r) in enumerate(shapes)
        ],
        "absent classes": [
            made(30_000 + i, c, d, r, offset=0.5, move=0.3, absent=(c + 1) // 3)
            for i, (_, c, d, r) in enumerate(shapes)
            if c > 2
        ],
        "100 to 5,000 rows": [
            made(40_000 + i, c, 16, r, offset=0.5, move=0.3, rows=rows)
            for i, (c, r, rows) in enumerate(
                itertools.product(
                    (2, 5), (1, 9, 30), ((100, 100), (100, 1000), (1000, 100), (5000, 5000))
                )
            )
        ],
    }


# --- tables of scikit-learn under made shifts ---

SHIFTS = ("shares", "offset", "scale", "noise", "warp", "covariate", "shares and offset", "none")


def shifted(x: Floats, y: Labels, kind: str, seed: int) -> Pair:
    """Split a table into a source and a target, and shift the target."""
    rng = np.random.default_rng(seed)
    classes = int(y.max()) + 1
    z = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    if kind == "covariate":
        t = z[:, rng.integers(x.shape[1])]
        low = t + 0.7 * rng.normal(size=len(y)) < np.median(t)
    else:
        low = rng.random(len(y)) < 0.5
    here, there = np.flatnonzero(low), np.flatnonzero(~low)
    if "shares" in kind:
        tail = 9.0 ** (-np.arange(classes) / (classes - 1))
        order = rng.permutation(classes)
        here = _resample(rng, here, y, tail[order])
        there = _resample(rng, there, y, tail[::-1][order])
    here, there = (rng.permutation(rows)[:MOST_ROWS] for rows in (here, there))
    xs, xt = x[here], x[there].copy()
    sd, width = xs.std(axis=0) + 1e-9, x.shape[1]
    if "offset" in kind:
        xt += 0.5 * sd * rng.normal(size=width)
    if kind == "scale":
        xt = xs.mean(axis=0) + (xt - xs.mean(axis=0)) * np.exp(0.4 * rng.normal(size=width))
    if kind == "noise":
        xt += 0.7 * sd * rng.normal(size=xt.shape)
    if kind == "warp":
        z, some = (xt - xs.mean(axis=0)) / sd, rng.random(width) < 0.5
        z[:, some] = np.sign(z[:, some]) * np.abs(z[:, some]) ** 1.5
        xt = xs.mean(axis=0) + sd * z
    return Pair(name=kind, xs=xs, ys=y[here], xt=xt, yt=y[there])


def _resample(rng: np.random.Generator, rows: Labels, y: Labels, shares: Floats) -> Labels:
    """Draw rows without replacement so that classes have these shares, three of each at least."""
    sizes = np.array([np.sum(y[rows] == k) for k in range(len(shares))])
    counts = ((sizes / shares).min() * shares).astype(int)
    counts = np.maximum(np.minimum(counts, sizes), np.minimum(3, sizes))
    parts = [rng.permutation(rows[y[rows] == k])[:n] for k, n in enumerate(counts)]
    return np.concatenate(parts)


def toy_tables(seeds: int) -> list[Pair]:
    """Shift scikit-learn's tables: iris, wine, breast cancer, digits and diabetes."""
    from sklearn import datasets

    loaders: list[Callable[[], Any]] = [
        datasets.load_iris,
        datasets.load_wine,
        datasets.load_breast_cancer,
        datasets.load_digits,
    ]
    tables = [(b.data.astype(float), b.target) for b in (load() for load in loaders)]
    diabetes = datasets.load_diabetes()
    for parts in (2, 3):
        ends = np.quantile(diabetes.target, np.arange(1, parts) / parts)
        tables.append((diabetes.data, np.digitize(diabetes.target, ends)))
    return [
        shifted(x, y.astype(np.int64), kind, 100 * seed + number)
        for seed in range(seeds)
        for kind in SHIFTS
        for number, (x, y) in enumerate(tables)
    ]


def nonlinear_tables(seeds: int) -> list[Pair]:
    """Shift tables whose classes no hyperplane tells apart."""
    from sklearn import datasets

    found = []
    for seed, kind in itertools.product(range(seeds), SHIFTS):
        shape = {"n_informative": 8, "n_classes": 3, "class_sep": 1.5}
        x, y = datasets.make_classification(1600, 16, random_state=seed, **shape)
        found.append(shifted(x, y.astype(np.int64), kind, seed))
        x, y = datasets.make_moons(1600, noise=0.2, random_state=seed)
        x = np.hstack([x, 0.5 * np.random.default_rng(seed).normal(size=(len(x), 3))])
        found.append(shifted(x, y.astype(np.int64), kind, seed))
    return found


# --- real tables ---


def heart(folder: Path, name: str) -> tuple[Floats, Labels]:
    """Read a hospital's ten columns and whether a patient is ill; missing values are NaN."""
    text = (folder / f"heart4/processed.{name}.data").read_text()
    lines = [line.split(",")[:14] for line in text.splitlines() if line.count(",") >= 13]
    missing = ("?", "-9", "-9.0", "")
    values = np.array(
        [[np.nan if v.strip() in missing else float(v) for v in line] for line in lines]
    )
    return values[:, :10], (values[:, 13] > 0).astype(np.int64)


def wine(folder: Path, colour: str) -> tuple[Floats, Labels]:
    """Read the wines of a colour, and their quality as five grades."""
    text = (folder / f"wine/winequality-{colour}.csv").read_text()
    delimiter = ";" if ";" in text.splitlines()[0] else ","
    rows = [r for r in csv.reader(text.splitlines(), delimiter=delimiter) if r]
    values = np.array([r for r in rows if r[0][0].isdigit()], dtype=float)
    return values[:, :-1], np.clip(values[:, -1], 4, 8).astype(np.int64) - 4


def real_pairs(
    name: str, source: tuple[Floats, Labels], target: tuple[Floats, Labels], seeds: int
) -> Iterator[Pair]:
    """Fill missing values by the source's median, and split both at random, half and half."""
    (xs, ys), (xt, yt) = source, target
    middle = np.nan_to_num(np.nanmedian(xs, axis=0))
    xs, xt = (np.where(np.isnan(x), middle, x) for x in (xs, xt))
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        here, there = (rng.permutation(len(y))[: max(60, len(y) // 2)] for y in (ys, yt))
        here, there = here[:MOST_ROWS], there[:MOST_ROWS]
        known = np.isin(yt[there], ys[here])
        yield Pair(name=name, xs=xs[here], ys=ys[here], xt=xt[there][known], yt=yt[there][known])


def real_tables(folder: Path, seeds: int) -> dict[str, list[Pair]]:
    """Read heart disease in four hospitals, and wine of two colours, in all directions."""
    hospitals = {name: heart(folder, name) for name in HOSPITALS}
    groups: dict[str, list[Pair]] = {"heart, development": [], "heart, reported": [], "wine": []}
    for pair in itertools.permutations(HOSPITALS, 2):
        group = "heart, development" if pair in DEVELOPED_ON else "heart, reported"
        domains = (hospitals[pair[0]], hospitals[pair[1]])
        groups[group] += real_pairs(f"{pair[0]} to {pair[1]}", *domains, seeds)
    for pair in (("red", "white"), ("white", "red")):
        domains = (wine(folder, pair[0]), wine(folder, pair[1]))
        groups["wine"] += real_pairs(f"{pair[0]} to {pair[1]}", *domains, seeds)
    return groups


def sensors(seeds: int) -> list[Pair]:
    """Make handwritten digits as 64 numbers, and as a second sensor would measure them."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.data / 16, bunch.target.astype(np.int64)
    found = []
    for seed, back in itertools.product(range(seeds), (False, True)):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(y))
        here, there = order[::2], order[1::2]
        gains, offsets = rng.uniform(0.5, 1.5, 64), rng.uniform(-0.3, 0.3, 64)
        blurred = 0.5 * x + 0.25 * np.roll(x, 1, axis=1) + 0.25 * np.roll(x, -1, axis=1)
        second = gains * blurred + offsets + rng.normal(0, 0.15, x.shape)
        first, other = (second, x) if back else (x, second)
        tail = 9.0 ** (-np.arange(10) / 9)
        a, b = _resample(rng, here, y, tail), _resample(rng, there, y, tail[::-1])
        found.append(Pair(name="sensors", xs=first[a], ys=y[a], xt=other[b], yt=y[b]))
    return found


def groups(names: list[str], folder: Path | None, seeds: int) -> dict[str, list[Pair]]:
    """Make or read the groups of these names; all of them without any."""
    every: dict[str, list[Pair]] = {"made grid": grid(seeds)}
    every |= variants(seeds)
    every |= {"scikit-learn, made shifts": toy_tables(seeds), "nonlinear": nonlinear_tables(seeds)}
    if folder is not None:
        every |= real_tables(folder, 10 if seeds > 1 else 2)
    every["sensors"] = sensors(seeds)
    return {name: pairs for name, pairs in every.items() if not names or name in names}
