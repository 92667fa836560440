"""Carry a run out in its folder: train, save, score; go on where it was interrupted."""

from __future__ import annotations

import contextlib
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from askew import __version__
from askew.data.task import Task
from askew.engine import Resume, fit
from askew.errors import UserError
from askew.lanes import fit_lanes
from askew.loop import Checkpoint, NotFinite, Snapshot
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
    lanes: int = 1
    """Most runs to train together."""
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


@dataclass(frozen=True)
class Broken:
    """A run whose numbers were no longer finite, and what to say of it; its fellow lanes go on."""

    key: str
    error: UserError


def execute(run: Run, task: Task, how: Execution, *, pretraining: bool = False) -> Iterator[Progress]:
    """Bring the run's folder to `done`, whatever is there already, yielding progress.

    One that is carried out only for others to build on is marked as `pretraining`, and tables leave it out.
    """
    for event in execute_lanes([(run, task)], how, pretraining=pretraining):
        if isinstance(event, Broken):
            raise event.error
        yield event


def execute_lanes(
    runs: Sequence[tuple[Run, Task]], how: Execution, *, pretraining: bool = False
) -> Iterator[Progress | Broken]:
    """The same for runs of one `lane_shape`, trained together; each ends as one ordinary folder."""
    lanes = {run.key: _Lane(run, task, RunFolder(how.root / run.key), pretraining) for run, task in runs}
    lanes = {
        key: lane
        for key, lane in lanes.items()
        if not (lane.folder.done and (pretraining or not lane.folder.pretraining))
    }
    if not lanes:
        return
    torch.set_num_threads(runs[0][0].threads)
    broken: dict[str, UserError] = {}
    before = [(lane.run.before, lane.task) for lane in lanes.values() if lane.run.before is not None]
    for event in execute_lanes(before, how, pretraining=True):
        if isinstance(event, Broken):
            broken[event.key] = event.error
        else:
            yield event
    with contextlib.ExitStack() as claims:
        for key in sorted(lanes):  # all processes claim in one order, so none waits for another that waits for it
            claims.enter_context(lanes[key].folder.claimed())
        together: dict[int, list[_Lane]] = {}
        for lane in lanes.values():
            if lane.run.before is not None and lane.run.before.key in broken:
                yield Broken(lane.run.key, broken[lane.run.before.key])
                continue
            lane.folder.mark(pretraining)
            if not lane.folder.done:  # another process may have finished it while we waited
                lane.resume = lane.folder.resume()
                together.setdefault(lane.resume.step if lane.resume else 0, []).append(lane)
        for step, group in together.items():
            yield from _train(group, step, how)


@dataclass
class _Lane:
    """One of the runs that are carried out together."""

    run: Run
    task: Task
    folder: RunFolder
    pretraining: bool
    resume: Resume | None = None
    last: Snapshot | None = None

    @property
    def label(self) -> str:
        what = "pre-training" if self.pretraining else self.run.method.id
        return f"{self.run.task} {what} seed {self.run.seed}"

    def start(self, root: Path) -> Checkpoint | None:
        """The weights that the stages before left."""
        return None if self.run.before is None else read_tensors(root / self.run.before.key / "weights.safetensors")[0]

    def note(self, snapshot: Snapshot, seconds: float, how: Execution) -> None:
        """A round's end, in the trace."""
        entry: dict[str, Any] = {"step": snapshot.step, "losses": snapshot.losses, "seconds": round(seconds, 3)}
        if how.curve:
            scores = score_exam(self.task.exam, snapshot.outputs.exam.cpu().numpy())
            entry["oracle"] = {name: s["per_class_mean"] for name, s in scores.items()}
        self.folder.add_trace(entry)

    def broken(self, why: str) -> Broken:
        kept = f"; the last good checkpoint is kept in {self.folder.path}" if self.folder.has_checkpoint else ""
        hint = (
            "lower the learning rate (-t lr=…, -t features_lr=…) or the method's weights, or use -t precision=float32."
        )
        return Broken(self.run.key, UserError(f"{self.label}: {why}{kept}.", hint))

    def finish(self) -> None:
        """Keep the weights, what the network says, and its scores."""
        snapshot, path = self.last, self.folder.path
        assert snapshot is not None
        write_tensors(path / "weights.safetensors", snapshot.weights(), {"form": "1"})
        outputs = snapshot.outputs
        logits = {"exam": outputs.exam, "target": outputs.target, "source_val": outputs.source_val}
        write_tensors(path / "outputs.safetensors", {k: v.half() for k, v in logits.items()}, {"form": "1"})
        write_json(path / "reweighted.json", _reweighted_scores(self.task, snapshot))
        write_json(path / "scores.json", score_exam(self.task.exam, outputs.exam.cpu().numpy()))
        self.folder.finish()


def _train(lanes: Sequence[_Lane], step: int, how: Execution) -> Iterator[Progress | Broken]:
    """From a step to the end, all lanes at once; one that breaks is left where it was."""
    for lane in lanes:
        lane.folder.describe(_record(lane.run, lane.task, how, len(lanes)))
    first, steps = lanes[0], lanes[0].run.plan[-1].steps
    label = first.label if len(lanes) == 1 else f"{first.label} and {len(lanes) - 1} more"
    yield Progress(first.run.key, label, step, steps, {})
    saved = began = time.monotonic()
    sound = list(lanes)
    for seen in _snapshots(lanes, how):
        now = time.monotonic()
        save = now - saved >= how.checkpoint_every
        for lane, snapshot in zip(lanes, seen, strict=True):
            if lane not in sound:
                continue
            if isinstance(snapshot, NotFinite):
                sound.remove(lane)
                yield lane.broken(f"{snapshot.what} after step {snapshot.step}")
                continue
            lane.last, step = snapshot, snapshot.step
            if snapshot.round_ends:
                lane.note(snapshot, now - began, how)
            if save and step < steps:
                lane.folder.save_checkpoint(step, snapshot.checkpoint(), list(snapshot.losses))
        if not sound:
            return
        saved = time.monotonic() if save else saved
        assert sound[0].last is not None
        yield Progress(first.run.key, label, step, steps, sound[0].last.losses)
    for lane in sound:
        lane.finish()


def _snapshots(lanes: Sequence[_Lane], how: Execution) -> Iterator[Sequence[Snapshot | NotFinite]]:
    """What training shows of each lane; a lane alone takes the plain way."""
    starts = [lane.start(how.root) for lane in lanes]
    if len(lanes) == 1:
        (lane,) = lanes
        try:
            for snapshot in fit(
                lane.run, lane.task.study, how.device, start=starts[0], resume=lane.resume, graph=how.graph
            ):
                yield [snapshot]
        except NotFinite as error:
            yield [error]
        return
    resumes = [lane.resume for lane in lanes if lane.resume is not None] or None
    runs, studies = [lane.run for lane in lanes], [lane.task.study for lane in lanes]
    yield from fit_lanes(runs, studies, how.device, starts=starts, resumes=resumes, graph=how.graph)


def _reweighted_scores(task: Task, snapshot: Snapshot) -> dict[str, Any]:
    """Scores of the same network with its logits reweighted by the estimated target mix; costs no training."""
    outputs, seen = snapshot.outputs, snapshot.seen_mix
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UnsureMixWarning)
        mix = target_mix(outputs.source_val, outputs.source_val_y, outputs.target)
    unsure = any(issubclass(doubt.category, UnsureMixWarning) for doubt in doubts)
    scores = score_exam(task.exam, reweighted(outputs.exam, mix, seen).cpu().numpy())
    return {"target_mix": mix.tolist(), "seen_mix": seen.tolist(), "unsure": unsure, "scores": scores}


def _record(run: Run, task: Task, how: Execution, lanes: int) -> dict[str, Any]:
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
        "lanes": lanes,
        "versions": versions,
    }
