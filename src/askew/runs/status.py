"""How far the runs in a folder are, read from files alone, at any time and from any machine that
sees the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from askew.data.paths import require_file
from askew.runs.claims import Holder, holder_of, run_label
from askew.runs.root import known_root, run_folders
from askew.runs.store import FAILURE, PRETRAINING, RunFolder


@dataclass(frozen=True, kw_only=True)
class Status:
    """How many runs of a folder are done, and which are not."""

    done: int
    pretrainings: int
    """Done too, but only as the start of other runs."""
    running: dict[str, Holder]
    """By key: the process that trains it, and its step."""
    failed: dict[str, tuple[str, str]]
    """By key: its label, and the reason."""
    waiting: dict[str, str]
    """By key: its label; interrupted, or planned by a grid and not started."""
    damaged: dict[str, str]
    """By key: its label; done, but a result differs from its hash. Filled by `check` alone."""


def read_status(root: Path, *, check: bool = False) -> Status:
    """The status of every run; `check` compares each result with its hash, which reads all files.
    Writes nothing."""
    planned = dict(_planned(known_root(root)))
    status = Status(done=0, pretrainings=0, running={}, failed={}, waiting={}, damaged={})
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
    return Status(
        done=done,
        pretrainings=pretrainings,
        running=status.running,
        failed=status.failed,
        waiting=waiting,
        damaged=status.damaged,
    )


def _planned(root: Path) -> Iterator[tuple[str, str]]:
    """Key and label of every run that a grid listed before it started."""
    for file in root.glob("plan-*.json"):
        runs = _read(file).get("runs", {})
        if isinstance(runs, dict):
            yield from ((str(key), str(label)) for key, label in runs.items())


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or damaged: the status of the other runs can
    still be shown."""
    try:
        require_file(file)
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _label(folder: Path) -> str:
    try:
        run = _read(folder / "run.json")["run"]
        what = (
            "pre-training" if (folder / PRETRAINING).exists() else run["plan"][-1]["method"]["id"]
        )
        return run_label(run["task"], what, run["seed"])
    except (KeyError, TypeError, IndexError):
        return folder.name


def as_json(status: Status) -> dict[str, Any]:
    """The status as values for JSON."""
    return {
        "done": status.done,
        "pretrainings": status.pretrainings,
        "running": [
            {
                "key": key,
                "run": h.label,
                "step": h.step,
                "steps": h.steps,
                "host": h.host,
                "pid": h.pid,
            }
            for key, h in status.running.items()
        ],
        "failed": [
            {"key": key, "run": label, "reason": why} for key, (label, why) in status.failed.items()
        ],
        "waiting": [{"key": key, "run": label} for key, label in status.waiting.items()],
        "damaged": [{"key": key, "run": label} for key, label in status.damaged.items()],
    }
