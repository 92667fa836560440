"""`askew.run`: train and score one run from Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.core.device import pick_device
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution, execute
from askew.runs.root import open_root
from askew.runs.store import RunFolder


@dataclass(frozen=True)
class Result:
    """A finished run: its key, its folder, and its scores on the whole test split and on the paper's test split."""

    key: str
    folder: Path
    scores: dict[str, Any]


def run(
    task: str,
    method: str = "coal",
    *,
    seed: int = 0,
    draw: int = 0,
    shift: str = "",
    hyper: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    out: Path | str = "runs",
    device: str = "auto",
) -> Result:
    """Train a method on a task and score it; a run that is already finished in `out` is read, not trained again."""
    request = RunRequest(
        task, method, seed, draw, shift, hyper or {}, training or {}, data=None if data is None else Path(data)
    )
    chosen, loaded = prepare(request)
    how = Execution(open_root(Path(out)), pick_device(device))
    for _ in execute(chosen, loaded, how):
        pass
    folder = RunFolder(how.root / chosen.key)
    return Result(chosen.key, folder.path, folder.scores())
