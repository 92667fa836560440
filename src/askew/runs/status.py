"""How far the runs in a folder are, read from the folders alone, at any time and from any machine that sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from askew.runs.claims import Holder, holder_of
from askew.runs.store import FAILURE, PRETRAINING, RunFolder, known_root, run_folders


@dataclass(frozen=True)
class Status:
    """What became of the runs of a folder."""

    done: int
    pretrainings: int
    """Done too, but only for others to build on."""
    running: dict[str, Holder]
    """By key: who is at it, and how far."""
    failed: dict[str, tuple[str, str]]
    """By key: what it is, and the reason."""
    waiting: dict[str, str]
    """By key: what it is; begun and left, or planned by a grid and not begun."""
    damaged: dict[str, str]
    """By key: what it is; done, but with results that are not as they were written."""


def read_status(root: Path, *, check: bool = False) -> Status:
    """Where the runs stand; `check` compares every result with its hash, which takes as long as reading them."""
    planned = dict(_planned(known_root(root)))
    status = Status(0, 0, {}, {}, {}, {})
    done = pretrainings = 0
    for folder, names in run_folders(root):
        key = folder.name
        named = planned.pop(key, "")
        if "done" in names:
            if check and not RunFolder(folder).intact(whole=True):
                status.damaged[key] = named or _label(folder)
            elif PRETRAINING in names:
                pretrainings += 1
            else:
                done += 1
        elif any(name.startswith("claim.") for name in names) and (holder := holder_of(folder)):
            status.running[key] = replace(holder, label=holder.label or named or _label(folder))
        elif FAILURE in names:
            status.failed[key] = (named or _label(folder), RunFolder(folder).failure())
        elif named or ("run.json" in names and PRETRAINING not in names):
            status.waiting[key] = named or _label(folder)
    waiting = dict(sorted((status.waiting | planned).items(), key=lambda run: run[1]))
    return Status(done, pretrainings, status.running, status.failed, waiting, status.damaged)


def _planned(root: Path) -> Iterator[tuple[str, str]]:
    """Key and label of every run that a grid wrote down before it began."""
    for file in root.glob("plan-*.json"):
        runs = _read(file).get("runs", {})
        if isinstance(runs, dict):
            yield from ((str(key), str(label)) for key, label in runs.items())


def _read(file: Path) -> dict[str, Any]:
    """A file's values; none if it is not there or torn: whoever looks at the rest should not be stopped by that."""
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _label(folder: Path) -> str:
    try:
        run = _read(folder / "run.json")["run"]
        what = "pre-training" if (folder / PRETRAINING).exists() else run["plan"][-1]["method"]["id"]
        return f"{run['task']} {what} seed {run['seed']}"
    except (KeyError, TypeError, IndexError):
        return folder.name


def as_json(status: Status) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "done": status.done,
        "pretrainings": status.pretrainings,
        "running": [
            {"key": key, "run": h.label, "step": h.step, "steps": h.steps, "host": h.host, "pid": h.pid}
            for key, h in status.running.items()
        ],
        "failed": [{"key": key, "run": label, "reason": why} for key, (label, why) in status.failed.items()],
        "waiting": [{"key": key, "run": label} for key, label in status.waiting.items()],
        "damaged": [{"key": key, "run": label} for key, label in status.damaged.items()],
    }
