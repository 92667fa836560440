"""Files that a process leaves which is killed while it writes."""

from __future__ import annotations

from pathlib import Path

from askew.core.processes import process_space

DEAD = 2**31 - 1
"""Larger than any process's number."""


def left_by_dead_process(path: Path, pid: int = DEAD, space: str = "") -> Path:
    """A half-written file that was to become `path`."""
    left = path.with_name(f".{path.name}.{space or process_space()}-{pid}-{'0' * 16}")
    left.write_bytes(b"half")
    return left
