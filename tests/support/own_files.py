"""Small custom data: pictures in class folders or side by side, arrays, and a cache for each test
alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from generated_trees import own_cache, picture

CLASSES = ("cat", "dog", "owl")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


def tree(folder: Path, n: int = 4, classes: tuple[str, ...] = CLASSES) -> Path:
    for name in classes:
        for i in range(n):
            picture(folder / name / f"{i}.png", 8)
    return folder


def flat(folder: Path, n: int = 4) -> Path:
    for i in range(n):
        picture(folder / f"{i}.png", 9)
    return folder


def npz(file: Path, x: np.ndarray, y: object = None) -> Path:
    np.savez(file, **({"x": x} if y is None else {"x": x, "y": np.array(y)}))
    return file


def rows(n: int = 12, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)
