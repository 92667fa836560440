"""Methods that are trained by gradients, which lanes, graphs and several processes are for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from askew.methods import METHODS
from askew.methods.base import ClosedForm, Method

FITTED = [id for id, cls in METHODS.items() if not cls.runner]
"""All but those that train other methods."""
TRAINED = [id for id in FITTED if not issubclass(METHODS[id], ClosedForm)]


def small(id: str, **params: Any) -> Method:
    """A method with a narrow critic, where it has one: width costs time and changes nothing in how
    it is trained."""
    cls = METHODS[id]
    return cls(
        **({"hidden": 16} if "hidden" in {field.name for field in fields(cls)} else {}) | params
    )
