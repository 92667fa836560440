"""Execute a run in its folder: train, save, score; resume where it was interrupted."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from askew import __version__
from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.core.plugins import load_function
from askew.core.tracking import Maker, Trackers, info
from askew.data.task import Task
from askew.evaluation.metrics import main_scores, score_test
from askew.runs.claims import Claim, Taken, Watch, run_label
from askew.runs.outcome import Outcome, Predictions, score_predictions, write_outcome
from askew.runs.store import RunFolder, side_by_side
from askew.training.clocks import CheckpointTimer, stopwatch
from askew.training.distributed import Team, fit_together
from askew.training.lanes import fit_lanes
from askew.training.run import Run
from askew.training.snapshot import Checkpoint, NotFinite, Snapshot
from askew.training.trainer import Resume, fit

_BROKEN_HINT = (
    "lower the learning rate (-t lr, -t features_lr) or the method's weights, or use -t "
    "precision=float32."
)


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How to run, as opposed to what: none of this changes a run's key."""

    root: Path
    device: torch.device
    graph: bool = True
    checkpoint_every: float = 20.0
    """Seconds between checkpoints; more where saving one takes long, so that it costs 5 % of the
    time at most."""
    lanes: int = 0
    """Most runs that are trained in one step; 0: as many as pay on this device."""
    curve: bool = False
    """Score the test split after every round, into the trace. Only to look at: nothing is chosen by
    it."""
    dead: frozenset[str] = frozenset()
    """Holders of run folders that a `Watch` found to be dead."""
    team: Team | None = None
    """The processes that train one run together, this one being the first."""
    log: tuple[str | Maker, ...] = ()
    """Trackers that hear of every run: tensorboard, wandb, mlflow, or a class."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    key: str
    label: str
    step: int
    steps: int
    losses: dict[str, float]
    left: float | None = None  # seconds to the end of all that was asked for, where they are known


@dataclass(frozen=True)
class Broken:
    """A run whose numbers were no longer finite; the other lanes go on."""

    key: str
    error: UserError


@dataclass(frozen=True)
class Busy:
    """A run that another process works on, or whose pre-training it does: the folder to wait
    for."""

    key: str
    folder: Path


def execute(run: Run, task: Task, how: Execution) -> Iterator[Progress]:
    """Bring the run's folder to `done`, whatever is in it and whoever else works on it, yielding
    progress."""
    how.root.mkdir(parents=True, exist_ok=True)
    watch, busy = Watch(), True
    while busy:
        busy = False
        for event in execute_lanes([(run, task)], replace(how, dead=frozenset(watch.dead))):
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
    """The same for runs of one `lane_shape`, trained together, without waiting; each ends as one
    ordinary folder.

    Runs that only serve as pre-training for others are marked as `pretraining`, and tables leave
    them out.
    """
    lanes = _missing_lanes(runs, how, pretraining)
    if not lanes:
        return
    torch.set_num_threads(lanes[0].run.threads)
    stopped: dict[str, Broken | Busy] = {}
    before = [(lane.run.before, lane.task) for lane in lanes if lane.run.before is not None]
    for event in execute_lanes(before, how, pretraining=True):
        if isinstance(event, Progress):
            yield event
        else:
            stopped[event.key] = event

    with contextlib.ExitStack() as claims:
        by_step: dict[int, list[_Lane]] = {}
        for lane in lanes:
            if lane.run.before is not None and lane.run.before.key in stopped:
                yield replace(stopped[lane.run.before.key], key=lane.run.key)
                continue
            try:
                lane.claim = claims.enter_context(lane.folder.claimed(how.dead))
            except Taken:
                yield Busy(lane.run.key, lane.folder.path)
                continue
            lane.folder.mark(pretraining)
            if lane.done:  # another process has finished it by now
                continue
            lane.folder.reopen()
            if lane.run.method.runner:
                yield from _train_by_runner(lane, how)
                continue
            lane.resume = lane.folder.resume()
            by_step.setdefault(lane.resume.step if lane.resume else 0, []).append(lane)
        for step, together in by_step.items():
            yield from _train(together, step, how)


def _missing_lanes(
    runs: Sequence[tuple[Run, Task]], how: Execution, pretraining: bool
) -> list[_Lane]:
    """A lane for each run that is not done yet."""
    lanes = {
        run.key: _Lane(
            run=run, task=task, folder=RunFolder(how.root / run.key), pretraining=pretraining
        )
        for run, task in runs
    }
    return [
        lane
        for lane in lanes.values()
        if not (lane.done and (pretraining or not lane.folder.pretraining))
    ]


@dataclass(kw_only=True)
class _Lane:
    """One of the runs that are trained together."""

    run: Run
    task: Task
    folder: RunFolder
    pretraining: bool
    claim: Claim | None = None
    resume: Resume | None = None
    last: Snapshot | None = None
    outcome: Outcome | None = None
    trackers: Trackers = field(default_factory=Trackers)

    @property
    def done(self) -> bool:
        """With undamaged results; of a pre-training all of them, since others start from its
        weights."""
        return self.folder.done and self.folder.intact(whole=self.pretraining)

    @property
    def label(self) -> str:
        return run_label(
            self.run.task, "pre-training" if self.pretraining else self.run.method.id, self.run.seed
        )

    def begin(self, step: int, lanes: int, how: Execution) -> None:
        """Write what the run is, and tell the claim and the trackers that it starts."""
        self.folder.describe(_record(self.run, self.task, how, lanes))
        self.report(step)
        self.trackers = Trackers(how.log)
        self.trackers.started(info(self.run.key, self.label, self.run.describe(), how.root, step))

    def report(self, step: int, steps: int = 0) -> bool:
        """Write into the claim how far the run is; False if another process has taken the folder
        over."""
        assert self.claim is not None
        self.claim.report(self.label, step, steps or self.run.plan[-1].steps)
        return not self.claim.lost

    def start(self, root: Path) -> Checkpoint | None:
        """The weights of the run that this one continues."""
        return (
            None
            if self.run.before is None
            else read_tensors(root / self.run.before.key / "weights.safetensors")[0]
        )

    def advance(
        self, snapshot: Snapshot | NotFinite, how: Execution, seconds: float
    ) -> Broken | Busy | None:
        """Take the next snapshot, and write the end of a round into the trace; or what has stopped
        the lane."""
        if isinstance(snapshot, NotFinite):
            return self.broken(f"{snapshot.what} after step {snapshot.step}")
        if not self.report(snapshot.step):
            return Busy(self.run.key, self.folder.path)
        self.last = snapshot
        if snapshot.round_ends:
            entry: dict[str, Any] = {
                "step": snapshot.step,
                "losses": snapshot.losses,
                "seconds": round(seconds, 3),
            }
            if how.curve and self.task.test is not None:
                with stopwatch.on("scoring"):
                    scores = score_test(self.task.test, snapshot.outputs.test.cpu().numpy())
                entry["oracle"] = {name: s["per_class_mean"] for name, s in scores.items()}
            self.folder.add_trace(entry)
            values = {
                f"{kind}/{name}": v
                for kind in ("losses", "oracle")
                for name, v in entry.get(kind, {}).items()
            }
            self.trackers.round(snapshot.step, values)
        return None

    def broken(self, why: str) -> Broken:
        """Tell the trackers why the run cannot go on."""
        self.trackers.finished({}, why)
        kept = (
            f"; the last good checkpoint is kept in {self.folder.path}"
            if self.folder.has_checkpoint
            else ""
        )
        return Broken(self.run.key, UserError(f"{self.label}: {why}{kept}.", _BROKEN_HINT))

    def save_checkpoint(self) -> None:
        snapshot = self.last
        assert snapshot is not None
        if snapshot.step < self.run.plan[-1].steps:
            self.folder.save_checkpoint(snapshot.step, snapshot.checkpoint(), list(snapshot.losses))

    @stopwatch.on("scoring")
    def score(self) -> None:
        """Compute the predictions to keep, and the scores where there are test labels."""
        assert self.last is not None
        outputs = self.last.outputs
        found = Predictions(
            test=outputs.test,
            target=outputs.target,
            source_val=outputs.source_val,
            source_val_y=outputs.source_val_y,
            training_prior=self.last.training_prior,
        )
        self.outcome = score_predictions(self.task, found)

    def finish(self) -> None:
        """Write the weights, the predictions and the scores."""
        assert self.last is not None
        assert self.outcome is not None
        write_outcome(self.folder, self.outcome, self.last.weights())

    def tell_trackers(self) -> None:
        """Tell the trackers the scores of the finished run."""
        self.trackers.finished({} if self.task.test is None else main_scores(self.folder.scores()))


def _train(lanes: Sequence[_Lane], step: int, how: Execution) -> Iterator[Progress | Broken | Busy]:
    """Train all lanes together, from a step to the end; one that breaks, or is taken over, is left
    where it was."""
    first, steps = lanes[0], lanes[0].run.plan[-1].steps
    for lane in lanes:
        lane.begin(step, len(lanes), how)
    label = first.label if len(lanes) == 1 else f"{first.label} and {len(lanes) - 1} more"
    yield Progress(key=first.run.key, label=label, step=step, steps=steps, losses={})
    began, timer, running = time.monotonic(), CheckpointTimer(how.checkpoint_every), list(lanes)
    part = "pre-training" if first.pretraining else "training"
    for snapshots in stopwatch.each(part, _snapshots(lanes, how)):
        save = timer.due()
        for lane, snapshot in zip(lanes, snapshots, strict=True):
            if lane in running and (
                stopped := lane.advance(snapshot, how, time.monotonic() - began)
            ):
                running.remove(lane)
                yield stopped
        if save:
            with stopwatch.on("writing"):
                side_by_side(_Lane.save_checkpoint, running)
            timer.done()
        if not running:
            return
        last = running[0].last
        assert last is not None
        yield Progress(
            key=first.run.key, label=label, step=last.step, steps=steps, losses=last.losses
        )
    for lane in running:
        lane.score()
    with stopwatch.on("writing"):
        side_by_side(_Lane.finish, running)
    for lane in running:
        lane.tell_trackers()


Runner = Callable[[Run, Task, Execution], Iterator[Progress]]


def _train_by_runner(lane: _Lane, how: Execution) -> Iterator[Progress | Broken | Busy]:
    """Let the method's own runner train and write the results; see `Method.runner`."""
    name = lane.run.method.runner
    if how.team is not None:
        raise UserError(
            f"The method {lane.run.method.id} trains several networks, which torchrun cannot do.",
            "start it without torchrun.",
        )
    run_method: Runner = load_function(name)
    lane.begin(0, 1, how)
    with contextlib.closing(_closable(run_method(lane.run, lane.task, how))) as events:
        try:
            for progress in stopwatch.each("training", events):
                if not lane.report(progress.step, progress.steps):
                    yield Busy(lane.run.key, lane.folder.path)
                    return
                yield replace(progress, key=lane.run.key)
        except NotFinite as error:
            yield lane.broken(f"{error.what} after step {error.step}")
            return
    if not lane.folder.done:
        yield lane.broken(f"its runner {name} wrote no results")
        return
    lane.tell_trackers()


def _closable(events: Iterator[Progress]) -> Generator[Progress, None, None]:
    """The same events, as a generator, which can be closed."""
    yield from events


def _snapshots(lanes: Sequence[_Lane], how: Execution) -> Iterator[Sequence[Snapshot | NotFinite]]:
    """A snapshot of each lane, again and again; a single one is trained without lanes."""
    starts = side_by_side(lambda lane: lane.start(how.root), lanes)
    if len(lanes) == 1:
        (lane,) = lanes
        train = (
            partial(fit, graph=how.graph) if how.team is None else partial(fit_together, how.team)
        )
        try:
            for snapshot in train(
                lane.run, lane.task.training_data, how.device, start=starts[0], resume=lane.resume
            ):
                yield [snapshot]
        except NotFinite as error:
            yield [error]
        return
    resumes = [lane.resume for lane in lanes if lane.resume is not None] or None
    runs, data = [lane.run for lane in lanes], [lane.task.training_data for lane in lanes]
    yield from fit_lanes(runs, data, how.device, starts=starts, resumes=resumes, graph=how.graph)


def _record(run: Run, task: Task, how: Execution, lanes: int) -> dict[str, Any]:
    """The content of run.json: what the run is, and how and with what it was trained."""
    data = task.training_data
    return {
        "key": run.key,
        "run": run.describe(),
        "images": {name: len(getattr(data, name)) for name in ("source", "source_val", "target")},
        "notes": list(task.notes),
        "classes": list(data.classes),
        "source_sizes": data.source.sizes(len(data.classes)).tolist(),
        "shape": list(data.source.x.shape[1:]),
        "device": torch.cuda.get_device_name(how.device)
        if how.device.type == "cuda"
        else platform.machine(),
        "graph": how.graph and how.device.type == "cuda" and how.team is None,
        "lanes": lanes,
        "processes": 1 if how.team is None else how.team.size,
        "versions": {
            "askew": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
