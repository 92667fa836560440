"""Domains, tasks and label shift: reading, decoding and drawing images; `benchmarks` has the
published data sets."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew.data.domains import Labeled, Unlabeled
    from askew.data.task import Task, TestLabels, TrainingData

__all__ = ["Labeled", "Task", "TestLabels", "TrainingData", "Unlabeled"]

_HOMES = {
    "askew.data.domains": ("Labeled", "Unlabeled"),
    "askew.data.task": ("Task", "TestLabels", "TrainingData"),
}


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is first used, so that commands start fast.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'askew.data' has no attribute '{name}'")
