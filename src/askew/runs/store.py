"""Run folders: what a run wrote, atomically, so that nothing is half there, and with hashes, so that damage shows."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askew.core.errors import UserError
from askew.runs.claims import Claim, claim

if TYPE_CHECKING:  # torch takes seconds to import, and who counts or tabulates runs needs none of it
    from askew.training.loop import Checkpoint
    from askew.training.trainer import Resume
from askew.core.files import Damaged, _hash, _hash_of, _writing, read_tensors, write_bytes, write_json, write_tensors

MARKER = "askew-runs.json"
PRETRAINING = "pretraining"
"""Marks the folder of a run that was only carried out for others to build on."""
FAILURE = "failed.json"
"""Why a run could not be finished; gone when somebody is at it again."""


def _in_short(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without what has an entry a class: those of 345 classes take a megabyte."""
    return {test: {n: v for n, v in s.items() if n not in ("per_class", "confusion")} for test, s in scores.items()}


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
    with _writing(path):
        path.mkdir(parents=True, exist_ok=True)
    if not (path / MARKER).exists():
        write_json(path / MARKER, {"what": "a folder of askew runs", "form": 1})
    return path


def known_root(path: Path) -> Path:
    """A folder of runs that is there already."""
    if not (path / MARKER).is_file():
        raise UserError(f"{path} is not a folder of askew runs.", "name the folder that `askew bench` wrote to.")
    return path


def finished_runs(root: Path) -> list[Path]:
    """The folders of runs that are done and scored, without those that only served as pre-training."""
    known_root(root)
    found = []
    for folder, names in run_folders(root):
        if "done" in names and "scores.json" in names and PRETRAINING not in names:
            found.append(folder)
    return sorted(found)


def run_folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every run's folder, and the names in it: one look each, since there may be ten thousand."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                with os.scandir(entry.path) as files:
                    yield Path(entry.path), {file.name for file in files}


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: run.json, trace.jsonl, last.safetensors, then weights, outputs, scores.json and done."""

    path: Path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def intact(self, *, whole: bool = False) -> bool:
        """Whether the results of a run that is done are as they were written.

        Tensors are large: of those only the sizes are compared, and one may have been removed to save room, unless the
        `whole` is asked for.
        """
        try:
            for name, (size, hash) in self._told()["files"].items():
                file, small = self.path / name, name.endswith(".json")
                if not (file.exists() or small or whole):
                    continue
                if file.stat().st_size != size or ((small or whole) and _hash_of(file) != hash):
                    return False
        except (OSError, Damaged):
            return False
        return True

    def _told(self) -> dict[str, Any]:
        """What `done` says below its own hash: size and hash of each file, and the scores in short.

        Runs of before it did have an empty one.
        """
        file = self.path / "done"
        hash, _, content = file.read_bytes().partition(b"\n")
        if not hash:
            return {"files": {}}
        if hash.decode(errors="replace") != _hash(content):
            raise Damaged(file)
        told: dict[str, Any] = json.loads(content)
        return told

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
            with _writing(self.path / PRETRAINING):
                (self.path / PRETRAINING).unlink(missing_ok=True)
        elif not self.pretraining and not self.done:
            write_bytes(self.path / PRETRAINING, b"")

    @contextlib.contextmanager
    def claimed(self, dead: Collection[str] = ()) -> Iterator[Claim]:
        """Hold the folder alone; Taken if somebody else does, and a process that dies lets go. See `claims`."""
        with _writing(self.path / ".lock"):
            self.path.mkdir(exist_ok=True)
            held = claim(self.path, dead)
        try:
            with _writing(self.path / ".lock"):
                (self.path / FAILURE).unlink(missing_ok=True)
                for left in self.path.glob(".*.*"):  # half-written by a process that was killed
                    left.unlink(missing_ok=True)
            yield held
        finally:
            held.release()

    def describe(self, record: dict[str, Any]) -> None:
        """Write run.json, unless it says the same already."""
        file = self.path / "run.json"
        text = json.dumps(record, indent=1) + "\n"
        if not file.exists() or file.read_bytes() != text.encode():
            write_bytes(file, text.encode())

    def scores(self, *, reweighted: bool = False) -> dict[str, Any]:
        """Scores by exam; those of logits reweighted by the estimated target mix on request."""
        name = "reweighted.json" if reweighted else "scores.json"
        if reweighted and not (self.path / name).exists():
            raise self._too_old()
        scores = self._read(name, self._told() if self.done else {"files": {}})
        return scores["scores"] if reweighted else scores

    def summary(self, *, reweighted: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """What made a run that is done, and its scores in short: what a table of ten thousand can afford to read."""
        told = self._told()
        record, name = self._read("run.json", told), "reweighted" if reweighted else "scores"
        if name not in told and reweighted and "scores" in told:
            raise self._too_old()
        return record, told[name] if name in told else self.scores(reweighted=reweighted)

    def _too_old(self) -> UserError:
        return UserError(
            f"The run {self.path.name} was finished by an askew that did not reweight logits yet.",
            "leave --reweight out, or choose another folder with --out.",
        )

    def _read(self, name: str, told: dict[str, Any]) -> dict[str, Any]:
        """One of the small results, compared with what `done` says of it."""
        content = (self.path / name).read_bytes()
        _, hash = told["files"].get(name, (0, None))
        try:
            value = json.loads(content)
        except ValueError:
            raise Damaged(self.path / name) from None
        if not isinstance(value, dict) or (hash is not None and hash != _hash(content)):
            raise Damaged(self.path / name)
        return value

    # --- while training ---

    def add_trace(self, entry: dict[str, Any]) -> None:
        with _writing(self.path / "trace.jsonl"), (self.path / "trace.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def trace(self) -> list[dict[str, Any]]:
        file = self.path / "trace.jsonl"
        try:
            return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []
        except ValueError:
            raise Damaged(file) from None

    def save_checkpoint(self, step: int, tensors: Checkpoint, loss_names: list[str]) -> None:
        trace = self.path / "trace.jsonl"
        meta = {
            "step": str(step),
            "losses": json.dumps(loss_names),
            "trace": str(trace.stat().st_size if trace.exists() else 0),
        }
        write_tensors(self.path / "last.safetensors", tensors, meta)

    def resume(self) -> Resume | None:
        """Where the last checkpoint stands, if it is sound; the trace is cut back to it."""
        from askew.training.trainer import Resume

        trace = self.path / "trace.jsonl"
        try:
            tensors, meta = read_tensors(self.path / "last.safetensors")
            kept = int(meta["trace"])
            if kept and trace.stat().st_size < kept:
                raise Damaged(trace)
            resume = Resume(int(meta["step"]), tensors, json.loads(meta["losses"]))
        except (FileNotFoundError, Damaged, KeyError, ValueError):
            trace.unlink(missing_ok=True)
            return None
        if trace.exists():
            os.truncate(trace, kept)
        return resume

    # --- at the end ---

    def finish(self) -> None:
        """Say that it is done, what its results are, so that damage to them shows, and its scores in short."""
        results = sorted(p for p in self.path.iterdir() if p.suffix in (".json", ".safetensors"))
        kept = [p for p in results if p.name not in ("last.safetensors", FAILURE)]
        told: dict[str, Any] = {"files": {p.name: [p.stat().st_size, _hash_of(p)] for p in kept}}
        for name in ("scores", "reweighted"):
            if (self.path / f"{name}.json").exists():
                long = json.loads((self.path / f"{name}.json").read_bytes())
                told[name] = _in_short(long["scores"] if name == "reweighted" else long)
        content = json.dumps(told).encode()
        write_bytes(self.path / "done", _hash(content).encode() + b"\n" + content)
        (self.path / "last.safetensors").unlink(missing_ok=True)

    def reopen(self) -> None:
        """Take that back: its results are damaged."""
        with _writing(self.path / "done"):
            (self.path / "done").unlink(missing_ok=True)

    def failure(self) -> str:
        """Why it could not be finished; empty if nobody said so."""
        try:
            return str(json.loads((self.path / FAILURE).read_bytes())["reason"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            return "its reason cannot be read"

    def ends(self) -> tuple[int, int]:
        """When it was finished, and when it failed, by the file system's clock; 0 for never."""

        def when(name: str) -> int:
            try:
                return (self.path / name).stat().st_mtime_ns
            except OSError:
                return 0

        return when("done"), when(FAILURE)

    def fail(self, reason: str) -> None:
        """Say why it could not be finished, if anything can be written at all."""
        with contextlib.suppress(UserError, OSError):
            self.path.mkdir(exist_ok=True)
            write_json(self.path / FAILURE, {"reason": reason})
