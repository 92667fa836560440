"""All methods by id, anyone's own from a file (`mine.py:Mine`), a package or Python, and what a
method's author needs."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askew.core.errors import UserError, unknown
from askew.core.options import Between, Search, checked
from askew.core.plugins import content_hash, load_file, load_plugin, plugins, source_of
from askew.methods.auto import Auto
from askew.methods.base import (
    Batch,
    ClosedForm,
    Losses,
    Method,
    Outputs,
    Phase,
    Shape,
    State,
    join_domains,
)
from askew.methods.bbse import BBSE
from askew.methods.bsp import BSP
from askew.methods.cdan import CDAN
from askew.methods.coal import COAL
from askew.methods.dan import DAN
from askew.methods.dann import DANN
from askew.methods.etn import ETN
from askew.methods.fdann import FDANN
from askew.methods.fixmatch import FixMatch
from askew.methods.guided import GuidedTeacher
from askew.methods.jan import JAN
from askew.methods.lda import DiscriminantAnalysis
from askew.methods.logistic import BalancedLogistic
from askew.methods.mcc import MCC
from askew.methods.mcd import MCD
from askew.methods.mdd import MDD
from askew.methods.pada import PADA
from askew.methods.prototypes import Prototypes
from askew.methods.sentry import SENTRY
from askew.methods.shares import ShareAware
from askew.methods.source import SourceOnly
from askew.methods.teacher import PriorAwareTeacher
from askew.methods.uan import UAN
from askew.nets.network import Net

if TYPE_CHECKING:
    check_method: Callable[..., None]
    fit: Callable[..., Any]

GROUPS: dict[str, tuple[type[Method], ...]] = {
    "paper": (SourceOnly, DAN, JAN, DANN, MCD, BSP, BBSE, PADA, ETN, UAN, FDANN, COAL),
    "further": (CDAN, MDD, MCC, FixMatch, SENTRY),
    "ours": (
        Auto,
        PriorAwareTeacher,
        GuidedTeacher,
        Prototypes,
        DiscriminantAnalysis,
        ShareAware,
        BalancedLogistic,
    ),
}
"""The twelve that the COAL paper compares, others that were published, and our own."""
PAPER = tuple(cls.id for cls in GROUPS["paper"])
"""What a benchmark trains unless methods are named."""
COMPARED = tuple(
    cls.id
    for group in GROUPS.values()
    for cls in group
    if not (issubclass(cls, ClosedForm) or cls.takes_soft_labels or cls.runner)
)
"""What the recipes of a benchmark train: all that learn by gradients, from the data alone, and so
can be given equal conditions."""
METHODS: dict[str, type[Method]] = {cls.id: cls for group in GROUPS.values() for cls in group}

FOR_AUTHORS = (
    "Batch",
    "Between",
    "Losses",
    "Method",
    "Net",
    "Outputs",
    "Phase",
    "Search",
    "Shape",
    "State",
    "check_method",
    "fit",
    "join_domains",
)
"""What the author of a method needs; the API reference lists these names."""

__all__ = [
    "BBSE",
    "BSP",
    "CDAN",
    "COAL",
    "COMPARED",
    "DAN",
    "DANN",
    "ETN",
    "FDANN",
    "FOR_AUTHORS",
    "GROUPS",
    "JAN",
    "MCC",
    "MCD",
    "MDD",
    "METHODS",
    "PADA",
    "PAPER",
    "SENTRY",
    "UAN",
    "Auto",
    "BalancedLogistic",
    "Batch",
    "Between",
    "ClosedForm",
    "DiscriminantAnalysis",
    "FixMatch",
    "GuidedTeacher",
    "Losses",
    "Method",
    "Net",
    "Outputs",
    "Phase",
    "PriorAwareTeacher",
    "Prototypes",
    "Search",
    "Shape",
    "ShareAware",
    "SourceOnly",
    "State",
    "check_method",
    "fit",
    "id_and_params",
    "is_file",
    "is_installed",
    "join_domains",
    "known_method",
    "make_method",
    "method_class",
]


_HOMES = {"check_method": "askew.testing", "fit": "askew.training.trainer"}
"""Names from rooms that import this one, so they are imported when they are first used."""

_DEFINED: dict[str, type[Method]] = {}
"""Classes that Python code handed over, by id."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'askew.methods' has no attribute '{name}'")


def is_file(name: str) -> bool:
    """Whether a method is named as `file.py:Class`: to load it is to run the file."""
    return ".py:" in name


def known_method(name: str) -> str:
    """The same name; UserError if there is no such id. Loads nothing, so `file.py:Class` is not
    looked into."""
    known = [*METHODS, *_DEFINED, *plugins("askew.methods")]
    if name not in known and not is_file(name):
        raise unknown(
            "method", name, known, "`askew methods` lists them; your own is `file.py:Class`."
        )
    return name


def is_installed(cls: type[Method]) -> bool:
    """Whether any process finds the class by its id."""
    return METHODS.get(cls.id) is cls or (
        cls.id in plugins("askew.methods") and _from_package(cls.id) is cls
    )


def method_class(name: str) -> type[Method]:
    """The class behind an id, or behind `file.py:Class`."""
    if is_file(known_method(name)):
        return _from_file(*name.rsplit(":", 1))
    return METHODS.get(name) or _DEFINED.get(name) or _from_package(name)


def make_method(name: str, values: dict[str, Any]) -> Method:
    """A method with its hyper-parameters checked."""
    cls = method_class(name)
    return cls(**checked(cls, values, f"method {cls.id}"))


def id_and_params(method: str | Method | type[Method]) -> tuple[str, dict[str, Any]]:
    """What a run is asked for by: a method's name, and the hyper-parameters that an object holds.

    A class that is not askew's can then be found by its id, until another one of that id is handed
    over.
    """
    if isinstance(method, str):
        return method, {}
    cls = method if isinstance(method, type) else type(method)
    if METHODS.get(cls.id) is not cls:
        if cls.id in METHODS:
            raise UserError(
                f"The id '{cls.id}' of {cls.__name__} is that of one of askew's methods.",
                "give it an id of its own.",
            )
        _DEFINED[cls.id] = _revised(cls, source_of(cls))
    params = (
        {}
        if isinstance(method, type)
        else {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    )
    return cls.id, params


def _from_file(file: str, name: str) -> type[Method]:
    module = load_file(file, "method", "a method of your own is `file.py:Class`.")
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(
            f"{file} defines no method class '{name}'.", "derive it from askew.methods.Method."
        )
    cls.revision = content_hash([Path(file).read_bytes()])
    return cls


def _from_package(name: str) -> type[Method]:
    cls = load_plugin("askew.methods", name)
    if not (isinstance(cls, type) and issubclass(cls, Method) and cls.id == name):
        raise UserError(
            f"The plug-in {name} is no method class of that id.",
            "its entry point names a class derived from Method.",
        )
    return _revised(cls, inspect.getsource(sys.modules[cls.__module__]).encode())


def _revised(cls: type[Method], code: bytes) -> type[Method]:
    """The class with a hash of its code for a revision, unless its author keeps one."""
    if "revision" not in cls.__dict__:
        cls.revision = content_hash([code])
    return cls
