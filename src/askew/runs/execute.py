"""Carry a run out in its folder: train, save, score; go on where it was interrupted."""

from __future__ import annotations

import contextlib
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from askew import __version__
from askew.core.errors import UserError
from askew.core.files import read_tensors, write_json, write_tensors
from askew.data.task import Task, TestLabels
from askew.evaluation.metrics import score_test
from askew.evaluation.priors import UnsureMixWarning, reweighted, target_prior
from askew.runs.claims import Claim, Taken, Watch, run_label
from askew.runs.store import RunFolder
from askew.training.distributed import Team, fit_together
from askew.training.lanes import fit_lanes
from askew.training.loop import Checkpoint, NotFinite, Snapshot
from askew.training.run import Run
from askew.training.trainer import Resume, fit

SAVING = 0.05
"""Share of the time that may go into checkpoints: some lanes of a large network are a gigabyte."""


@dataclass(frozen=True)
class Execution:
    """How to run, as opposed to what: none of this changes a run's identity."""

    root: Path
    device: torch.device
    graph: bool = True
    checkpoint_every: float = 20.0
    """Seconds between checkpoints; more where saving one takes long, so that it costs SAVING of the time at most."""
    lanes: int = 0
    """Most runs that are trained in one step; 0: as many as pay on this device."""
    curve: bool = False
    """Score the exam after every round, into the trace. For looking only: nothing is chosen by it."""
    dead: frozenset[str] = frozenset()
    """Holders of run folders that were watched and are taken for dead."""
    team: Team | None = None
    """The processes that share one run out among them, this one being the first."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for whoever shows it."""

    key: str
    label: str
    step: int
    steps: int
    losses: dict[str, float]


@dataclass(frozen=True)
class Broken:
    """A run whose numbers were no longer finite, and what to say of it; its fellow lanes go on."""

    key: str
    error: UserError


@dataclass(frozen=True)
class Busy:
    """A run that somebody else is at, or at what it builds on: the folder to wait for."""

    key: str
    folder: Path


def execute(run: Run, task: Task, how: Execution, *, pretraining: bool = False) -> Iterator[Progress]:
    """Bring the run's folder to `done`, whatever is there already and whoever else is at it, yielding progress.

    One that is carried out only for others to build on is marked as `pretraining`, and tables leave it out.
    """
    how.root.mkdir(parents=True, exist_ok=True)
    watch, busy = Watch(), True
    while busy:
        busy = False
        for event in execute_lanes([(run, task)], replace(how, dead=frozenset(watch.dead)), pretraining=pretraining):
            if isinstance(event, Broken):
                raise event.error
            if isinstance(event, Busy):
                busy = True
                while not watch.free(event.folder):
                    time.sleep(0.2)
            else:
                yield event


def execute_lanes(
    runs: Sequence[tuple[Run, Task]], how: Execution, *, pretraining: bool = False
) -> Iterator[Progress | Broken | Busy]:
    """The same for runs of one `lane_shape`, trained together, without waiting; each ends as one ordinary folder."""
    lanes = {run.key: _Lane(run, task, RunFolder(how.root / run.key), pretraining) for run, task in runs}
    lanes = {
        key: lane for key, lane in lanes.items() if not (lane.done and (pretraining or not lane.folder.pretraining))
    }
    if not lanes:
        return
    torch.set_num_threads(runs[0][0].threads)
    stopped: dict[str, Broken | Busy] = {}
    before = [(lane.run.before, lane.task) for lane in lanes.values() if lane.run.before is not None]
    for event in execute_lanes(before, how, pretraining=True):
        if isinstance(event, Progress):
            yield event
        else:
            stopped[event.key] = event
    with contextlib.ExitStack() as claims:
        together: dict[int, list[_Lane]] = {}
        for key, lane in lanes.items():
            if lane.run.before is not None and lane.run.before.key in stopped:
                yield replace(stopped[lane.run.before.key], key=key)
                continue
            try:
                lane.claim = claims.enter_context(lane.folder.claimed(how.dead))
            except Taken:
                yield Busy(key, lane.folder.path)
                continue
            lane.folder.mark(pretraining)
            if not lane.done:  # somebody else may have finished it by now
                lane.folder.reopen()
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
    claim: Claim | None = None
    resume: Resume | None = None
    last: Snapshot | None = None

    @property
    def done(self) -> bool:
        """With sound results: all of them where others build on its weights."""
        return self.folder.done and self.folder.intact(whole=self.pretraining)

    @property
    def label(self) -> str:
        return run_label(self.run.task, "pre-training" if self.pretraining else self.run.method.id, self.run.seed)

    def tell(self, step: int, steps: int) -> bool:
        """Say how far it is, to whoever looks at its folder; False if the folder is somebody else's by now."""
        assert self.claim is not None
        self.claim.report(self.label, step, steps)
        return not self.claim.lost

    def start(self, root: Path) -> Checkpoint | None:
        """The weights that the stages before left."""
        return None if self.run.before is None else read_tensors(root / self.run.before.key / "weights.safetensors")[0]

    def note(self, snapshot: Snapshot, seconds: float, how: Execution) -> None:
        """A round's end, in the trace."""
        entry: dict[str, Any] = {"step": snapshot.step, "losses": snapshot.losses, "seconds": round(seconds, 3)}
        if how.curve and self.task.test is not None:
            scores = score_test(self.task.test, snapshot.outputs.test.cpu().numpy())
            entry["oracle"] = {name: s["per_class_mean"] for name, s in scores.items()}
        self.folder.add_trace(entry)

    def broken(self, why: str) -> Broken:
        kept = f"; the last good checkpoint is kept in {self.folder.path}" if self.folder.has_checkpoint else ""
        hint = (
            "lower the learning rate (-t lr=…, -t features_lr=…) or the method's weights, or use -t precision=float32."
        )
        return Broken(self.run.key, UserError(f"{self.label}: {why}{kept}.", hint))

    def finish(self) -> None:
        """Keep the weights, what the network says, and its scores where there is an exam."""
        snapshot, path = self.last, self.folder.path
        assert snapshot is not None
        write_tensors(path / "weights.safetensors", snapshot.weights(), {"form": "1"})
        outputs = snapshot.outputs
        logits = {"exam": outputs.test, "target": outputs.target, "source_val": outputs.source_val}
        told = {name: value.half() for name, value in logits.items()}
        told |= {"source_val_y": outputs.source_val_y, "seen_mix": snapshot.training_prior}
        write_tensors(path / "outputs.safetensors", told, {"form": "1"})
        if self.task.test is not None:
            write_json(path / "reweighted.json", _reweighted_scores(self.task.test, snapshot))
            write_json(path / "scores.json", score_test(self.task.test, outputs.test.cpu().numpy()))
        self.folder.finish()


def _train(lanes: Sequence[_Lane], step: int, how: Execution) -> Iterator[Progress | Broken | Busy]:
    """From a step to the end, all lanes at once; one that breaks, or is taken over, is left where it was."""
    first, steps = lanes[0], lanes[0].run.plan[-1].steps
    for lane in lanes:
        lane.folder.describe(_record(lane.run, lane.task, how, len(lanes)))
        lane.tell(step, steps)
    label = first.label if len(lanes) == 1 else f"{first.label} and {len(lanes) - 1} more"
    yield Progress(first.run.key, label, step, steps, {})
    saved = began = time.monotonic()
    pause = how.checkpoint_every
    sound = list(lanes)
    for seen in _snapshots(lanes, how):
        now = time.monotonic()
        save = now - saved >= pause
        for lane, snapshot in zip(lanes, seen, strict=True):
            if lane not in sound:
                continue
            if isinstance(snapshot, NotFinite):
                sound.remove(lane)
                yield lane.broken(f"{snapshot.what} after step {snapshot.step}")
                continue
            if not lane.tell(snapshot.step, steps):
                sound.remove(lane)
                yield Busy(lane.run.key, lane.folder.path)
                continue
            lane.last, step = snapshot, snapshot.step
            if snapshot.round_ends:
                lane.note(snapshot, now - began, how)
            if save and step < steps:
                lane.folder.save_checkpoint(step, snapshot.checkpoint(), list(snapshot.losses))
        if not sound:
            return
        if save:
            saved = time.monotonic()
            pause = max(how.checkpoint_every, (saved - now) / SAVING) if how.checkpoint_every else 0
        assert sound[0].last is not None
        yield Progress(first.run.key, label, step, steps, sound[0].last.losses)
    for lane in sound:
        lane.finish()


def _snapshots(lanes: Sequence[_Lane], how: Execution) -> Iterator[Sequence[Snapshot | NotFinite]]:
    """What training shows of each lane; a lane alone takes the plain way."""
    starts = [lane.start(how.root) for lane in lanes]
    if len(lanes) == 1:
        (lane,) = lanes
        plain = partial(fit, graph=how.graph) if how.team is None else partial(fit_together, how.team)
        try:
            for snapshot in plain(lane.run, lane.task.training_data, how.device, start=starts[0], resume=lane.resume):
                yield [snapshot]
        except NotFinite as error:
            yield [error]
        return
    resumes = [lane.resume for lane in lanes if lane.resume is not None] or None
    runs, training_datas = [lane.run for lane in lanes], [lane.task.training_data for lane in lanes]
    yield from fit_lanes(runs, training_datas, how.device, starts=starts, resumes=resumes, graph=how.graph)


def _reweighted_scores(test: TestLabels, snapshot: Snapshot) -> dict[str, Any]:
    """Scores of the same network with its logits reweighted by the estimated target mix; costs no training."""
    outputs, seen = snapshot.outputs, snapshot.training_prior
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", UnsureMixWarning)
        mix = target_prior(outputs.source_val, outputs.source_val_y, outputs.target)
    unsure = any(issubclass(doubt.category, UnsureMixWarning) for doubt in doubts)
    scores = score_test(test, reweighted(outputs.test, mix, seen).cpu().numpy())
    return {"target_mix": mix.tolist(), "seen_mix": seen.tolist(), "unsure": unsure, "scores": scores}


def _record(run: Run, task: Task, how: Execution, lanes: int) -> dict[str, Any]:
    """Everything that made a run: what it is, and how and with what it was carried out."""
    device = torch.cuda.get_device_name(how.device) if how.device.type == "cuda" else platform.machine()
    versions = {"askew": __version__, "torch": torch.__version__, "python": platform.python_version()}
    training_data = task.training_data
    return {
        "key": run.key,
        "run": run.describe(),
        "images": {
            "source": len(training_data.source),
            "source_val": len(training_data.source_val),
            "target": len(training_data.target),
        },
        "notes": list(task.notes),
        "classes": list(training_data.classes),
        "source_sizes": training_data.source.sizes(len(training_data.classes)).tolist(),
        "shape": list(training_data.source.x.shape[1:]),
        "device": device,
        "graph": how.graph and how.device.type == "cuda" and how.team is None,
        "lanes": lanes,
        "processes": 1 if how.team is None else how.team.size,
        "versions": versions,
    }
