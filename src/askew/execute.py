"""Carry a run out in its folder: train, save, score; go on where it was interrupted."""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from askew import __version__
from askew.data.task import Task
from askew.engine import NotFinite, Snapshot, fit
from askew.errors import UserError
from askew.metrics import score_exam
from askew.plan import Run
from askew.priors import UnsureMixWarning, reweighted, target_mix
from askew.store import RunFolder, read_tensors, write_json, write_tensors


@dataclass(frozen=True)
class Execution:
    """How to run, as opposed to what: none of this changes a run's identity."""

    root: Path
    device: torch.device
    graph: bool = True
    checkpoint_every: float = 20.0
    """Seconds between checkpoints."""
    curve: bool = False
    """Score the exam after every round, into the trace. For looking only: nothing is chosen by it."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    key: str
    label: str
    step: int
    steps: int
    losses: dict[str, float]


def pick_device(name: str) -> torch.device:
    """`auto` is the first GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"There is no device '{name}'.", "auto, cpu, cuda, or cuda:N.") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and not torch.cuda.is_available()):
        raise UserError(f"The device '{name}' cannot be used here.", "auto, cpu, cuda, or cuda:N.")
    return device


def execute(run: Run, task: Task, how: Execution, *, pretraining: bool = False) -> Iterator[Progress]:
    """Bring the run's folder to `done`, whatever is there already, yielding progress.

    One that is carried out only for others to build on is marked as `pretraining`, and tables leave it out.
    """
    folder = RunFolder(how.root / run.key)
    if folder.done and (pretraining or not folder.pretraining):
        return
    torch.set_num_threads(run.threads)
    if run.before is not None:
        yield from execute(run.before, task, how, pretraining=True)
    with folder.claimed():
        folder.mark(pretraining)
        if not folder.done:  # another process may have finished it while we waited
            yield from _train(run, task, how, folder, "pre-training" if pretraining else run.method.id)


def _train(run: Run, task: Task, how: Execution, folder: RunFolder, what: str) -> Iterator[Progress]:
    label = f"{run.task} {what} seed {run.seed}"
    folder.describe(_record(run, task, how))
    start = None
    if run.before is not None:
        start, _ = read_tensors(how.root / run.before.key / "weights.safetensors")
    resume = folder.resume()
    steps = run.plan[-1].steps
    yield Progress(run.key, label, resume.step if resume else 0, steps, {})
    saved, began = time.monotonic(), time.monotonic()
    snapshot: Snapshot | None = None
    try:
        for snapshot in fit(run, task.study, how.device, start=start, resume=resume, graph=how.graph):
            if snapshot.round_ends:
                entry: dict[str, Any] = {"step": snapshot.step, "losses": snapshot.losses}
                entry["seconds"] = round(time.monotonic() - began, 3)
                if how.curve:
                    scores = score_exam(task.exam, snapshot.outputs.exam.cpu().numpy())
                    entry["oracle"] = {name: s["per_class_mean"] for name, s in scores.items()}
                folder.add_trace(entry)
            if time.monotonic() - saved >= how.checkpoint_every and snapshot.step < steps:
                folder.save_checkpoint(snapshot.step, snapshot.checkpoint(), list(snapshot.losses))
                saved = time.monotonic()
            yield Progress(run.key, label, snapshot.step, steps, snapshot.losses)
    except NotFinite as error:
        kept = f"; the last good checkpoint is kept in {folder.path}" if folder.has_checkpoint else ""
        raise UserError(
            f"{label}: {error.what} after step {error.step}{kept}.",
            "lower the learning rate (-t lr=…, -t features_lr=…) or the method's weights, or use -t precision=float32.",
        ) from error
    assert snapshot is not None
    write_tensors(folder.path / "weights.safetensors", snapshot.weights(), {"form": "1"})
    outputs = snapshot.outputs
    logits = {"exam": outputs.exam, "target": outputs.target, "source_val": outputs.source_val}
    write_tensors(folder.path / "outputs.safetensors", {k: v.half() for k, v in logits.items()}, {"form": "1"})
    write_json(folder.path / "reweighted.json", _reweighted_scores(task, snapshot))
    write_json(folder.path / "scores.json", score_exam(task.exam, outputs.exam.cpu().numpy()))
    folder.finish()


def _reweighted_scores(task: Task, snapshot: Snapshot) -> dict[str, Any]:
    """Scores of the same network with its logits reweighted by the estimated target mix; costs no training."""
    outputs, seen = snapshot.outputs, snapshot.seen_mix
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UnsureMixWarning)
        mix = target_mix(outputs.source_val, outputs.source_val_y, outputs.target)
    unsure = any(issubclass(doubt.category, UnsureMixWarning) for doubt in doubts)
    scores = score_exam(task.exam, reweighted(outputs.exam, mix, seen).cpu().numpy())
    return {"target_mix": mix.tolist(), "seen_mix": seen.tolist(), "unsure": unsure, "scores": scores}


def _record(run: Run, task: Task, how: Execution) -> dict[str, Any]:
    """Everything that made a run: what it is, and how and with what it was carried out."""
    device = torch.cuda.get_device_name(how.device) if how.device.type == "cuda" else platform.machine()
    versions = {"askew": __version__, "torch": torch.__version__, "python": platform.python_version()}
    study = task.study
    return {
        "key": run.key,
        "run": run.describe(),
        "images": {"source": len(study.source), "source_val": len(study.source_val), "target": len(study.target)},
        "notes": list(task.notes),
        "classes": list(study.classes),
        "device": device,
        "graph": how.graph and how.device.type == "cuda",
        "versions": versions,
    }
