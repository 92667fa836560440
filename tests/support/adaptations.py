"""Adaptations that take seconds: data, how long they train, the way to their end, and what they
leave."""

from __future__ import annotations

import csv
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image

from askew.adaptation.api import adapt_steps
from askew.adaptation.artifacts import write_artifacts
from askew.adaptation.assessment import Adaptation
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.request import AdaptRequest
from askew.runs.execute import Progress

CPU = torch.device("cpu")
LENGTH = {"pretrain": 30, "rounds": 2, "round": 15, "batch": 16}
SHORT = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
NAMES = np.array(["ant", "bee", "cat"])
NOISE = 96
"""Columns that tell nothing: rows of more than 99 numbers are embeddings, not a table."""

Done = TypeVar("Done")


def finish(
    work: Generator[Progress, None, Done], see: Callable[[Progress], object] = lambda step: None
) -> Done:
    while True:
        try:
            see(next(work))
        except StopIteration as end:
            done: Done = end.value
            return done


def drawn(n: int, prior: list[float], shift: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds, in these shares, moved by `shift`, and as wide as embeddings.

    Their first 8 columns are those of `drawn_table`, and 96 columns are small noise.
    """
    x, y = drawn_table(n, prior, shift, seed)
    noise = 0.05 * np.random.default_rng([seed, 1]).normal(size=(n, NOISE))
    return np.hstack([x, noise]).astype(np.float32), y


def drawn_table(
    n: int, prior: list[float], shift: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Three overlapping clouds in 8 columns, in these shares, moved by `shift`."""
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=prior)
    return (2.5 * np.eye(3, 8)[y] + rng.normal(size=(n, 8)) + shift).astype(np.float32), y


def domains(folder: Path, n: int = 120) -> tuple[Path, Path]:
    """n labelled rows, and rows without labels in other shares."""
    xs, ys = drawn(n, [0.6, 0.3, 0.1], 0.0, 0)
    xt, _ = drawn(102, [0.1, 0.3, 0.6], 0.4, 1)
    np.savez(folder / "source.npz", x=xs, y=NAMES[ys])
    np.savez(folder / "target.npz", x=xt)
    return folder / "source.npz", folder / "target.npz"


def request_for(source: Path, target: Path, **changes: Any) -> AdaptRequest:
    """A request of short trainings and few resamples."""
    short: dict[str, Any] = {"training": LENGTH, "resamples": 50}
    return AdaptRequest(source=source, target=target, **(short | changes))


def adapted(
    request: AdaptRequest, out: Path, see: Callable[[Progress], object] = lambda step: None
) -> Adaptation:
    """Adapt, and write nothing but the runs."""
    return finish(adapt_steps(request, out, CPU), see)


def first_two(features: np.ndarray) -> list[tuple[float, float]]:
    """Map features by their first and last number, in no time."""
    return [(float(row[0]), float(row[-1])) for row in features]


def photographs(folder: Path, classes: tuple[str, ...], n: int, dark: int) -> Path:
    """n images a class, each a blob of the class's colour; on a dark ground of 0 without labels."""
    for k, name in enumerate(classes):
        for i in range(n):
            rng = np.random.default_rng([k, i, dark])
            pixels = np.full((24, 24, 3), dark, np.uint8)
            pixels[6:18, 6:18, k % 3] = rng.integers(150, 255, (12, 12))
            place = folder / name / f"{name} {i}.png" if dark else folder / f"{name} {i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    return folder


class Made(NamedTuple):
    """An adaptation that has ended, with its files."""

    found: Adaptation
    out: Path
    labels: set[str]
    """Of all its steps."""

    @property
    def request(self) -> AdaptRequest:
        assert self.found.request is not None
        return self.found.request


def make(request: AdaptRequest, out: Path) -> Made:
    """Adapt, and write all files."""
    labels = set[str]()
    found = adapted(request, out, lambda step: labels.add(step.label))
    write_artifacts(found, out, map_features=first_two)
    return Made(found, out, labels)


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def codes(found: Adaptation) -> set[str]:
    return {finding.code for finding in adaptation_findings(found)}
