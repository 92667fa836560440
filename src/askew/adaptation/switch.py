"""Replace the whole result of an adaptation, and refuse to replace one of another request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from askew.adaptation.request import AdaptRequest
from askew.adaptation.target_rows import TARGET_FILE, TargetRows
from askew.core.errors import UserError
from askew.core.files import file_digest, own_folder, write_json, writing
from askew.data.custom import CustomDomain
from askew.inference.one_result import MODEL, SUMMARY, model_hash
from askew.inference.predictor import Predictor, replace_model

PREDICTIONS, REPORT = "predictions.csv", "report.html"
_WORDS = {
    "target_shares": "known class shares",
    "params": "hyper-parameters",
    "training": "training settings",
    "fine_tune": "--fine-tune",
    "skip_broken": "--skip-broken",
    "quick": "--quick",
    "search": "--search",
}
"""What settings are called in a message, where that is not their name."""


# --- one request, one folder ---


def identity(request: AdaptRequest) -> dict[str, Any]:
    """Give everything that decides what an adaptation is, as JSON."""
    values: dict[str, Any] = {
        name: _plain(getattr(request, name))
        for name in (
            *("source", "target", "methods", "params", "search", "backbone", "weights"),
            *("fine_tune", "quick", "seed", "training", "skip_broken", "labels"),
            *("target_shares", "resamples"),
        )
    }
    values["columns"] = [request.columns.path, request.columns.label]
    return dict(json.loads(json.dumps(values)))


def _plain(value: Any) -> Any:
    """Give a path whole, and data in memory as a hash of their content."""
    if isinstance(value, Path):
        return os.path.realpath(value)  # of a loop of links too
    if isinstance(value, CustomDomain):
        content = [TargetRows.of(value).as_dict(), value.labels]
        return f"in memory: {_hash_of(content)}"
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _hash_of(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def require_same(out: Path, asked: Mapping[str, Any], *, overwrite: bool) -> None:
    """Raise a UserError if a folder holds the result of another request, unless it may be
    overwritten."""
    if overwrite:
        return
    try:
        summary = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
        earlier = summary.get("identity") or _earlier_identity(summary.get("request"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # there is no finished result
    if not isinstance(earlier, dict):
        differ = ["request"]
    else:
        names = [*asked, *(name for name in earlier if name not in asked)]
        differ = [name for name in names if name in earlier and earlier[name] != asked.get(name)]
    if differ:
        words = [_WORDS.get(name, name) for name in differ]
        last = words.pop()
        which = f"{', '.join(words)} and {last}" if words else last
        raise UserError(
            f"The folder {out} holds an adaptation with another {which}.",
            "choose another folder with -o, or replace it with --overwrite (in Python: "
            "overwrite=True).",
        )


def _earlier_identity(request: Any) -> dict[str, Any] | None:
    """The same of a summary of an earlier version, which has the request alone."""
    if not isinstance(request, dict):
        return None
    columns = request.get("columns")
    rest = {name: value for name, value in request.items() if name not in ("take", "log")}
    if isinstance(columns, dict):
        rest["columns"] = [columns.get("path"), columns.get("label")]
    return rest


# --- one result ---


@contextlib.contextmanager
def new_result(out: Path) -> Iterator[Path]:
    """Give a hidden folder to write a result into; then all of it takes its place.

    The summary takes its place last, and holds a hash of the model. So a reader can tell a mixture
    of two results, which a kill between two renames leaves (`require_one_result`).
    """
    with own_folder(out / "result") as new:
        yield new
        replace_model(new / MODEL, out / MODEL)
        for name in (TARGET_FILE, PREDICTIONS, REPORT, SUMMARY):
            if (new / name).exists():
                with writing(out / name):
                    (new / name).replace(out / name)


def finish_result(
    new: Path, model: Predictor, target: TargetRows, summary: Mapping[str, Any]
) -> None:
    """Write the model, the identity of the target's rows, and a summary with a hash of each
    file."""
    model.save(new / MODEL)
    write_json(new / TARGET_FILE, target.as_dict())
    names = [name for name in (TARGET_FILE, PREDICTIONS, REPORT) if (new / name).exists()]
    files = {MODEL: model_hash(new / MODEL), **{n: file_digest(new / n) for n in names}}
    write_json(new / SUMMARY, {**summary, "files": files})
