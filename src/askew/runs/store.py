"""Run folders: what a run wrote, each file whole or absent, with hashes by which damage is found."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askew.core import files
from askew.core.errors import UserError
from askew.core.files import Damaged, write_bytes, write_json, writing
from askew.runs.claims import Claim, claim

if TYPE_CHECKING:  # torch takes seconds to import, and commands that count or tabulate runs need none of it
    from askew.training.snapshot import Checkpoint
    from askew.training.trainer import Resume

MARKER = "askew-runs.json"
"""Marks a folder of runs as ours."""
PRETRAINING = "pretraining"
"""Marks the folder of a run that only serves as pre-training for others."""
FAILURE = "failed.json"
"""Why a run could not be finished; removed when the run is started again."""


def check_root(path: Path) -> Path:
    """A folder that runs may be written to; UserError if it holds other things. Writes nothing."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder.", "choose another folder with --out.")
    if path.is_dir() and not (path / MARKER).exists() and not is_unmarked(path):
        raise UserError(
            f"The folder {path} holds other things and was not made by askew.",
            "choose a new or empty folder with --out.",
        )
    return path


def is_unmarked(path: Path) -> bool:
    """Whether a folder is empty, but for what a process left that was killed while it marked the folder as ours."""
    return path.is_dir() and all(files.is_temporary(p) or p.name.startswith(f".{MARKER}.") for p in path.iterdir())


def open_root(path: Path) -> Path:
    """The same, made and marked as ours."""
    check_root(path)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    files.sweep(path)
    if not (path / MARKER).exists():
        write_json(path / MARKER, {"what": "a folder of askew runs", "form": 1})
    return path


def known_root(path: Path) -> Path:
    """A folder of runs that is there already."""
    if not (path / MARKER).is_file():
        raise UserError(f"{path} is not a folder of askew runs.", "name the folder that `askew bench` wrote to.")
    return path


def finished_runs(root: Path) -> list[Path]:
    """The folders of runs that are done and scored, without those that only serve as pre-training."""
    known_root(root)
    found = []
    for folder, names in run_folders(root):
        if "done" in names and "scores.json" in names and PRETRAINING not in names:
            found.append(folder)
    return sorted(found)


def run_folders(root: Path) -> Iterator[tuple[Path, set[str]]]:
    """Every run's folder, and the names in it, by one listing each, since there may be ten thousand."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith("."):
                with os.scandir(entry.path) as inside:
                    yield Path(entry.path), {file.name for file in inside}


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: run.json, trace.jsonl, last.safetensors, then weights, outputs, scores.json and done."""

    path: Path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def intact(self, *, whole: bool = False) -> bool:
        """Whether the results of a run that is done are as they were written.

        Tensors are large: only their sizes are compared, and one may have been removed to save room, unless the
        `whole` is asked for.
        """
        try:
            for name, (size, hash) in self._manifest()["files"].items():
                file, small = self.path / name, name.endswith(".json")
                if not (file.exists() or small or whole):
                    continue
                if file.stat().st_size != size or ((small or whole) and files.file_digest(file) != hash):
                    return False
        except (OSError, Damaged):
            return False
        return True

    def _manifest(self) -> dict[str, Any]:
        """The content of `done` below its own hash: size and hash of each file, and the scores in short.

        Runs of early versions have an empty one.
        """
        file = self.path / "done"
        hash, _, content = file.read_bytes().partition(b"\n")
        if not hash:
            return {"files": {}}
        if hash.decode(errors="replace") != files.digest(content):
            raise Damaged(file)
        manifest: dict[str, Any] = json.loads(content)
        return manifest

    @property
    def has_checkpoint(self) -> bool:
        return (self.path / "last.safetensors").exists()

    @property
    def pretraining(self) -> bool:
        """Whether the run only serves as pre-training for others."""
        return (self.path / PRETRAINING).exists()

    def mark(self, pretraining: bool) -> None:
        """Mark the run as pre-training for others, or as one that is asked for itself."""
        if not pretraining:
            with writing(self.path / PRETRAINING):
                (self.path / PRETRAINING).unlink(missing_ok=True)
        elif not self.pretraining and not self.done:
            write_bytes(self.path / PRETRAINING, b"")

    @contextlib.contextmanager
    def claimed(self, dead: Collection[str] = ()) -> Iterator[Claim]:
        """Hold the folder alone; Taken if another process does. A process that dies releases it; see `claims`."""
        with writing(self.path / ".lock"):
            self.path.mkdir(exist_ok=True)
            held = claim(self.path, dead)
        try:
            with writing(self.path / ".lock"):
                (self.path / FAILURE).unlink(missing_ok=True)
                for left in self.path.glob(".*.*"):  # half-written by a process that was killed
                    left.unlink(missing_ok=True)
            yield held
        finally:
            held.release()

    def describe(self, record: dict[str, Any]) -> None:
        """Write run.json, unless it has this content already."""
        file = self.path / "run.json"
        content = (json.dumps(record, indent=1) + "\n").encode()
        if not file.exists() or file.read_bytes() != content:
            write_bytes(file, content)

    # --- results ---

    def scores(self, *, reweighted: bool = False) -> dict[str, Any]:
        """Scores by test split; of logits reweighted by the estimated target prior on request."""
        name = "reweighted.json" if reweighted else "scores.json"
        if reweighted and not (self.path / name).exists():
            raise self._too_old()
        scores = self._read(name, self._manifest() if self.done else {"files": {}})
        return scores["scores"] if reweighted else scores

    def summary(self, *, reweighted: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """run.json of a run that is done, and its scores in short, which a table of ten thousand can afford to read."""
        manifest = self._manifest()
        record, name = self._read("run.json", manifest), "reweighted" if reweighted else "scores"
        if name not in manifest and reweighted and "scores" in manifest:
            raise self._too_old()
        return record, manifest[name] if name in manifest else self.scores(reweighted=reweighted)

    def _too_old(self) -> UserError:
        return UserError(
            f"The run {self.path.name} was finished by an askew that did not reweight logits yet.",
            "leave --reweight out, or choose another folder with --out.",
        )

    def _read(self, name: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """One of the small results; Damaged if its hash is not the one in `done`."""
        content = (self.path / name).read_bytes()
        _, hash = manifest["files"].get(name, (0, None))
        try:
            value = json.loads(content)
        except ValueError:
            raise Damaged(self.path / name) from None
        if not isinstance(value, dict) or (hash is not None and hash != files.digest(content)):
            raise Damaged(self.path / name)
        return value

    # --- while training ---

    def add_trace(self, entry: dict[str, Any]) -> None:
        with writing(self.path / "trace.jsonl"), (self.path / "trace.jsonl").open("a") as file:
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
        files.write_tensors(self.path / "last.safetensors", tensors, meta)

    def resume(self) -> Resume | None:
        """The last checkpoint, if it is undamaged; the trace is cut back to it."""
        from askew.training.trainer import Resume

        trace = self.path / "trace.jsonl"
        try:
            tensors, meta = files.read_tensors(self.path / "last.safetensors")
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
        """Write `done`: size and hash of every result, and the scores in short."""
        results = sorted(p for p in self.path.iterdir() if p.suffix in (".json", ".safetensors"))
        kept = [p for p in results if p.name not in ("last.safetensors", FAILURE)]
        manifest: dict[str, Any] = {"files": {p.name: [p.stat().st_size, files.file_digest(p)] for p in kept}}
        for name in ("scores", "reweighted"):
            if (self.path / f"{name}.json").exists():
                long = json.loads((self.path / f"{name}.json").read_bytes())
                manifest[name] = _in_short(long["scores"] if name == "reweighted" else long)
        content = json.dumps(manifest).encode()
        write_bytes(self.path / "done", files.digest(content).encode() + b"\n" + content)
        (self.path / "last.safetensors").unlink(missing_ok=True)

    def reopen(self) -> None:
        """Remove `done`, since the results are damaged."""
        with writing(self.path / "done"):
            (self.path / "done").unlink(missing_ok=True)

    def failure(self) -> str:
        """Why the run could not be finished; empty if it did not fail."""
        try:
            return str(json.loads((self.path / FAILURE).read_bytes())["reason"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            return "its reason cannot be read"

    def ends(self) -> tuple[int, int]:
        """When the run was finished, and when it failed, by the file system's clock; 0 for never."""

        def when(name: str) -> int:
            try:
                return (self.path / name).stat().st_mtime_ns
            except OSError:
                return 0

        return when("done"), when(FAILURE)

    def fail(self, reason: str) -> None:
        """Write down why the run could not be finished, if anything can be written at all."""
        with contextlib.suppress(UserError, OSError):
            self.path.mkdir(exist_ok=True)
            write_json(self.path / FAILURE, {"reason": reason})


def _in_short(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without those that have one entry per class: the ones of 345 classes take a megabyte."""
    return {test: {n: v for n, v in s.items() if n not in ("per_class", "confusion")} for test, s in scores.items()}
