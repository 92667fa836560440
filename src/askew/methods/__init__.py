"""All methods by id, and anyone's from a file: `mine.py:Mine`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from askew.core.errors import UserError, unknown
from askew.core.options import checked
from askew.methods.base import Method
from askew.methods.bbse import BBSE
from askew.methods.bsp import BSP
from askew.methods.cdan import CDAN
from askew.methods.coal import COAL
from askew.methods.dan import DAN
from askew.methods.dann import DANN
from askew.methods.etn import ETN
from askew.methods.fdann import FDANN
from askew.methods.fixmatch import FixMatch
from askew.methods.jan import JAN
from askew.methods.mcc import MCC
from askew.methods.mcd import MCD
from askew.methods.mdd import MDD
from askew.methods.pada import PADA
from askew.methods.prototypes import Prototypes
from askew.methods.sentry import SENTRY
from askew.methods.source import SourceOnly
from askew.methods.teacher import PriorAwareTeacher
from askew.methods.uan import UAN

GROUPS: dict[str, tuple[type[Method], ...]] = {
    "paper": (SourceOnly, DAN, JAN, DANN, MCD, BSP, BBSE, PADA, ETN, UAN, FDANN, COAL),
    "further": (CDAN, MDD, MCC, FixMatch, SENTRY),
    "ours": (PriorAwareTeacher, Prototypes),
}
"""The twelve that the COAL paper compares, others that were published, and our own."""
PAPER = tuple(cls.id for cls in GROUPS["paper"])
"""What a benchmark trains unless methods are named."""
METHODS: dict[str, type[Method]] = {cls.id: cls for group in GROUPS.values() for cls in group}

__all__ = [
    "BBSE",
    "BSP",
    "CDAN",
    "COAL",
    "DAN",
    "DANN",
    "ETN",
    "FDANN",
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
    "FixMatch",
    "PriorAwareTeacher",
    "Prototypes",
    "SourceOnly",
    "make_method",
    "method_class",
]  # fmt: skip


def method_class(name: str) -> type[Method]:
    """The class behind an id, or behind `file.py:Class`."""
    if ".py:" in name:
        return _from_file(*name.rsplit(":", 1))
    if name not in METHODS:
        raise unknown("method", name, METHODS, "`askew methods` lists them; your own is `file.py:Class`.")
    return METHODS[name]


def make_method(name: str, values: dict[str, Any]) -> Method:
    """A method with its hyper-parameters checked."""
    cls = method_class(name)
    return cls(**checked(cls, values, f"method {cls.id}"))


def _from_file(file: str, name: str) -> type[Method]:
    path = Path(file)
    if not path.is_file():
        raise UserError(f"The method file {path} does not exist.", "a method of your own is `file.py:Class`.")
    revision = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"askew_method_{revision}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and inspect look a class's module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"{path} cannot be loaded: {error}.", "run it with python to see where it fails.") from error
    cls = getattr(module, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise UserError(f"{path} defines no method class '{name}'.", "derive it from askew.Method.")
    cls.revision = revision
    return cls
