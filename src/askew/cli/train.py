"""Commands that train: run, bench, tune."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import (
    app,
    at_least,
    execution,
    expand_options,
    launcher,
    names,
    note_missing_views,
    pairs,
    print_costs,
    time_spent,
    train_missing,
)
from askew.cli.options import (
    BENCHMARKS,
    AsJson,
    Curve,
    ExecutionOptions,
    HyperParameters,
    LaunchOptions,
    Reweight,
    Sampler,
    SamplerOption,
    Seed,
    TableFormat,
    TableOptions,
    TaskOptions,
    TrainingOptions,
)
from askew.cli.terminal import print_note, print_profile, print_results, print_run, print_trials
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.runs.config import RunRequest
    from askew.runs.execute import Execution
    from askew.runs.grid import Grid
    from askew.runs.tune import Result


def _request(
    task: TaskOptions, training: TrainingOptions, params: list[str] | None = None
) -> RunRequest:
    """What options ask for; which task, method and seed is left open."""
    from askew.runs.config import RunRequest

    options, settings = pairs(params, "the method"), pairs(training.train, "training")
    return RunRequest(
        task="",
        method="",
        seed=0,
        draw=task.draw,
        shift=task.shift,
        params=options,
        training=settings,
        settings=training.settings,
        data=task.data,
        recipe=training.recipe,
    )


# --- run ---


@app.command(rich_help_panel=BENCHMARKS)
@expand_options
def run(
    task: Annotated[str, typer.Argument(help="Such as mini/syn-uci; `askew tasks` lists them.")],
    *,
    method: Annotated[
        str, typer.Option("--method", "-m", help="Method by id, or file.py:Class.")
    ] = "coal",
    seed: Seed = 0,
    params: HyperParameters = None,
    task_options: TaskOptions,
    training: TrainingOptions,
    execution_options: ExecutionOptions,
    curve: Curve = False,
    reweight: Reweight = False,
    as_json: AsJson = False,
) -> None:
    """Train one method on one task with one seed, and score it.

    Started by torchrun, all of its processes train one network.
    """
    from askew.runs.store import RunFolder
    from askew.runs.torchrun import serve_run
    from askew.training import distributed

    at_least("--seed", seed, 0)
    request = replace(_request(task_options, training, params), task=task, method=method, seed=seed)
    with distributed.together() as team:
        if team is not None and team.rank > 0:
            serve_run(team, request)
            return
        if team is not None:
            own_device = str(distributed.own_device(execution_options.device))
            execution_options = replace(execution_options, device=own_device)
        how = replace(execution(execution_options, curve=curve), team=team)
        key = _train_one(request, how)
    print_run(RunFolder(how.root / key), reweight, as_json, time_spent(execution_options.profile))


def _train_one(request: RunRequest, how: Execution) -> str:
    """The key of a run, trained in this process unless it is finished already."""
    from askew.cli.progress import show_training
    from askew.runs.launch.jobs import plan_jobs, train
    from askew.runs.launch.local import Local

    plan = plan_jobs([request], how)
    note_missing_views(plan.planned)
    for failure in show_training(train(plan, how, Local()), plan.missing, request.task):
        raise UserError.from_text(failure.reason)
    return plan.keys[0]


# --- bench ---


@app.command(rich_help_panel=BENCHMARKS)
@expand_options
def bench(
    name: Annotated[
        str, typer.Argument(help="Benchmark, such as mini or digits, or a grid: a .toml file.")
    ],
    *,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Methods, separated by commas; default: the paper's twelve, or the grid's.",
        ),
    ] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", help="Tasks, separated by commas; default: all reported ones.")
    ] = "",
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Number of seeds; default: 3, or the grid's.")
    ] = None,
    first_seed: Annotated[
        int,
        typer.Option(
            "--first-seed",
            min=0,
            help="The first of them, for machines that share no folder of runs.",
        ),
    ] = 0,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Run methods' files that a grid names.")
    ] = False,
    params: HyperParameters = None,
    task_options: TaskOptions,
    training: TrainingOptions,
    execution_options: ExecutionOptions,
    launch: LaunchOptions,
    curve: Curve = False,
    shown: TableOptions,
) -> None:
    """Train a benchmark's methods on its tasks over several seeds, and print the table of results.

    Only missing runs are trained. A method from a file is first checked against the contract of
    methods. With --recipe, all methods are trained by that recipe; `--recipe paper,today` shows
    both side by side.
    """
    from askew.runs.launch.jobs import plan_jobs

    recipes = names(training.recipe)
    grid = replace(
        _grid(name, names(tasks), names(methods), seeds, recipes, allow_code), first_seed=first_seed
    )
    one = recipes[0] if len(recipes) == 1 else ""
    requests = grid.requests(replace(_request(task_options, training, params), recipe=one))
    how = execution(execution_options, launch, curve=curve)
    plan = plan_jobs([request for _, request in requests], how)
    if launch.dry_run:
        print_costs(plan, shown.as_json)
        return
    train_missing(plan, how, launcher(launch, how))
    if not shown.format and (name.endswith(".toml") or recipes):
        shown = replace(shown, format=TableFormat.wide)
    named = dict(zip(plan.keys, (variant for variant, _ in requests), strict=True))
    _print_grid(grid, named, how.root, shown, task_options.data, execution_options.profile)


def _print_grid(
    grid: Grid,
    keys: Mapping[str, str],
    root: Path,
    shown: TableOptions,
    data: Path | None,
    profiled: bool,
) -> None:
    """The table of a grid's runs, given the variant of each key; UserError if some could not be
    finished."""
    from askew.reports.results import collect

    variants = {key: variant for key, variant in keys.items() if variant}
    if all(variant.shift.startswith("degree:") for variant in grid.variants):
        variants = dict.fromkeys(variants, "")  # the shift is the column's heading already
    done = [root / key for key in keys if (root / key / "done").exists()]
    rows = collect(done, reweight=shown.reweight, names=variants or None)
    profile = time_spent(profiled)
    print_results(
        rows, shown, [variant.name or variant.recipe for variant in grid.variants], data, profile
    )
    if not (shown.as_json or shown.format == TableFormat.json):
        print_profile(profile)
    if missing := len(keys) - len(done):
        raise UserError(
            f"{missing} of {len(keys)} runs failed and are missing from the table.", "see above."
        )


def _grid(
    name: str,
    tasks: list[str],
    methods: list[str],
    seeds: int | None,
    recipes: Sequence[str],
    allow_code: bool,
) -> Grid:
    """The part of a grid file, or of a benchmark, that the user names; what is left out stands for
    all of it."""
    from askew.data.benchmarks import known_task
    from askew.runs.grid import read_grid, whole_benchmark

    if seeds is not None:
        at_least("--seeds", seeds, 1)
    if name.endswith(".toml"):
        grid = read_grid(Path(name)).narrowed(tasks, methods, seeds or 0)
        if not allow_code:
            grid.check_code(methods)
        return grid
    whole = whole_benchmark(name, recipes)
    chosen = tuple(known_task(f"{name}/{task.removeprefix(f'{name}/')}") for task in tasks)
    variants = [
        replace(v, tasks=chosen or v.tasks, methods=tuple(methods) or v.methods)
        for v in whole.variants
    ]
    return replace(whole, seeds=seeds or whole.seeds, variants=tuple(variants))


# --- tune ---


@app.command(rich_help_panel=BENCHMARKS)
@expand_options
def tune(
    tasks: Annotated[
        str, typer.Argument(help="Development tasks, separated by commas, such as digits/usps-uci.")
    ],
    *,
    methods: Annotated[
        str,
        typer.Option(
            "--method", "--methods", "-m", help="Methods, separated by commas; default: all."
        ),
    ] = "",
    trials: Annotated[
        int, typer.Option("--trials", help="Trials per method: settings, defaults, then searched.")
    ] = 8,
    seeds: Annotated[int, typer.Option("--seeds", help="Number of seeds per trial.")] = 2,
    sampler: SamplerOption = Sampler.sobol,
    write: Annotated[Path, typer.Option("--write", help="The settings file to write.")] = Path(
        "tuned.toml"
    ),
    task_options: TaskOptions,
    training: TrainingOptions,
    execution_options: ExecutionOptions,
    launch: LaunchOptions,
    as_json: AsJson = False,
) -> None:
    """Search hyper-parameters on development tasks, and write a settings file for `askew bench
    --settings`."""
    from askew.core.files import check_file
    from askew.methods import METHODS
    from askew.runs import tune as tuning
    from askew.runs.launch.jobs import plan_jobs
    from askew.runs.recipes import read_settings

    at_least("--trials", trials, 1)
    at_least("--seeds", seeds, 1)
    chosen = list(dict.fromkeys(names(tasks)))
    settings = read_settings(tuning.check_tasks(chosen, task_options.draw), training.settings)
    check_file(write)
    base = _request(task_options, training)
    tried = {
        id: tuning.trials(id, settings, trials, base.recipe) for id in names(methods) or METHODS
    }
    how = execution(execution_options, launch)
    if launch.dry_run:
        all_trials = (trial for found in tried.values() for trial in found)
        requests = [r for t in all_trials for r in tuning.requests_of(t, chosen, seeds, base)]
        print_costs(plan_jobs(requests, how), as_json)
        return

    def train_wave(requests: Sequence[RunRequest]) -> list[str]:
        plan = plan_jobs(requests, how)
        train_missing(plan, how, launcher(launch, how))
        return plan.keys

    results = tuning.search(sampler, tried, (chosen, seeds, base), how.root, train_wave)
    header, profile = (
        f"Per-class mean on {', '.join(chosen)}, {seeds} seeds.",
        time_spent(execution_options.profile),
    )
    _write_and_print(results, write, settings, header, as_json, profile)


def _write_and_print(
    results: Mapping[str, Sequence[Result]],
    file: Path,
    settings: dict[str, Any],
    header: str,
    as_json: bool,
    profile: Mapping[str, float],
) -> None:
    """Write the best trial of each method, and print all; UserError if a method has none."""
    from askew.runs.tune import best

    winners = {id: best(found) for id, found in results.items()}
    _write_settings(file, settings, winners, [header, *_summary(results, winners)])
    print_trials(
        [result for found in results.values() for result in found],
        list(winners.values()),
        as_json,
        profile,
    )
    print_note(f"settings in {file}")
    if not as_json:
        print_profile(profile)
    if failed := [id for id, result in winners.items() if result is None]:
        raise UserError(
            f"No trial of {', '.join(failed)} finished.",
            "see above; their settings stay as they were.",
        )


def _summary(
    results: Mapping[str, Sequence[Result]], best: Mapping[str, Result | None]
) -> list[str]:
    """One line per method: the score and the origin of its best trial."""
    from askew.methods import method_class

    return [
        f"{method_class(id).id}: {result.mean:.2f} ({result.trial.origin}; {len(results[id])} "
        "trials)"
        for id, result in best.items()
        if result is not None
    ]


def _write_settings(
    file: Path, settings: dict[str, Any], best: Mapping[str, Result | None], comments: Sequence[str]
) -> None:
    """The settings with each method's best trial in them, below comments that tell where they come
    from."""
    from askew.core.files import write_bytes
    from askew.runs.tune import to_toml, tuned_settings

    chosen = [
        result.trial for result in best.values() if result is not None and result.trial.params
    ]
    command = f"Written by: askew {shlex.join(sys.argv[1:])}"
    write_bytes(file, to_toml(tuned_settings(settings, chosen), [command, *comments]).encode())
