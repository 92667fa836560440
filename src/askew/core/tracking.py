"""Tracking: what a run tells TensorBoard, Weights & Biases, MLflow or a tracker of your own.

A tracker hears of three events: a run started, a round ended, the run finished. It sees no image
and no label, and it cannot change a number. What it writes stays in the folder of runs, below
`logs`, unless its own settings (WANDB_MODE=online, MLFLOW_TRACKING_URI) say otherwise.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from askew.core.errors import UserError, unknown
from askew.core.locks import locked
from askew.core.plugins import load_plugin, plugins

LOGS = "logs"
"""The folder among those of the runs that trackers write to."""
Values = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a tracker is told when a run starts."""

    key: str
    """The hash that names the run's folder: the same run has the same key, also when it is
    resumed."""
    label: str
    """Task, method and seed, for people."""
    settings: Mapping[str, str | float | bool]
    """Everything that can change its numbers, under dotted names."""
    folder: Path
    """Where a tracker may write."""
    step: int = 0
    """Where it goes on; 0 for a new run."""


class Tracker(Protocol):
    """One run's events, in this order; a resumed run starts again at its last checkpoint."""

    def started(self, run: RunInfo) -> None: ...

    def round(self, step: int, values: Values) -> None:
        """A round has ended: the mean of each loss in it, and scores if they were asked for with
        `--curve`."""

    def finished(self, scores: Values, failure: str = "") -> None:
        """The run is done, with scores where there are test labels; or it could not be finished,
        and why."""


Maker = Callable[[], Tracker]
"""What makes a run's tracker: a class without arguments."""


# --- the trackers that come with askew ---


class TensorBoard:
    """Event files in `logs/tensorboard/<label> <key>`; look at them with `tensorboard --logdir`."""

    def started(self, run: RunInfo) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        folder = run.folder / "tensorboard" / f"{run.label.replace('/', '-')} {run.key[:8]}"
        self.writer: Any = SummaryWriter(str(folder), purge_step=run.step or None)
        rows = "\n".join(f"| {name} | {value} |" for name, value in run.settings.items())
        self.writer.add_text("settings", f"| setting | value |\n|---|---|\n{rows}", run.step)
        self.step = run.step

    def round(self, step: int, values: Values) -> None:
        self.step = step
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def finished(self, scores: Values, failure: str = "") -> None:
        self.round(self.step, scores)
        if failure:
            self.writer.add_text("failure", failure, self.step)
        self.writer.close()


class WandB:
    """A Weights & Biases run in the project `askew`, offline unless WANDB_MODE says otherwise."""

    def started(self, run: RunInfo) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        run.folder.mkdir(exist_ok=True)
        self.run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "askew"),
            id=run.key,
            name=run.label,
            config=dict(run.settings),
            dir=run.folder,
            mode=os.environ.get("WANDB_MODE", "offline"),  # type: ignore[arg-type]
            resume="allow",
            reinit="create_new",  # lanes are several runs in one process
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, x_disable_stats=True
            ),
        )

    def round(self, step: int, values: Values) -> None:
        self.run.log(dict(values), step=step)

    def finished(self, scores: Values, failure: str = "") -> None:
        self.run.summary.update(dict(scores) | ({"failure": failure} if failure else {}))
        self.run.finish(exit_code=int(bool(failure)))


class MLflow:
    """A run of the experiment `askew`, in `logs/mlflow.db` unless MLFLOW_TRACKING_URI names another
    place."""

    def started(self, run: RunInfo) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        from mlflow import MlflowClient

        run.folder.mkdir(exist_ok=True)
        address = (
            os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{(run.folder / 'mlflow.db').resolve()}"
        )
        with locked(
            run.folder / "mlflow.lock"
        ):  # workers that start at once must not all make the tables
            self.client = MlflowClient(tracking_uri=address)
            experiment = self.client.get_experiment_by_name("askew")
            where = (
                self.client.create_experiment("askew")
                if experiment is None
                else experiment.experiment_id
            )
            earlier = self.client.search_runs([where], f"tags.`askew.key` = '{run.key}'")
            tags = {"askew.key": run.key}
            made = (
                earlier[0]
                if earlier
                else self.client.create_run(where, tags=tags, run_name=run.label)
            )
        self.id, self.step = made.info.run_id, run.step
        if not earlier:
            for name, value in run.settings.items():
                self.client.log_param(self.id, name, str(value)[:500])

    def round(self, step: int, values: Values) -> None:
        self.step = step
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def finished(self, scores: Values, failure: str = "") -> None:
        self.round(self.step, scores)
        if failure:
            self.client.set_tag(self.id, "failure", failure)
        self.client.set_terminated(self.id, "FAILED" if failure else "FINISHED")


TRACKERS: dict[str, tuple[Maker, str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "wandb": (WandB, "wandb"),
    "mlflow": (MLflow, "mlflow"),
}
"""By the name that `--log` takes: the tracker, and the library that it needs."""


def tracker(name: str) -> Maker:
    """A tracker by its name: one of ours, or one that another package offers as an `askew.trackers`
    entry point."""
    if name in TRACKERS:
        make, library = TRACKERS[name]
        if find_spec(library) is None:
            raise UserError(f"--log {name} needs {library}.", "pip install 'askew[tracking]'")
        return make
    if name not in plugins("askew.trackers"):
        raise unknown("tracker", name, {*TRACKERS, *plugins("askew.trackers")})
    made: Maker = load_plugin("askew.trackers", name)
    return made


def checked_trackers(log: Sequence[str | Maker]) -> tuple[str | Maker, ...]:
    """These trackers; UserError for one that is unknown, or lacks its library, before any work."""
    for name in (one for one in log if isinstance(one, str)):
        tracker(name)
    return tuple(log)


class Trackers:
    """All trackers of one run. One that fails is dropped with a warning: no training is lost to
    it."""

    def __init__(self, log: Sequence[str | Maker] = ()) -> None:
        self.trackers = [tracker(one)() if isinstance(one, str) else one() for one in log]

    def started(self, run: RunInfo) -> None:
        self._tell(lambda one: one.started(run))

    def round(self, step: int, values: Values) -> None:
        self._tell(lambda one: one.round(step, values))

    def finished(self, scores: Values, failure: str = "") -> None:
        self._tell(lambda one: one.finished(scores, failure))

    def _tell(self, event: Callable[[Tracker], None]) -> None:
        for one in list(self.trackers):
            with self._dropped_if_it_fails(one):
                event(one)

    @contextmanager
    def _dropped_if_it_fails(self, one: Tracker) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.trackers.remove(one)
            warnings.warn(f"{type(one).__name__} tracks this run no longer: {error}", stacklevel=2)


def info(key: str, label: str, described: Mapping[str, Any], root: Path, step: int) -> RunInfo:
    """What trackers are told of a run that is described as in run.json."""
    *_, last = described["plan"]
    return RunInfo(
        key=key,
        label=label,
        settings=dict(_flat({**described, "plan": last})),
        folder=root / LOGS,
        step=step,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | float | bool]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield (
                prefix + name,
                value if isinstance(value, str | int | float | bool) else str(value),
            )
