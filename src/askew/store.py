"""Run folders: what a run wrote, atomically, so that nothing is ever half there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from askew.engine import Resume
from askew.errors import UserError
from askew.loop import Checkpoint

MARKER = "askew-runs.json"
PRETRAINING = "pretraining"
"""Marks the folder of a run that was only carried out for others to build on."""


def _explain(error: OSError, path: Path) -> UserError:
    """A write that failed, as the user can mend it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"There is no room left on the disk for {path.name} in {path.parent}.",
            "free some space and start the same command again: it goes on from the last checkpoint.",
        )
    return UserError(f"Cannot write {path}: {error.strerror}.", "choose another folder with --out.")


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary name beside it, flush to the disk, and rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C must not leave a temporary file either
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _explain(error, path) from error
        raise


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, (json.dumps(value, indent=1) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str]) -> None:
    from safetensors.torch import save

    write_bytes(path, save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata=meta))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def check_file(path: Path) -> None:
    """UserError if a file cannot be written there; writes nothing."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"Cannot write a file {path}.", "name a file in a folder that exists and is yours.")


def check_root(path: Path) -> Path:
    """A folder that runs may be written to; UserError if it is somebody else's. Writes nothing."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder.", "choose another folder with --out.")
    # A process that died while it marked the folder left a temporary marker, which is ours too.
    foreign = path.is_dir() and any(MARKER not in p.name for p in path.iterdir())
    if foreign and not (path / MARKER).exists():
        raise UserError(
            f"The folder {path} holds other things and was not made by askew.",
            "choose a new or empty folder with --out.",
        )
    return path


def open_root(path: Path) -> Path:
    """The same, made and marked as ours."""
    check_root(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, path) from error
    if not (path / MARKER).exists():
        write_json(path / MARKER, {"what": "a folder of askew runs", "form": 1})
    return path


def finished_runs(root: Path) -> list[Path]:
    """The folders of runs that are done and scored, without those that only served as pre-training."""
    if not (root / MARKER).is_file():
        raise UserError(f"{root} is not a folder of askew runs.", "name the folder that `askew bench` wrote to.")
    scored = (p.parent for p in root.glob("*/scores.json"))
    return sorted(p for p in scored if (p / "done").exists() and not RunFolder(p).pretraining)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: run.json, trace.jsonl, last.safetensors, then weights, outputs, scores.json and done."""

    path: Path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    @property
    def has_checkpoint(self) -> bool:
        return (self.path / "last.safetensors").exists()

    @property
    def pretraining(self) -> bool:
        """Whether it was only carried out for others to build on."""
        return (self.path / PRETRAINING).exists()

    def mark(self, pretraining: bool) -> None:
        """Say so, or that it now stands for itself."""
        if not pretraining:
            (self.path / PRETRAINING).unlink(missing_ok=True)
        elif not self.pretraining and not self.done:
            write_bytes(self.path / PRETRAINING, b"")

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder alone; a second process waits, and a process that dies lets go."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / ".lock").open("w")
        except OSError as error:
            raise _explain(error, self.path / ".lock") from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in self.path.glob(".*.*"):  # half-written by a process that was killed
                left.unlink(missing_ok=True)
            yield

    def describe(self, record: dict[str, Any]) -> None:
        """Write run.json, unless it says the same already."""
        file = self.path / "run.json"
        text = json.dumps(record, indent=1) + "\n"
        if not file.exists() or file.read_text() != text:
            write_bytes(file, text.encode())

    def scores(self, *, reweighted: bool = False) -> dict[str, Any]:
        """Scores by exam; those of logits reweighted by the estimated target mix on request."""
        scores: dict[str, Any]
        if reweighted:
            file = self.path / "reweighted.json"
            if not file.exists():
                raise UserError(
                    f"The run {self.path.name} was finished by an askew that did not reweight logits yet.",
                    "leave --reweight out, or choose another folder with --out.",
                )
            scores = json.loads(file.read_text())["scores"]
        else:
            scores = json.loads((self.path / "scores.json").read_text())
        return scores

    # --- while training ---

    def add_trace(self, entry: dict[str, Any]) -> None:
        try:
            with (self.path / "trace.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise _explain(error, self.path / "trace.jsonl") from error

    def trace(self) -> list[dict[str, Any]]:
        file = self.path / "trace.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def save_checkpoint(self, step: int, tensors: Checkpoint, loss_names: list[str]) -> None:
        trace = self.path / "trace.jsonl"
        meta = {
            "step": str(step),
            "losses": json.dumps(loss_names),
            "trace": str(trace.stat().st_size if trace.exists() else 0),
        }
        write_tensors(self.path / "last.safetensors", tensors, meta)

    def resume(self) -> Resume | None:
        """Where the last checkpoint stands; the trace is cut back to it."""
        file, trace = self.path / "last.safetensors", self.path / "trace.jsonl"
        if not file.exists():
            trace.unlink(missing_ok=True)
            return None
        tensors, meta = read_tensors(file)
        if trace.exists():
            os.truncate(trace, int(meta["trace"]))
        return Resume(int(meta["step"]), tensors, json.loads(meta["losses"]))

    # --- at the end ---

    def finish(self) -> None:
        write_bytes(self.path / "done", b"")
        (self.path / "last.safetensors").unlink(missing_ok=True)
