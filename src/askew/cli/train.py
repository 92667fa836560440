"""Commands that train: run, bench, tune."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from askew.cli.common import (
    Address,
    AsJson,
    CheckpointEvery,
    Curve,
    Data,
    Device,
    Draw,
    Format,
    Gpus,
    Jobs,
    Lanes,
    MethodOption,
    On,
    Out,
    Place,
    Plain,
    Reweight,
    SettingsFile,
    ShiftOption,
    SlurmOption,
    TrainOption,
    app,
    at_least,
    carry_out,
    execution,
    launcher,
    names,
    pairs,
)
from askew.cli.terminal import TableFormat, err, follow, print_json, print_rows, print_table, print_trials
from askew.core.errors import UserError


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="Such as mini/syn-uci; `askew tasks` lists them.")],
    method: Annotated[str, typer.Option("--method", "-m", help="An id, or file.py:Class.")] = "coal",
    option: MethodOption = [],  # noqa: B006
    train: TrainOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option("--seed", help="Of training.")] = 0,
    draw: Draw = 0,
    shift: ShiftOption = "",
    data: Data = None,
    out_folder: Out = Path("runs"),
    device: Device = "auto",
    settings: SettingsFile = None,
    curve: Curve = False,
    checkpoint_every: CheckpointEvery = 20.0,
    plain: Plain = False,
    reweight: Reweight = False,
    as_json: AsJson = False,
) -> None:
    """Train one method on one task with one seed, and score it. Under torchrun, on all of its processes together."""
    from askew.runs.config import RunRequest
    from askew.runs.launch.jobs import plan_jobs
    from askew.runs.launch.local import Local
    from askew.runs.store import RunFolder, open_root
    from askew.runs.torchrun import serve_run
    from askew.training import distributed

    at_least("--seed", seed, 0)
    hyper, training = pairs(option, "the method"), pairs(train, "training")
    request = RunRequest(task, method, seed, draw, shift, hyper, training, settings, data)
    with distributed.together() as team:
        if team is not None and team.rank > 0:
            serve_run(team, request)
            return
        own = device if team is None else str(distributed.own_device(device))
        how = replace(execution(out_folder, own, curve, checkpoint_every, plain), team=team)
        (key,), shared, rest = plan_jobs([request], how)
        open_root(how.root)  # only now: a wrong wish leaves nothing behind
        for failure in list(follow(shared + rest, how, Local(), task)):
            raise UserError.from_text(failure.reason)
    folder = RunFolder(how.root / key)
    scores = folder.scores()
    if reweight:
        scores |= {f"{n}, reweighted": s for n, s in folder.scores(reweighted=True).items()}
    if as_json:
        print_json({"key": key, "folder": str(folder.path), "scores": scores})
        return
    names = {"paper": "the paper's exam", "whole": "whole test part"}
    names |= {f"{n}, reweighted": f"{name}, reweighted" for n, name in names.items()}
    print_table(
        ["exam", "images", "per-class mean", "95 % interval", "overall", "worst class"],
        [
            [
                names[n],
                str(s["images"]),
                f"{s['per_class_mean']:.2f}",
                f"{s['interval'][0]:.1f} – {s['interval'][1]:.1f}",
                f"{s['overall']:.2f}",
                f"{s['worst']:.1f} (class {s['worst_class']})",
            ]
            for n, s in scores.items()
        ],
    )
    err.print(f"run {key} in {folder.path}")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Benchmark, such as mini or digits, or a grid: a .toml file.")],
    methods: Annotated[str, typer.Option("--methods", help="Ids, separated by commas.")] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", help="Tasks, separated by commas; default: all that are reported.")
    ] = "",
    seeds: Annotated[int | None, typer.Option("--seeds", help="How many, from 0 on; default: 3, or a grid's.")] = None,
    option: MethodOption = [],  # noqa: B006
    train: TrainOption = [],  # noqa: B006
    draw: Draw = 0,
    shift: ShiftOption = "",
    data: Data = None,
    out_folder: Out = Path("runs"),
    device: Device = "auto",
    workers: Jobs = 0,
    lanes: Lanes = 0,
    on: On = Place.local,
    address: Address = "",
    gpus: Gpus = 0.0,
    slurm: SlurmOption = [],  # noqa: B006
    settings: SettingsFile = None,
    curve: Curve = False,
    checkpoint_every: CheckpointEvery = 20.0,
    plain: Plain = False,
    reweight: Reweight = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark's methods and tasks over seeds, or a grid's, only what is missing, and print its table."""
    from askew.data.benchmarks import known_task
    from askew.reports.results import collect
    from askew.runs.config import RunRequest
    from askew.runs.grid import Grid, Variant, read_grid, whole_benchmark

    if seeds is not None:
        at_least("--seeds", seeds, 1)
    if name.endswith(".toml"):
        grid = read_grid(Path(name)).narrowed(names(tasks), names(methods), seeds or 0)
    else:
        whole = whole_benchmark(name).variants[0]
        chosen = tuple(f"{name}/{t.removeprefix(f'{name}/')}" for t in names(tasks)) or whole.tasks
        for task in chosen:
            known_task(task)
        grid = Grid(name, seeds or 3, (Variant("", chosen, tuple(names(methods)) or whole.methods, ""),))
    hyper, training = pairs(option, "the method"), pairs(train, "training")
    base = RunRequest("", "", 0, draw, shift, hyper, training, settings, data)
    wished = grid.requests(base)
    how = execution(out_folder, device, curve, checkpoint_every, plain, lanes, on, gpus)
    where = launcher(on, workers, how, address, gpus, slurm)
    keys = carry_out([request for _, request in wished], how, where)
    done = [how.root / key for key in dict.fromkeys(keys) if (how.root / key / "done").exists()]
    variants = {key: variant for key, (variant, request) in zip(keys, wished, strict=True) if variant}
    if all(variant.shift.startswith("degree:") for variant in grid.variants):
        variants = dict.fromkeys(variants, "")  # the shift is the column's heading already
    rows = collect(done, reweight=reweight, names=variants or None)
    shown = format or (TableFormat.wide if name.endswith(".toml") else None)
    print_rows(rows, as_json, shown, [variant.name for variant in grid.variants])
    missing = len(set(keys)) - len(done)
    if missing:
        raise UserError(f"{missing} of {len(set(keys))} runs failed and are missing from the table.", "see above.")


@app.command()
def tune(
    tasks: Annotated[str, typer.Argument(help="Development tasks, separated by commas, such as digits/usps-uci.")],
    methods: Annotated[str, typer.Option("--method", "--methods", "-m", help="Ids, separated by commas.")] = "",
    trials: Annotated[int, typer.Option("--trials", help="Points a method: settings, defaults, then searched.")] = 8,
    seeds: Annotated[int, typer.Option("--seeds", help="How many a point, from 0 on.")] = 2,
    train: TrainOption = [],  # noqa: B006
    draw: Draw = 0,
    shift: ShiftOption = "",
    data: Data = None,
    out_folder: Out = Path("runs"),
    write: Annotated[Path, typer.Option("--write", help="The settings file to write.")] = Path("tuned.toml"),
    device: Device = "auto",
    workers: Jobs = 0,
    lanes: Lanes = 0,
    on: On = Place.local,
    address: Address = "",
    gpus: Gpus = 0.0,
    slurm: SlurmOption = [],  # noqa: B006
    settings: SettingsFile = None,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Search hyper-parameters on development tasks, and write the settings that `askew bench --settings` reads."""
    import shlex

    from askew.core.files import check_file, write_bytes
    from askew.methods import METHODS, method_class
    from askew.runs import tune as tuning
    from askew.runs.config import RunRequest, read_settings

    at_least("--trials", trials, 1)
    at_least("--seeds", seeds, 1)
    chosen = list(dict.fromkeys(names(tasks)))
    base_settings = read_settings(tuning.check_tasks(chosen, draw), settings)
    check_file(write)
    ids = names(methods) or list(METHODS)
    base = RunRequest("", "", 0, draw, shift, {}, pairs(train, "training"), settings, data)
    tried = {id: tuning.trials(id, base_settings, trials) for id in ids}
    requests = [w for id in ids for trial in tried[id] for w in tuning.requests_of(trial, chosen, seeds, base)]
    how = execution(out_folder, device, False, 20.0, plain, lanes, on, gpus)
    where = launcher(on, workers, how, address, gpus, slurm)
    carry_out(requests, how, where)

    results = {id: [tuning.score(trial, chosen, seeds, base, how.root) for trial in tried[id]] for id in ids}
    winners = {id: tuning.best(found) for id, found in results.items()}
    kept = [winner.trial for winner in winners.values() if winner is not None and winner.trial.hyper]
    comment = [
        f"Written by: askew {shlex.join(sys.argv[1:])}",
        f"Per-class mean on {', '.join(chosen)}, {seeds} seeds.",
    ]
    for id, winner in winners.items():
        if winner is not None:
            share = f"{winner.mean:.2f} ({winner.trial.origin}; {len(results[id])} trials)"
            comment.append(f"{method_class(id).id}: {share}")
    write_bytes(write, tuning.to_toml(tuning.tuned(base_settings, kept), comment).encode())
    print_trials([result for found in results.values() for result in found], list(winners.values()), as_json)
    err.print(f"settings in {write}", soft_wrap=True, markup=False)
    failed = [id for id, winner in winners.items() if winner is None]
    if failed:
        raise UserError(f"No trial of {', '.join(failed)} finished.", "see above; their settings stay as they were.")
