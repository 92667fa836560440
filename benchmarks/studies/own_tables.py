"""The tables of own.py, from the rows that it writes: one per variant of the settings, pair, shift,
seed and method."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from claims import count, off_sentence, truth_of
from numpy.typing import NDArray
from own_rows import PAIRS
from peers import PEERS

from askew.adaptation.candidates import REFIT, SOURCE_ONLY

Row = Mapping[str, Any]
AUTO, BEST = "auto", "the best of each choice"


def read(results: Path) -> Iterator[Row]:
    yield from map(json.loads, results.read_text().splitlines() if results.exists() else ())


class Scores:
    """Per-class mean accuracy of every method on some pairs under one shift, by seed."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.pairs, self.methods = (
            list(dict.fromkeys(row[key] for row in rows)) for key in ("pair", "method")
        )
        self.values: dict[tuple[str, str], dict[int, float]] = {}
        for row in sorted(
            rows, key=lambda row: row["seed"]
        ):  # processes side by side end in any order
            self.values.setdefault((row["method"], row["pair"]), {})[row["seed"]] = row["mean"]

    @property
    def candidates(self) -> list[str]:
        """What was trained, source-only first, without what was fitted to the others' answers."""
        return [name for name in self.methods[: self.methods.index(AUTO)] if name != REFIT.name]

    @property
    def peers(self) -> list[str]:
        return [name for name in self.methods if name in PEERS]

    def by_seed(self, method: str) -> NDArray[np.float64]:
        """Means over pairs. (seeds,)"""
        return np.array([list(self.values[method, pair].values()) for pair in self.pairs]).mean(
            axis=0
        )

    def mean(self, method: str) -> float:
        return float(self.by_seed(method).mean())

    def best(self, methods: Sequence[str]) -> str:
        """The best one on average, with its mean."""
        name = max(methods, key=self.mean)
        return f"{self.mean(name):.1f} ({name})"

    def regret(self, methods: Sequence[str]) -> list[float]:
        """Points of `auto` below the best of these, for every pair and seed."""
        return [
            max(self.values[method, pair][seed] for method in methods) - found
            for pair in self.pairs
            for seed, found in self.values[AUTO, pair].items()
        ]

    def verdicts(self, rows: Sequence[Row]) -> tuple[int, int, int, int]:
        """How many of these rows' verdicts are right, how many opposite to the truth, how many
        there are, and how many networks had helped."""
        judged = [row for row in rows if "verdict" in row]
        source = {key: values for key, values in self.values.items() if key[0] == SOURCE_ONLY.name}
        truths = [
            truth_of(row["mean"] - source[SOURCE_ONLY.name, row["pair"]][row["seed"]])
            for row in judged
        ]
        right, opposite = count([row["verdict"] for row in judged], truths)
        return right, opposite, len(judged), truths.count("helped")

    def told(self) -> dict[str, float]:
        """What users are told, on average: errors of the label distribution, of an even one, of the
        expected accuracy and of the confidence."""
        told = [row for row in self.rows if "covered" in row]
        found = {
            key: float(np.mean([row[key] for row in told])) for key in ("l1", "l1_even", "covered")
        }
        off = {
            key: float(np.mean([abs(row[key] - row["mean"]) for row in told]))
            for key in ("expected", "confidence")
        }
        return found | off


def print_summary(rows: Sequence[Row], groups: Sequence[tuple[str, str]]) -> None:
    """One line per group of pairs and shift: the answers, and what is told of them."""
    answers = [
        "group",
        "choices",
        "source only",
        "LogisticRegression",
        "best peer",
        "best single candidate",
    ]
    print(_line([*answers, "auto", "regret", f"with {REFIT.name}"], head=True))
    several = {(pairs, shift): Scores(of_group(rows, pairs, shift)) for pairs, shift in groups}
    for (pairs, shift), scores in several.items():
        means = [f"{scores.mean(name):.1f}" for name in (SOURCE_ONLY.name, "LogisticRegression")]
        best = [scores.best(scores.peers), scores.best(scores.candidates[1:])]
        every = [name for name in (*scores.candidates, REFIT.name) if name in scores.methods]
        regrets = [scores.regret(names) for names in (scores.candidates, every)]
        cells = [
            f"{pairs}, {shift}",
            str(len(regrets[0])),
            *means,
            *best,
            _spread(list(scores.by_seed(AUTO))),
        ]
        print(_line([*cells, *(f"{np.mean(values):.1f}" for values in regrets)]))
    verdicts = ["verdicts right / opposite", "of auto", "expected accuracy off by (confidence)"]
    print(
        "\n"
        + _line(["group", *verdicts, "label distribution: L1 (even)", "intervals cover"], head=True)
    )
    for (pairs, shift), scores in several.items():
        own = [row for row in scores.rows if row["method"] == AUTO]
        judged = [
            f"{r} / {o} of {n}"
            for r, o, n, _ in (scores.verdicts(scores.rows), scores.verdicts(own))
        ]
        told = scores.told()
        off = f"{told['expected']:.1f} ({told['confidence']:.1f})"
        shares = [off, f"{told['l1']:.2f} ({told['l1_even']:.2f})", f"{told['covered']:.0%}"]
        print(_line([f"{pairs}, {shift}", *judged, *shares]))


def of_group(rows: Sequence[Row], pairs: str, shift: str) -> list[Row]:
    known = {"-".join(pair) for pair in PAIRS[pairs]}
    return [row for row in rows if row["pair"] in known and row["shift"] == shift]


def print_pairs(rows: Sequence[Row]) -> None:
    """Each method on each pair, mean ± sample standard deviation over seeds; how good the choice
    is, and the claims."""
    scores = Scores(rows)
    print(_line([rows[0]["shift"], *scores.pairs, "mean"], head=True))
    for method in scores.methods:
        cells = [_spread(list(scores.values[method, pair].values())) for pair in scores.pairs]
        print(_line([method, *cells, _spread(list(scores.by_seed(method)))]))
    regret = scores.regret(scores.candidates)
    print(
        f"\nRegret of auto: {np.mean(regret):.1f} points, at most {max(regret):.1f}, over "
        f"{len(regret)} choices."
    )
    right, opposite, judged, helped = scores.verdicts(rows)
    if judged:
        told = scores.told()
        print(
            f"Verdicts: right {right / judged:.0%}, opposite {opposite / judged:.0%} of "
            f"{judged}; {helped} had helped."
        )
        print(
            f"Label distribution: L1 {told['l1']:.2f} (an even one {told['l1_even']:.2f}); its "
            "95 % intervals cover "
            f"{told['covered']:.0%} of classes."
        )
        said = [row for row in rows if "covered" in row]
        for key in ("expected", "confidence"):
            print(
                f"Of auto, {key}: "
                f"{off_sentence([row[key] for row in said], [row['mean'] for row in said])}."
            )


def print_table(rows: Sequence[Row]) -> None:
    """Means over pairs and, in brackets, the difference to the first variant ± its standard
    error."""
    found: dict[tuple[str, str], dict[tuple[str, str, int], float]] = {}
    several = len({row["method"] for row in rows}) > 1
    for row in rows:
        key = row["pair"], row["shift"], row["seed"]
        found.setdefault((row["variant"], row["method"]), {})[key] = row["mean"]
        if several and row["method"] not in (AUTO, REFIT.name, *PEERS):
            best = found.setdefault((row["variant"], BEST), {})
            best[key] = max(best.get(key, 0.0), row["mean"])
    variants = list(dict.fromkeys(name for name, _ in found))
    methods = list(dict.fromkeys(method for _, method in found))
    print(_line(["variant", *methods], head=True))
    for name in variants:
        cells = []
        for method in methods:
            here, base = found.get((name, method), {}), found.get((variants[0], method), {})
            apart = np.array([value - base[key] for key, value in here.items() if key in base])
            text = f"{np.mean(list(here.values())):.1f}" if here else "–"
            if len(apart) > 1 and name != variants[0]:
                text += f" ({apart.mean():+.1f} ± {apart.std(ddof=1) / np.sqrt(len(apart)):.1f})"
            cells.append(text)
        pairs = len(
            {
                pair
                for (variant, _), values in found.items()
                if variant == name
                for pair, *_ in values
            }
        )
        print(_line([f"{name} ({pairs} pairs)", *cells]))


def _line(cells: Sequence[str], head: bool = False) -> str:
    line = "| " + " | ".join(cells) + " |"
    return line + "\n" + "|---" * len(cells) + "|" if head else line


def _spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f}" + (
        f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    )
