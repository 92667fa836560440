"""Run folders: what a run wrote, each file whole or absent, with hashes by which damage is
found."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from askew.core import files
from askew.core.errors import UserError
from askew.core.files import Damaged, open_own, write_bytes, write_json, writing
from askew.data.paths import require_file
from askew.runs.claims import Claim, Taken, claim, holder_of

if (
    TYPE_CHECKING
):  # torch takes seconds to import, and commands that count or tabulate runs need none of it
    from askew.training.snapshot import Checkpoint
    from askew.training.trainer import Resume

_WRITERS = (
    8  # a gigabyte of tensors is on its way at a time, and more threads than that wait for the disk
)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
PRETRAINING = "pretraining"
"""Marks the folder of a run that only serves as pre-training for others."""
FAILURE = "failed.json"
"""Why a run could not be finished; removed when the run is started again."""


@dataclass(frozen=True)
class RunFolder:
    """One run's folder: run.json, trace.jsonl, last.safetensors, then weights, outputs, scores.json
    and done."""

    path: Path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    def intact(self, *, whole: bool = False) -> bool:
        """Whether the results of a run that is done are as they were written.

        Tensors are large: only their sizes are compared, and one may have been removed to save
        room, unless the `whole` is asked for.
        """
        try:
            for name, (size, hash) in self._manifest()["files"].items():
                file, small = self.path / name, name.endswith((".json", ".jsonl"))
                if not (file.exists() or small or whole):
                    continue
                if not file.is_file() or file.stat().st_size != size:
                    return False
                if (small or whole) and files.file_digest(file) != hash:
                    return False
        except (OSError, ValueError, TypeError, Damaged):  # a name may be one that no system takes
            return False
        return True

    def _manifest(self) -> dict[str, Any]:
        """The content of `done` below its own hash: size and hash of each file, and the scores in
        short.

        Runs of early versions have an empty one.
        """
        file = self.path / "done"
        if file.exists() and not file.is_file():
            raise Damaged(file, "not a file")
        hash, _, content = file.read_bytes().partition(b"\n")
        if not hash:
            return {"files": {}}
        if hash.decode(errors="replace") != files.digest(content):
            raise Damaged(file)
        try:
            manifest: dict[str, Any] = json.loads(content)
            if all(len(entry) == 2 for entry in manifest["files"].values()):
                return manifest
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            pass  # a stranger can write a hash that is right
        raise Damaged(file)

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
        """Hold the folder alone; Taken if another process does. A process that dies releases it;
        see `claims`."""
        with writing(self.path / ".lock"):
            self.path.mkdir(exist_ok=True)
            held = claim(self.path, dead)
        try:
            with writing(self.path / ".lock"):
                for left in self.path.glob(".*.*"):  # half-written by a process that was killed
                    left.unlink(missing_ok=True)
            yield held
        finally:
            held.release()

    def tidy(self, names: Collection[str]) -> None:
        """Remove what a killed process left among these names: its claim, temporary files, a
        checkpoint of no use."""
        claimed = any(name.startswith("claim.") or files.is_temporary(Path(name)) for name in names)
        if (claimed or {"done", "last.safetensors"} <= set(names)) and holder_of(self.path) is None:
            with contextlib.suppress(Taken, UserError, OSError), self.claimed():
                if self.done:
                    (self.path / "last.safetensors").unlink(missing_ok=True)

    def describe(self, record: dict[str, Any]) -> None:
        """Write run.json, unless it has this content already."""
        file = self.path / "run.json"
        content = (json.dumps(record, indent=1) + "\n").encode()
        if not file.is_file() or file.read_bytes() != content:
            write_bytes(file, content)

    # --- results ---

    def scores(self, *, reweighted: bool = False) -> dict[str, Any]:
        """Scores by test split; of logits reweighted by the estimated target prior on request."""
        name = "reweighted.json" if reweighted else "scores.json"
        if reweighted and not (self.path / name).exists():
            raise self._too_old()
        scores = self._read(name)
        return scores["scores"] if reweighted else scores

    def record(self) -> dict[str, Any]:
        """run.json: what the run is, and how it was trained."""
        return self._read("run.json")

    def reweighting(self) -> dict[str, Any]:
        """reweighted.json, with the estimated label distribution of the target; empty where there
        is none."""
        return self._read("reweighted.json") if (self.path / "reweighted.json").exists() else {}

    def summary(self, *, reweighted: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
        """run.json of a run that is done, and its scores in short, which a table of ten thousand
        can afford to read."""
        manifest = self._manifest()
        record, name = self.record(), "reweighted" if reweighted else "scores"
        if name not in manifest and reweighted and "scores" in manifest:
            raise self._too_old()
        return record, manifest[name] if name in manifest else self.scores(reweighted=reweighted)

    def _too_old(self) -> UserError:
        return UserError(
            f"The run {self.path.name} was finished by an askew that did not reweight logits yet.",
            "leave --reweight out, or choose another folder with --out.",
        )

    def _read(self, name: str) -> dict[str, Any]:
        """One of the small results; Damaged if it is missing, or if its hash is not the one in
        `done`."""
        try:
            value = json.loads(self._content(name))
        except (ValueError, RecursionError):
            raise Damaged(self.path / name) from None
        if not isinstance(value, dict):
            raise Damaged(self.path / name)
        return value

    def _content(self, name: str) -> bytes:
        file = self.path / name
        if not file.is_file():  # a pipe would be waited for
            raise Damaged(file, "not a file" if file.exists() else "missing")
        content = file.read_bytes()
        _, hash = self._manifest()["files"].get(name, (0, None)) if self.done else (0, None)
        if hash is not None and hash != files.digest(content):
            raise Damaged(file)
        return content

    # --- while training ---

    def add_trace(self, entry: dict[str, Any]) -> None:
        trace = self.path / "trace.jsonl"
        with writing(trace), open_own(trace, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def trace(self) -> list[dict[str, Any]]:
        """What `add_trace` wrote; Damaged if it is not that. Empty where there is none."""
        file = self.path / "trace.jsonl"
        try:
            entries = (
                [json.loads(line) for line in self._content(file.name).splitlines()]
                if file.exists()
                else []
            )
        except (ValueError, RecursionError):
            raise Damaged(file) from None
        if not all(
            isinstance(entry, dict) and {"step", "losses"} <= entry.keys() for entry in entries
        ):
            raise Damaged(file)
        return entries

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
        except (FileNotFoundError, Damaged, KeyError, ValueError, RecursionError):
            with writing(trace):
                trace.unlink(missing_ok=True)
            return None
        with writing(trace), contextlib.suppress(FileNotFoundError):
            os.truncate(trace, kept)
        return resume

    # --- at the end ---

    def finish(self) -> None:
        """Write `done`: size and hash of every result, and the scores in short."""
        there = (p for p in self.path.iterdir() if p.suffix in (".json", ".jsonl", ".safetensors"))
        results = sorted(p for p in there if p.is_file())
        kept = [p for p in results if p.name not in ("last.safetensors", FAILURE)]
        manifest: dict[str, Any] = {
            "files": {p.name: [p.stat().st_size, files.file_digest(p)] for p in kept}
        }
        for name in ("scores", "reweighted"):
            if (self.path / f"{name}.json").exists():
                long = json.loads((self.path / f"{name}.json").read_bytes())
                manifest[name] = _in_short(long["scores"] if name == "reweighted" else long)
        content = json.dumps(manifest).encode()
        write_bytes(self.path / "done", files.digest(content).encode() + b"\n" + content)
        with contextlib.suppress(OSError):  # the run is done all the same; `tidy` tries it again
            (self.path / "last.safetensors").unlink(missing_ok=True)

    def reopen(self) -> None:
        """Remove `done`, since the results are damaged, and why the run could not be finished
        before."""
        with writing(self.path / "done"):
            (self.path / "done").unlink(missing_ok=True)
            (self.path / FAILURE).unlink(missing_ok=True)

    def failure(self) -> str:
        """Why the run could not be finished; empty if it did not fail."""
        try:
            require_file(self.path / FAILURE)
            return str(json.loads((self.path / FAILURE).read_bytes())["reason"])
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return "its reason cannot be read"

    def ends(self) -> tuple[int, int]:
        """When the run was finished, and when it failed, by the file system's clock; 0 for
        never."""

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
    """Scores without those that have one entry per class: the ones of 345 classes take a
    megabyte."""
    return {
        test: {n: v for n, v in s.items() if n not in ("per_class", "confusion")}
        for test, s in scores.items()
    }


def side_by_side(work: Callable[[Item], Outcome], items: Sequence[Item]) -> list[Outcome]:
    """What threads make of folders: hashing and files take a second for each run of a large
    network."""
    if len(items) == 1:
        return [work(items[0])]
    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(work, items))
