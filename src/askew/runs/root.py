"""The folder that holds run folders: marked as ours, swept of what killed processes left, and
listed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from askew.core import files
from askew.core.errors import UserError
from askew.core.files import Damaged, write_json, writing
from askew.core.tracking import LOGS
from askew.data.paths import require_file
from askew.runs.store import PRETRAINING, RunFolder

MARKER = "askew-runs.json"
"""Marks a folder of runs as ours."""
FORM = 2
"""Version of the layout of run folders."""


def check_root(path: Path) -> Path:
    """A folder that runs may be written to; UserError if it holds other things. Writes nothing."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder.", "choose another folder with --out.")
    if path.is_dir() and not (path / MARKER).exists() and not is_unmarked(path):
        raise UserError(
            f"The folder {path} holds other things and was not made by askew.",
            "choose a new or empty folder with --out.",
        )
    _check_form(path, "choose a new or empty folder with --out")
    return path


def check_out(out: Path) -> None:
    """UserError if the folder of an adaptation, whose runs are in `runs`, is somebody else's;
    writes nothing."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder.", "choose another folder with -o.")
    runs = out / "runs"
    if (runs / MARKER).exists() or not out.is_dir():
        _check_form(runs, "choose a new or empty folder with -o")
        return
    if not all(files.is_temporary(p) or (p == runs and is_unmarked(p)) for p in out.iterdir()):
        raise UserError(
            f"The folder {out} holds other things and was not made by askew.",
            "choose a new or empty folder with -o.",
        )


def is_unmarked(path: Path) -> bool:
    """Whether a folder is empty, but for what a process left that was killed while it marked the
    folder as ours."""
    return path.is_dir() and all(
        files.is_temporary(p) or p.name.startswith(f".{MARKER}.") for p in path.iterdir()
    )


def open_root(path: Path) -> Path:
    """The same, made and marked as ours."""
    check_root(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    files.sweep(path)
    if not (path / MARKER).exists():
        write_json(path / MARKER, {"what": "a folder of askew runs", "form": FORM})
    for folder, names in run_folders(path):
        RunFolder(folder).tidy(names)
    return path


def known_root(path: Path) -> Path:
    """A folder of runs that is there already."""
    if not (path / MARKER).is_file():
        raise UserError(
            f"{path} is not a folder of askew runs.", "name the folder that `askew bench` wrote to."
        )
    _check_form(path, "name another folder")
    return path


def _check_form(path: Path, hint: str) -> None:
    """Raise a UserError if the runs in a marked folder were stored by another version's layout."""
    if not (path / MARKER).exists():
        return
    try:
        require_file(path / MARKER)
        form = json.loads((path / MARKER).read_bytes())["form"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise Damaged(path / MARKER) from None
    if form != FORM:
        raise UserError(
            f"The runs in {path} are of form {form!r}, and this askew reads form {FORM}.",
            f"{hint}, or use the askew that made them.",
        )


def finished_runs(root: Path) -> list[Path]:
    """The folders of runs that are done and scored, without those that only serve as
    pre-training."""
    known_root(root)
    found = []
    for folder, names in run_folders(root):
        if "done" in names and "scores.json" in names and PRETRAINING not in names:
            found.append(folder)
    return sorted(found)


def run_folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every run's folder, and the names in it, by one listing each, since there may be ten
    thousand."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != LOGS and not entry.name.startswith("."):
                with os.scandir(entry.path) as inside:
                    yield Path(entry.path), {file.name for file in inside}
