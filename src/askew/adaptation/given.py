"""Labels of target images as people give them in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from askew.adaptation.request import GivenLabels
from askew.core.errors import UserError
from askew.core.options import shown
from askew.data.custom import CustomDomain
from askew.data.feature_columns import is_frame
from askew.data.objects import as_domain


def labels_of(labels: Any, names: Sequence[str]) -> Path | GivenLabels | CustomDomain:
    """Labels in a file, with their images or rows, by name, or one for each of the names."""
    if isinstance(labels, str | Path):
        return Path(labels)
    if _holds_rows(labels):
        return as_domain(labels, "source")
    listed = hasattr(labels, "__len__") and (not hasattr(labels, "ndim") or labels.ndim > 0)
    if not hasattr(labels, "items") and not listed:
        raise UserError(
            f"The labels are {shown(labels)}, and neither a file nor labels of images.",
            "give a path, a dictionary from names to labels, or one label or None for each image.",
        )
    if not hasattr(labels, "items") and len(labels) != len(names):
        raise UserError(
            f"There are {len(labels)} labels and {len(names)} target images.",
            "give one or None for each.",
        )
    pairs = labels.items() if hasattr(labels, "items") else zip(names, labels, strict=True)
    return GivenLabels({str(name): _label(label) for name, label in pairs})


def _holds_rows(labels: Any) -> bool:
    """Tell whether labels came with what they are of: as a pair, a table or a data set."""
    pair = isinstance(labels, tuple) and len(labels) == 2
    if pair and (is_frame(labels[0]) or getattr(labels[0], "ndim", 0) > 1):
        return True
    if pair and isinstance(labels[0], list | tuple):
        return len(labels[0]) > 0
    return is_frame(labels) or hasattr(labels, "column_names") or hasattr(labels, "dataset")


def _label(value: Any) -> str:
    """A label as text; empty if there is none."""
    plain = value.item() if hasattr(value, "item") else value
    return "" if plain is None or plain != plain else str(plain)
