"""askew: class-imbalanced domain adaptation with reproducible results.

import askew

result = askew.run("mini/syn-uci", method="coal", seed=0)
print(result.scores["whole"]["per_class_mean"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew import data, methods, runs  # noqa: F401
    from askew.adaptation.api import adapt, audit, diagnose, embed
    from askew.adaptation.audit import Audit
    from askew.adaptation.result import AdaptationResult, DiagnosisResult
    from askew.adaptation.sklearn import AdaptiveClassifier
    from askew.cli.progress import watch
    from askew.core.errors import UserError
    from askew.data.benchmarks import load_task
    from askew.data.task import Task
    from askew.inference.predictor import Predictor, load
    from askew.runs.api import bench, run
    from askew.runs.results import BenchResult, Result


__version__ = "0.1.0"

__all__ = [
    "AdaptationResult",
    "AdaptiveClassifier",
    "Audit",
    "BenchResult",
    "DiagnosisResult",
    "Predictor",
    "Result",
    "Task",
    "UserError",
    "adapt",
    "audit",
    "bench",
    "diagnose",
    "embed",
    "load",
    "load_task",
    "run",
    "watch",
]

_HOMES = {
    "askew.runs.api": ("bench", "run"),
    "askew.runs.results": ("BenchResult", "Result"),
    "askew.cli.progress": ("watch",),
    "askew.data.task": ("Task",),
    "askew.data.benchmarks": ("load_task",),
    "askew.core.errors": ("UserError",),
    "askew.adaptation.api": ("adapt", "audit", "diagnose", "embed"),
    "askew.adaptation.audit": ("Audit",),
    "askew.adaptation.sklearn": ("AdaptiveClassifier",),
    "askew.adaptation.result": ("AdaptationResult", "DiagnosisResult"),
    "askew.inference.predictor": ("Predictor", "load"),
}
_PACKAGES = ("data", "methods", "runs")
"""Packages with names for authors of benchmarks, methods and studies."""


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, so a module is imported when one of its names is first used.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    if name in _PACKAGES:
        return import_module(f"askew.{name}")
    raise AttributeError(f"module 'askew' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
