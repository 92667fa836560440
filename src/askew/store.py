"""Run folders: what a run wrote, atomically, so that nothing is half there, and with hashes, so that damage shows."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askew.claims import Claim, claim
from askew.data.folders import cannot_write, whole_file
from askew.errors import UserError

if TYPE_CHECKING:  # torch takes seconds to import, and who counts or tabulates runs needs none of it
    from torch import Tensor

    from askew.engine import Resume
    from askew.loop import Checkpoint

MARKER = "askew-runs.json"
PRETRAINING = "pretraining"
"""Marks the folder of a run that was only carried out for others to build on."""
FAILURE = "failed.json"
"""Why a run could not be finished; gone when somebody is at it again."""

_HINT = (
    "see that the folder is there, writable and has room, then start the same command again: it goes on from the last "
    "checkpoint. Or choose another folder with --out."
)


_OLD_NOTES = {"form", "step", "losses", "trace"}  # all that files of before there were hashes have


class Unwritable(UserError):
    """A folder of runs that cannot be written to: no other run will fare better."""


class Damaged(UserError):
    """A file that is not as it was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"The file {path} is damaged.",
            "start the command that made it again: runs with damaged results are done anew.",
        )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A write that fails, explained."""
    try:
        yield
    except OSError as error:
        told = cannot_write(error, path, _HINT)
        raise Unwritable(told.sentence, told.hint) from error
    except UserError as error:
        raise Unwritable(error.sentence, error.hint) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, into a folder that is there: a mount that has vanished must not be written beneath."""
    with _writing(path):
        path.parent.stat()
        with whole_file(path, _HINT) as temporary:
            temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Values a line each, but for lists of numbers: a confusion matrix has as many lines as rows."""
    text = re.sub(
        r"\[\s+([-+.\deE,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", json.dumps(value, indent=1)
    )
    write_bytes(path, (text + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str]) -> None:
    """Tensors and notes, with a hash of both."""
    from safetensors.torch import save

    kept = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # One entry, since safetensors writes several in any order, and equal runs should be equal files.
    notes = json.dumps(meta | {"hash": _digest(kept, meta)})
    write_bytes(path, save(kept, metadata={"notes": notes}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same back; Damaged if they are not what was written."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = file.metadata() or {}
        if "notes" not in meta and meta.keys() <= _OLD_NOTES:
            return tensors, meta
        meta = json.loads(meta["notes"])
        told = meta.pop("hash")
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(path) from error
    if told != _digest(tensors, meta):
        raise Damaged(path)
    return tensors, meta


def _digest(tensors: dict[str, Tensor], meta: dict[str, str]) -> str:
    """A hash of names, kinds, shapes and bytes, in the order of the names."""
    import torch

    hash = hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hash.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        bytes_of = tensor.as_strided((tensor.numel(),), (1,))  # a contiguous tensor of one element may have any stride
        hash.update(bytes_of.view(torch.uint8).numpy().data)
    return hash.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _in_short(scores: dict[str, Any]) -> dict[str, Any]:
    """Scores without what has an entry a class: those of 345 classes take a megabyte."""
    return {exam: {n: v for n, v in s.items() if n not in ("per_class", "confusion")} for exam, s in scores.items()}


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
        from askew.engine import Resume

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
