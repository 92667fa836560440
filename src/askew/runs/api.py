"""`askew.run` and `askew.bench`: train and score one run, or a grid of them, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.core.tables import data_frame, html_table
from askew.core.tracking import Maker, checked_trackers
from askew.data.benchmarks import known_task
from askew.methods import is_installed, named
from askew.methods.base import Method
from askew.nets.network import fetch_weights
from askew.runs.config import RunRequest, check_seeds, prepare
from askew.runs.execute import Execution, execute
from askew.runs.grid import whole_benchmark
from askew.runs.launch.jobs import Failed, launch_jobs, open_plan
from askew.runs.launch.local import Local
from askew.runs.root import open_root
from askew.runs.store import RunFolder

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Result:
    """A finished run: its key, its folder, and its scores on the whole test split and on the
    paper's test split.

    >>> result = askew.run("mini/syn-uci", "source", training=short)
    >>> result.folder.name == result.key, sorted(result.scores)
    (True, ['paper', 'whole'])
    """

    key: str
    folder: Path
    scores: dict[str, Any]


def run(  # noqa: PLR0913
    task: str,
    method: str | Method | type[Method] = "coal",
    *,
    seed: int = 0,
    draw: int = 0,
    shift: str = "",
    hyper: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    data: Path | str | None = None,
    out: Path | str = "runs",
    device: str = "auto",
    log: Sequence[str | Maker] = (),
) -> Result:
    """Train a method on a task and score it; a run that is already finished in `out` is read, not
    trained again.

    The method is an id, `file.py:Class`, a class, or an object, which brings all of its
    hyper-parameters. `log` names trackers: tensorboard, wandb, mlflow, or a class with the methods
    of `Tracker` (docs/tracking.md).

    >>> askew.run("mini/syn-uci", "source", training=short).scores["whole"]["images"]
    901
    """
    name, own = named(method)
    values = (own | dict(hyper or {}), training or {})
    request = RunRequest(
        task, name, seed, draw, shift, *values, data=None if data is None else Path(data)
    )
    chosen, loaded = prepare(request)
    if not RunFolder(Path(out) / chosen.key).done:
        fetch_weights(chosen.net, tuple(loaded.training_data.source.x.shape[1:]))
    how = Execution(
        log=checked_trackers(log), root=open_root(Path(out)), device=pick_device(device)
    )
    for _ in execute(chosen, loaded, how):
        pass
    folder = RunFolder(how.root / chosen.key)
    return Result(chosen.key, folder.path, folder.scores())


@dataclass(frozen=True, eq=False, repr=False)
class BenchResult:
    """The runs of a benchmark: `table` has one row per run, and `failed` says why others are
    missing.

    >>> found = askew.bench("mini", ["source"], ["syn-uci"], seeds=1, training=short)
    >>> found.table[["task", "method", "seed"]].values.tolist()
    [['mini/syn-uci', 'source', 0]]
    """

    runs: Mapping[str, RunRequest]
    """What was asked for, by key."""
    root: Path
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def results(self) -> list[Result]:
        """Of the runs that are finished."""
        folders = (RunFolder(self.root / key) for key in self.runs if key not in self.failed)
        return [Result(folder.path.name, folder.path, folder.scores()) for folder in folders]

    @property
    def table(self) -> DataFrame:
        """One row per run: task, method, its hyper-parameters, seed, and the scores on the whole
        test split."""
        return data_frame(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        rows = []
        for result in self.results:
            asked, whole = self.runs[result.key], result.scores["whole"]
            hyper = " ".join(f"{name}={value}" for name, value in asked.hyper.items())
            scores = {name: whole[name] for name in ("per_class_mean", "overall", "worst")}
            what = {
                "task": asked.task,
                "method": asked.method,
                "hyper": hyper,
                "seed": asked.seed,
                **scores,
            }
            paper = result.scores.get(
                "paper", whole
            )  # they are one where nothing is drawn, as under natural shift
            rows.append(what | {"paper_split": paper["per_class_mean"], "key": result.key})
        return rows

    def _lines(self) -> list[list[str]]:
        """Per-class means over the seeds, a line for each task and method."""
        groups: dict[tuple[str, ...], list[float]] = {}
        for row in self._rows():
            groups.setdefault((row["task"], row["method"], row["hyper"]), []).append(
                row["per_class_mean"]
            )
        return [
            [*group, _mean_and_std(values), str(len(values))] for group, values in groups.items()
        ]

    def __repr__(self) -> str:
        lines = ["  ".join(cell for cell in line[:-1] if cell) for line in self._lines()]
        missing = [f"{len(self.failed)} runs failed"] if self.failed else []
        return "\n".join(["<BenchResult: per-class mean accuracy, %", *lines, *missing]) + ">"

    def _repr_html_(self) -> str:
        table = html_table(
            ["task", "method", "hyper-parameters", "per-class mean, %", "seeds"], self._lines()
        )
        return f"{table}<p>{len(self.failed)} runs failed.</p>" if self.failed else table


def _mean_and_std(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def bench(  # noqa: PLR0913
    benchmark: str,
    methods: Sequence[str | Method | type[Method]] = (),
    tasks: Sequence[str] = (),
    *,
    seeds: int = 3,
    draw: int = 0,
    shift: str = "",
    training: Mapping[str, Any] | None = None,
    recipe: str = "",
    data: Path | str | None = None,
    out: Path | str = "runs",
    device: str = "auto",
    jobs: int = 1,
    log: Sequence[str | Maker] = (),
) -> BenchResult:
    """Train methods on the tasks of a benchmark over several seeds: `askew bench`; finished runs
    are read.

    Methods are as in `askew.run`; without any, they are the paper's twelve. With `jobs`, processes
    train side by side.

    >>> methods = [COAL(alpha=0.1), COAL(alpha=0.3)]
    >>> askew.bench("mini", methods, ["syn-uci"], seeds=1, training=short).failed
    {}
    """
    whole = whole_benchmark(benchmark).variants[0]
    asked = [
        known_task(f"{benchmark}/{task.removeprefix(f'{benchmark}/')}") for task in tasks
    ] or whole.tasks
    more = (training or {}, None, None if data is None else Path(data), recipe)
    requests = [
        RunRequest(task, name, seed, draw, shift, hyper, *more)
        for task in asked
        for name, hyper in _distinct(methods or whole.methods, jobs)
        for seed in range(check_seeds(seeds))
    ]
    how = Execution(log=checked_trackers(log), root=Path(out), device=pick_device(device))
    keys, pretrainings, runs = open_plan(requests, how)
    failed = {}
    with closing(Local(jobs)) as launcher:
        for event in (e for part in (pretrainings, runs) for e in launch_jobs(part, how, launcher)):
            if isinstance(event, Failed):
                failed[event.key] = event.reason
    return BenchResult(
        dict(zip(keys, requests, strict=True)),
        how.root,
        {k: failed[k] for k in keys if k in failed},
    )


def _distinct(
    methods: Sequence[str | Method | type[Method]], jobs: int
) -> list[tuple[str, dict[str, Any]]]:
    """Names and hyper-parameters; UserError if two classes have one id, or one is unknown to other
    processes."""
    classes: dict[str, type] = {}
    for method in (one for one in methods if not isinstance(one, str)):
        cls = method if isinstance(method, type) else type(method)
        if classes.setdefault(cls.id, cls) is not cls:
            raise UserError(
                f"Two methods have the id '{cls.id}'.", "give each class an id of its own."
            )
        if jobs > 1 and not is_installed(cls):
            raise UserError(
                f"Other processes do not know the class {cls.__name__}.",
                "jobs=1, or 'file.py:Class'.",
            )
    return [named(method) for method in methods]
