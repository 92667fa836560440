"""The command line: parse, call, print. Data goes to stdout, talk to stderr."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.errors import EmptyClassWarning, UserError, warn_plainly
from askew.show import err, follow, out, print_json, print_rows, print_table, print_trials

if TYPE_CHECKING:
    from askew.execute import Execution
    from askew.launch.local import Job

# torch takes seconds to import, so every command imports what it needs by itself.

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Class-imbalanced domain adaptation: benchmarks, methods, honest tables.",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of runs; started again, a command goes on from there.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of real data; also ASKEW_DATA.")]
MethodOption = Annotated[
    list[str], typer.Option("-o", "--option", metavar="NAME=VALUE", help="Hyper-parameter of the method.")
]
TrainOption = Annotated[
    list[str],
    typer.Option(
        "-t", "--train", metavar="NAME=VALUE", help="Training setting, such as rounds=5; see `askew methods`."
    ),
]
ShiftOption = Annotated[str, typer.Option("--shift", help="rs-ut, bs-bt, natural, degree:D or dirichlet:S.")]
Draw = Annotated[int, typer.Option("--draw", help="Which images are drawn; tables use 0.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
SettingsFile = Annotated[Path | None, typer.Option("--settings", help="TOML file instead of the committed settings.")]
Curve = Annotated[bool, typer.Option("--curve", help="Score after every round, into the trace (for looking only).")]
CheckpointEvery = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.", min=0)]
Reweight = Annotated[bool, typer.Option("--reweight", help="Also score logits reweighted by the estimated target mix.")]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs side by side; 0: one a core, or one on a GPU.", min=0)]
Lanes = Annotated[int, typer.Option("--lanes", help="Runs trained together in one step; 0: as many as help.", min=0)]
Plain = Annotated[bool, typer.Option("--plain", help="No CUDA graphs.")]


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List all tasks."""
    from askew.data import task_infos

    infos = task_infos()
    if as_json:
        print_json(
            [
                {
                    "task": n,
                    "source": i.source,
                    "target": i.target,
                    "network": i.network,
                    "role": i.role,
                    "notes": list(i.notes),
                }
                for n, i in infos.items()
            ]
        )
        return
    print_table(
        ["task", "source", "target", "network", "role"],
        [[name, i.source, i.target, i.network, i.role] for name, i in infos.items()],
    )


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None, as_json: AsJson = False
) -> None:
    """List all methods, or explain one: what it assumes, minimises, and its hyper-parameters."""
    from askew.methods import METHODS, method_class
    from askew.options import options, type_name
    from askew.recipe import Training

    if name is None:
        listing = [{"method": id, "what": _first_line(cls.__doc__), "head": cls.head} for id, cls in METHODS.items()]
        if as_json:
            print_json(listing)
        else:
            print_table(["method", "what it does", "head"], [[str(v) for v in row.values()] for row in listing])
        return
    cls = method_class(name)
    described = [
        {
            "option": o.name,
            "default": o.default,
            "type": type_name(o.type),
            "search": str(o.search or ""),
            "help": o.help,
        }
        for o in options(cls).values()
    ]
    training = [{"setting": o.name, "default": o.default, "help": o.help} for o in options(Training).values()]
    if as_json:
        print_json(
            {"method": cls.id, "about": cls.__doc__, "head": cls.head, "options": described, "training": training}
        )
        return
    import inspect

    out.print(f"{cls.id}  ({cls.head} head)\n\n{inspect.cleandoc(cls.__doc__ or '')}\n", markup=False, soft_wrap=True)
    if described:
        print_table(
            ["-o", "default", "searched", "meaning"],
            [[d["option"], str(d["default"]), d["search"], d["help"]] for d in described],
        )
    print_table(
        ["-t", "default", "meaning"], [[str(t["setting"]), str(t["default"]), str(t["help"])] for t in training]
    )


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="Such as mini/syn-uci; `askew tasks` lists them.")],
    method: Annotated[str, typer.Option("--method", "-m", help="An id, or file.py:Class.")] = "coal",
    option: MethodOption = [],  # noqa: B006
    train: TrainOption = [],  # noqa: B006
    seed: Annotated[int, typer.Option("--seed", help="Of training.")] = 0,
    draw: Draw = 0,
    shift: ShiftOption = "rs-ut",
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
    """Train one method on one task with one seed, and score it."""
    from askew.launch.local import plan_jobs
    from askew.recipe import Wish
    from askew.store import RunFolder, open_root

    _at_least("--seed", seed, 0)
    hyper, training = _pairs(option, "the method"), _pairs(train, "training")
    wish = Wish(task, method, seed, draw, shift, hyper, training, settings, data)
    how = _execution(out_folder, device, curve, checkpoint_every, plain)
    (key,), shared, rest = plan_jobs([wish], how)
    open_root(how.root)  # only now: a wrong wish leaves nothing behind
    for failure in follow(shared + rest, how, 1, task):
        sentence, _, hint = failure.reason.partition("\n\nhint: ")
        raise UserError(sentence, hint)
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
    name: Annotated[str, typer.Argument(help="Benchmark: mini or digits.")],
    methods: Annotated[str, typer.Option("--methods", help="Ids, separated by commas.")] = "",
    tasks: Annotated[
        str, typer.Option("--tasks", help="Tasks, separated by commas; default: all that are reported.")
    ] = "",
    seeds: Annotated[int, typer.Option("--seeds", help="How many, from 0 on.")] = 3,
    option: MethodOption = [],  # noqa: B006
    train: TrainOption = [],  # noqa: B006
    draw: Draw = 0,
    shift: ShiftOption = "rs-ut",
    data: Data = None,
    out_folder: Out = Path("runs"),
    device: Device = "auto",
    workers: Jobs = 0,
    lanes: Lanes = 0,
    settings: SettingsFile = None,
    curve: Curve = False,
    checkpoint_every: CheckpointEvery = 20.0,
    plain: Plain = False,
    reweight: Reweight = False,
    as_json: AsJson = False,
) -> None:
    """Run a benchmark's methods and tasks over seeds, only what is missing, and print its table."""
    from askew.data import BENCHMARKS
    from askew.errors import unknown
    from askew.launch.local import plan_jobs
    from askew.methods import METHODS
    from askew.recipe import Wish
    from askew.store import open_root
    from askew.table import collect

    _at_least("--seeds", seeds, 1)
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    reported = [t for t, info in BENCHMARKS[name].TASKS.items() if info.role == "reported"]
    chosen = [t.removeprefix(f"{name}/") for t in _names(tasks)] or reported
    ids = _names(methods) or list(METHODS)
    hyper, training = _pairs(option, "the method"), _pairs(train, "training")
    base = Wish("", "", 0, draw, shift, hyper, training, settings, data)
    wishes = [
        replace(base, task=f"{name}/{t}", method=m, seed=seed) for t in chosen for m in ids for seed in range(seeds)
    ]
    how = _execution(out_folder, device, curve, checkpoint_every, plain, lanes)
    keys, shared, rest = plan_jobs(wishes, how)
    open_root(how.root)
    _carry_out(shared, rest, how, workers)
    done = [how.root / key for key in dict.fromkeys(keys) if (how.root / key / "done").exists()]
    print_rows(collect(done, reweight=reweight), as_json)
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
    shift: ShiftOption = "rs-ut",
    data: Data = None,
    out_folder: Out = Path("runs"),
    write: Annotated[Path, typer.Option("--write", help="The settings file to write.")] = Path("tuned.toml"),
    device: Device = "auto",
    workers: Jobs = 0,
    lanes: Lanes = 0,
    settings: SettingsFile = None,
    plain: Plain = False,
    as_json: AsJson = False,
) -> None:
    """Search hyper-parameters on development tasks, and write the settings that `askew bench --settings` reads."""
    import shlex

    from askew import tune as tuning
    from askew.launch.local import plan_jobs
    from askew.methods import METHODS, method_class
    from askew.recipe import Wish, read_settings
    from askew.store import check_file, open_root, write_bytes

    _at_least("--trials", trials, 1)
    _at_least("--seeds", seeds, 1)
    chosen = list(dict.fromkeys(_names(tasks)))
    base_settings = read_settings(tuning.check_tasks(chosen, draw), settings)
    check_file(write)
    ids = _names(methods) or list(METHODS)
    base = Wish("", "", 0, draw, shift, {}, _pairs(train, "training"), settings, data)
    tried = {id: tuning.trials(id, base_settings, trials) for id in ids}
    wishes = [w for id in ids for trial in tried[id] for w in tuning.wishes_of(trial, chosen, seeds, base)]
    how = _execution(out_folder, device, False, 20.0, plain, lanes)
    _, shared, rest = plan_jobs(wishes, how)
    open_root(how.root)
    _carry_out(shared, rest, how, workers)

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


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    reweight: Reweight = False,
    as_json: AsJson = False,
) -> None:
    """Print the table of all finished runs in a folder."""
    from askew.store import finished_runs
    from askew.table import collect

    found = finished_runs(folder)
    if not found:
        raise UserError(f"The folder {folder} holds no finished run yet.", "`askew bench` makes some.")
    print_rows(collect(found, reweight=reweight), as_json)


# --- helpers ---


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _carry_out(shared: list[Job], rest: list[Job], how: Execution, workers: int) -> None:
    """Run all jobs, pre-trainings first, and tell which failed."""
    workers = workers or (1 if how.device.type == "cuda" else os.cpu_count() or 1)
    for jobs, what in ((shared, "pre-training"), (rest, "runs")):
        for failure in follow(jobs, how, workers, what):
            wish = failure.wish
            err.print(f"{wish.task} {wish.method} seed {wish.seed}: {failure.reason}", markup=False, soft_wrap=True)


def _pairs(pairs: list[str], what: str) -> dict[str, str]:
    from askew.options import parse

    return parse(pairs, what)


def _at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise UserError(f"{flag} must be at least {low}, found {value}.", f"for example {flag} 3")


def _execution(root: Path, device: str, curve: bool, checkpoint_every: float, plain: bool, lanes: int = 1) -> Execution:
    from askew.execute import Execution, pick_device
    from askew.store import check_root

    chosen = pick_device(device)
    return Execution(check_root(root), chosen, not plain, checkpoint_every, lanes, curve)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0]


def main() -> None:
    """Run the command line; what a user did wrong ends in one sentence, a hint, and exit code 2."""
    warn_plainly()
    warnings.simplefilter("error", EmptyClassWarning)
    try:
        code = app(standalone_mode=False)  # Typer turns Ctrl-C into 130, or into Abort, depending on its version
        if code == 130:
            raise KeyboardInterrupt
        sys.exit(code)
    except UserError as error:
        _fail(error.sentence, error.hint)
    except EmptyClassWarning as error:
        _fail(str(error), "add images of it, or leave it out of the classes.")
    except (KeyboardInterrupt, typer.Abort):
        err.print("Stopped. Start the same command again to go on from the last checkpoint.", soft_wrap=True)
        sys.exit(130)
    except Exception as error:
        # Typer's own usage errors (its classes moved between versions) carry an exit code and a message.
        if hasattr(error, "exit_code") and hasattr(error, "format_message"):
            if not error.format_message():  # no arguments: the help was shown
                sys.exit(error.exit_code)
            _fail(error.format_message(), "`askew --help` or `askew COMMAND --help` lists what there is.")
        raise


def _fail(sentence: str, hint: str) -> None:
    err.print(f"{sentence}\n\nhint: {hint}", soft_wrap=True, markup=False)
    sys.exit(2)
