"""The files of one adaptation belong together: its summary holds a hash of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.inference.model_card import CARD_HASH
from askew.inference.weights import CARD_FILE

SUMMARY = "summary.json"
MODEL = "model"


def model_hash(model: Path) -> str:
    """The hash in a model's card, which covers its weights; empty if there is none."""
    value = _json(model / CARD_FILE).get(CARD_HASH)
    return value if isinstance(value, str) else ""


def require_one_result(out: Path) -> None:
    """Raise a UserError if the model and the summary in a folder are of different adaptations.

    A process that is killed while it replaces a result leaves such a mixture. A folder without a
    summary, or of an earlier version, has nothing to compare.
    """
    files = _json(out / SUMMARY).get("files")
    written = files.get(MODEL) if isinstance(files, dict) else None
    found = model_hash(out / MODEL)
    if written and found and written != found:
        raise UserError(
            f"The model in {out} is not of the same adaptation as its {SUMMARY}: a command was "
            "stopped while it replaced them.",
            "start that command again with the same -o: finished trainings are kept.",
        )


def _json(file: Path) -> dict[str, Any]:
    """The object in a file; an empty one where it cannot be read, since others check it."""
    try:
        values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
