"""Folders of finished runs that were never trained: enough to measure what ten thousand of them
cost."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from unittest import mock

from askew.core.files import write_json
from askew.methods import METHODS
from askew.runs.config import RunRequest, prepare
from askew.runs.root import open_root
from askew.runs.store import RunFolder

TASKS = [
    f"office-home/{a}-{b}"
    for a, b in itertools.permutations(("art", "clipart", "product", "real"), 2)
]
TASKS += [
    f"domainnet/{a}-{b}"
    for a, b in itertools.permutations(("real", "clipart", "painting", "sketch"), 2)
]


def score(value: float, classes: int) -> dict[str, object]:
    """Scores of one test split, in the form of `score_test`."""
    return {
        "images": 2000,
        "per_class_mean": value,
        "interval": [value - 1.0, value + 1.0],
        "overall": value + 2.0,
        "worst": value / 2,
        "worst_class": "7",
        "per_class": [value + i / 7 for i in range(classes)],
        "confusion": [[(i * j) % 23 for j in range(classes)] for i in range(classes)],
    }


def make_runs(root: Path, count: int, classes: int) -> Path:
    """A folder of `count` finished runs: all methods, 24 tasks, 5 seeds, and shift degrees until
    there are enough."""
    open_root(root)
    records = {
        id: prepare(RunRequest(task="mini/syn-uci", method=id)).run.describe() for id in METHODS
    }
    everything = list(itertools.product(range(5), TASKS, METHODS))
    with mock.patch.object(os, "fsync", return_value=None):  # a power cut may lose them
        for number in range(count):
            seed, task, method = everything[number % len(everything)]
            degree = number // len(everything) / 10
            run = {**records[method], "task": task, "seed": seed, "shift": f"degree:{degree}"}
            folder = RunFolder(root / f"{number:016x}")
            folder.path.mkdir()
            value = 40 + (number * 7919 % 4001) / 100
            record = {
                "key": folder.path.name,
                "run": run,
                "notes": [],
                "classes": [str(i) for i in range(classes)],
            }
            scores = {"whole": score(value, classes), "paper": score(value - 3, classes)}
            write_json(folder.path / "run.json", record)
            write_json(folder.path / "scores.json", scores)
            folder.add_trace({"step": 1, "losses": {}, "seconds": 1.0})
            folder.finish()
    return root
