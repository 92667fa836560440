"""`askew.run` and `askew.bench`: train and score one run, or a grid of them, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.core.tracking import Maker, checked_trackers
from askew.data.benchmarks import known_task
from askew.methods import id_and_params, is_installed
from askew.methods.base import Method
from askew.runs.config import RunRequest, check_seeds
from askew.runs.execute import Execution
from askew.runs.grid import whole_benchmark
from askew.runs.launch.jobs import Failed, Plan, plan_jobs, train
from askew.runs.launch.local import Local
from askew.runs.results import BenchResult, Result
from askew.runs.root import check_root
from askew.runs.store import RunFolder


def run(  # noqa: PLR0913
    task: str,
    method: str | Method | type[Method] = "coal",
    *,
    seed: int = 0,
    draw: int = 0,
    shift: str = "",
    params: Mapping[str, Any] | None = None,
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
    name, own = id_and_params(method)
    request = RunRequest(
        task=task,
        method=name,
        seed=seed,
        draw=draw,
        shift=shift,
        params=own | dict(params or {}),
        training=training or {},
        data=None if data is None else Path(data),
    )
    how = _execution(out, device, log)
    plan = plan_jobs([request], how)
    for failed in _train(plan, how, jobs=1):
        raise UserError.from_text(failed.reason)
    return Result.read(RunFolder(how.root / plan.keys[0]))


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
    folder = None if data is None else Path(data)
    requests = [
        RunRequest(
            task=task,
            method=name,
            seed=seed,
            draw=draw,
            shift=shift,
            params=params,
            training=training or {},
            data=folder,
            recipe=recipe,
        )
        for task in asked
        for name, params in _distinct(methods or whole.methods, jobs)
        for seed in range(check_seeds(seeds))
    ]
    how = _execution(out, device, log)
    plan = plan_jobs(requests, how)
    failed = {failed.key: failed.reason for failed in _train(plan, how, jobs)}
    return BenchResult(
        dict(zip(plan.keys, requests, strict=True)),
        how.root,
        {key: failed[key] for key in plan.keys if key in failed},
    )


def _execution(out: Path | str, device: str, log: Sequence[str | Maker]) -> Execution:
    """How runs are computed; UserError if the folder or the device cannot be used."""
    trackers = checked_trackers(log)
    return Execution(root=check_root(Path(out)), device=pick_device(device), log=trackers)


def _train(plan: Plan, how: Execution, jobs: int) -> Iterator[Failed]:
    """Train what is missing on this machine, yielding each run that fails."""
    return (event for event in train(plan, how, Local(jobs)) if isinstance(event, Failed))


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
    return [id_and_params(method) for method in methods]
