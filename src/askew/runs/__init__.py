"""Runs: planned, trained, stored and compared."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew.runs.config import Planned, RunRequest, prepare

__all__ = ["Planned", "RunRequest", "prepare"]

_HOMES = {"askew.runs.config": ("Planned", "RunRequest", "prepare")}


def __getattr__(name: str) -> Any:
    # A module is imported when one of its names is first used, so that commands start fast.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'askew.runs' has no attribute '{name}'")
