"""askew: class-imbalanced domain adaptation with reproducible results.

import askew

result = askew.run("mini/syn-uci", method="coal", seed=0)
print(result.scores["whole"]["per_class_mean"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew.adaptation.api import adapt, audit, diagnose, embed
    from askew.adaptation.audit import Audit
    from askew.adaptation.result import AdaptationResult, DiagnosisResult
    from askew.adaptation.sklearn import AdaptiveClassifier
    from askew.cli.progress import watch
    from askew.core.errors import UserError
    from askew.core.options import Between, Search
    from askew.data.benchmarks import load_task
    from askew.data.domains import Labeled, Unlabeled
    from askew.data.task import Task, TestLabels, TrainingData
    from askew.inference.predictor import Predictor, load
    from askew.methods.base import Batch, Losses, Method, Outputs, Phase, Shape, State, both
    from askew.nets.network import Net
    from askew.runs.api import bench, run
    from askew.runs.config import Planned, RunRequest, prepare
    from askew.runs.results import BenchResult, Result
    from askew.testing import check_method
    from askew.training.trainer import fit


__version__ = "0.1.0"

__all__ = [
    "AdaptationResult",
    "AdaptiveClassifier",
    "Audit",
    "Batch",
    "BenchResult",
    "Between",
    "DiagnosisResult",
    "Labeled",
    "Losses",
    "Method",
    "Net",
    "Outputs",
    "Phase",
    "Planned",
    "Predictor",
    "Result",
    "RunRequest",
    "Search",
    "Shape",
    "State",
    "Task",
    "TestLabels",
    "TrainingData",
    "Unlabeled",
    "UserError",
    "adapt",
    "audit",
    "bench",
    "both",
    "check_method",
    "diagnose",
    "embed",
    "fit",
    "load",
    "load_task",
    "prepare",
    "run",
    "watch",
]

_HOMES = {
    "askew.runs.api": ("bench", "run"),
    "askew.runs.results": ("BenchResult", "Result"),
    "askew.cli.progress": ("watch",),
    "askew.testing": ("check_method",),
    "askew.data.task": ("TestLabels", "TrainingData", "Task"),
    "askew.data.domains": ("Labeled", "Unlabeled"),
    "askew.data.benchmarks": ("load_task",),
    "askew.training.trainer": ("fit",),
    "askew.core.errors": ("UserError",),
    "askew.adaptation.api": ("adapt", "audit", "diagnose", "embed"),
    "askew.adaptation.audit": ("Audit",),
    "askew.adaptation.sklearn": ("AdaptiveClassifier",),
    "askew.adaptation.result": ("AdaptationResult", "DiagnosisResult"),
    "askew.methods.base": (
        "Batch",
        "Losses",
        "Method",
        "Outputs",
        "Phase",
        "Shape",
        "State",
        "both",
    ),
    "askew.nets.network": ("Net",),
    "askew.core.options": ("Between", "Search"),
    "askew.inference.predictor": ("Predictor", "load"),
    "askew.runs.config": ("Planned", "RunRequest", "prepare"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, so a module is imported when one of its names is first used.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'askew' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
