"""askew: class-imbalanced domain adaptation, with numbers that can be trusted.

import askew

result = askew.run("mini/syn-uci", method="coal", seed=0)
print(result.scores["whole"]["per_class_mean"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from askew.api import Result, run
    from askew.check import check_method
    from askew.data import Exam, Labeled, Study, Task, Unlabeled, load_task
    from askew.data.feed import Batch
    from askew.engine import fit
    from askew.errors import UserError
    from askew.estimator import AdaptiveClassifier
    from askew.method import Losses, Method, Outputs, Phase, Shape, State, both
    from askew.nets import Net
    from askew.options import Between, Search
    from askew.predictor import Predictor, load
    from askew.recipe import Wish, prepare

__version__ = "0.1.0"

__all__ = [
    "AdaptiveClassifier", "Batch", "Between", "Exam", "Labeled", "Losses", "Method", "Net", "Outputs", "Phase",
    "Predictor", "Result", "Search", "Shape", "State", "Study", "Task", "Unlabeled", "UserError", "Wish", "both",
    "check_method", "fit", "load", "load_task", "prepare", "run",
]  # fmt: skip

_HOMES = {
    "askew.api": ("Result", "run"),
    "askew.check": ("check_method",),
    "askew.data": ("Exam", "Labeled", "Study", "Task", "Unlabeled", "load_task"),
    "askew.data.feed": ("Batch",),
    "askew.engine": ("fit",),
    "askew.errors": ("UserError",),
    "askew.estimator": ("AdaptiveClassifier",),
    "askew.method": ("Losses", "Method", "Outputs", "Phase", "Shape", "State", "both"),
    "askew.nets": ("Net",),
    "askew.options": ("Between", "Search"),
    "askew.predictor": ("Predictor", "load"),
    "askew.recipe": ("Wish", "prepare"),
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, so nothing is imported before it is asked for.
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'askew' has no attribute '{name}'")
