"""Methods that are trained by gradients, which lanes, graphs and several processes are for."""

from __future__ import annotations

from askew.methods import METHODS
from askew.methods.base import ClosedForm

TRAINED = [id for id, cls in METHODS.items() if not issubclass(cls, ClosedForm)]
