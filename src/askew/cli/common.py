"""The app that all commands register with, and the steps from their options to trained runs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from askew.cli.options import Cluster, ExecutionOptions, LaunchOptions
from askew.cli.terminal import print_note
from askew.core.errors import UserError
from askew.training.clocks import stopwatch

if TYPE_CHECKING:
    from askew.runs.config import Planned
    from askew.runs.execute import Execution
    from askew.runs.launch.jobs import Launcher, Plan


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Class-imbalanced domain adaptation: adapt a classifier to your own data, or compare "
    "methods on benchmarks.",
)


def check_arguments(arguments: Sequence[str]) -> None:
    """UserError for an argument that nobody types on purpose: an empty one, or one with a control
    character."""
    for before, argument in zip(("askew", *arguments), arguments, strict=False):
        if not argument:
            raise UserError(
                f"There is an empty argument after {before!r}.",
                "is a shell variable unset? Leave it out.",
            )
        if any(unicodedata.category(character) == "Cc" for character in argument):
            raise UserError(
                f"The argument {argument!r} holds a control character.",
                "remove it; rename such a file.",
            )


def names(text: str) -> list[str]:
    """The names in a list that is separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


_EXAMPLES = {
    "the method": "--param alpha=0.1",
    "training": "-t rounds=5",
    "Slurm": "--slurm partition=gpu",
}


def pairs(pairs: Sequence[str] | None, what: str) -> dict[str, str]:
    """`NAME=VALUE` options as a dictionary."""
    from askew.core.options import parse

    return parse(pairs or [], what, _EXAMPLES[what])


def at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise UserError(f"{flag} must be at least {low}, found {value}.", f"for example {flag} 3")


def at_most(flag: str, value: float, high: float, reason: str) -> None:
    if not value <= high:
        raise UserError(f"{flag} must be at most {high:,}, found {value:g}.", reason)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is a dataclass of options by the fields of that class.

    Typer sees one option per field; the command gets the dataclass.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _fields_as_parameters(groups[parameter.name])
        else:
            parameters.append(
                parameter.replace(
                    kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name]
                )
            )

    @functools.wraps(command)
    def expanded(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def _fields_as_parameters(options: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(options, include_extras=True)
    defaults = options()
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(defaults, field.name),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(options)
    ]


def execution(
    options: ExecutionOptions, launch: LaunchOptions | None = None, *, curve: bool = False
) -> Execution:
    """How runs are computed; UserError if the output folder or the device cannot be used."""
    import torch

    from askew.core.device import pick_device
    from askew.core.tracking import checked_trackers
    from askew.runs.execute import Execution
    from askew.runs.root import check_root

    launch = launch or LaunchOptions()
    at_most(
        "--checkpoint-every",
        options.checkpoint_every,
        86_400,
        "a day without a checkpoint is a day to lose.",
    )
    if options.profile and launch.on != Cluster.local:
        raise UserError(
            f"--profile has no meaning with --on {launch.on}.",
            "it times the processes of this machine.",
        )
    at_most("--gpus", launch.gpus, 1024, "no machine has as many for one job.")
    if launch.on == Cluster.local:
        device = pick_device(options.device)
    else:  # which GPUs a cluster has, only its workers can tell
        device = torch.device("cuda" if launch.gpus else "cpu")
        if options.device not in ("auto", device.type):
            raise UserError(
                f"--device {options.device} does not fit --gpus {launch.gpus:g}.",
                "with --on ray or slurm, --gpus alone chooses the device.",
            )
    log = checked_trackers(options.log)
    root = check_root(options.out)
    return Execution(
        root=root,
        device=device,
        graph=not options.plain,
        checkpoint_every=options.checkpoint_every,
        lanes=launch.lanes,
        curve=curve,
        log=log,
    )


def launcher(options: LaunchOptions, how: Execution) -> Launcher:
    """What trains the runs: processes of this machine, a Ray cluster, or Slurm."""
    for flag, given, cluster in (
        ("--address", options.address, "ray"),
        ("--slurm", options.slurm, "slurm"),
    ):
        if given and options.on != cluster:
            raise UserError(f"{flag} has no meaning with --on {options.on}.", f"--on {cluster}")
    if options.on == Cluster.local:
        return _local(options, how)
    if options.on == Cluster.ray:
        from askew.runs.launch.ray import Ray

        ray = Ray(options.address, options.jobs, options.gpus)
        ray.connect()
        return ray
    from askew.runs.launch.slurm import Slurm

    if options.gpus != int(options.gpus):
        raise UserError(
            f"Slurm allocates whole GPUs, found --gpus {options.gpus:g}.",
            "--lanes trains several runs on one.",
        )
    slurm = Slurm(options.jobs, int(options.gpus), pairs(options.slurm, "Slurm"))
    slurm.connect()
    return slurm


def _local(options: LaunchOptions, how: Execution) -> Launcher:
    from askew.runs.launch.local import Local
    from askew.runs.launch.mps import Mps

    if options.gpus:
        raise UserError(
            "--gpus has no meaning with --on local.",
            "--device cuda:N chooses one, --jobs shares it.",
        )
    workers = options.jobs or (1 if how.device.type == "cuda" else os.cpu_count() or 1)
    return Local(workers, mps=Mps(print_note) if options.mps else None)


def train_missing(plan: Plan, how: Execution, launcher: Launcher) -> None:
    """Train what a plan says is missing, and print each failure when it happens."""
    from askew.cli.progress import show_training
    from askew.runs.launch.jobs import train

    note_missing_views(plan.planned)
    for failure in show_training(train(plan, how, launcher), plan.missing, "runs"):
        print_note(f"{failure.request.label}: {failure.reason}")


def time_spent(asked: bool) -> dict[str, float]:
    """The seconds that each part of the work has taken so far; nothing unless it was asked for."""
    stopwatch.turn("other")
    return dict(stopwatch.seconds) if asked else {}


def check_file_method(name: str) -> None:
    """Check a method of a user's file, with its default hyper-parameters, against the contract of
    methods."""
    from askew.methods import is_file, make_method
    from askew.runs.launch.jobs import check_contract

    if is_file(name):
        check_contract(make_method(name, {}))


def note_missing_views(planned: Sequence[Planned]) -> None:
    """Say which methods compare random views of an image where the run has views turned off."""
    runs = [one.run for one in planned]
    blind = sorted(
        {run.method.id for run in runs if run.method.compares_views and run.views.views == "none"}
    )
    if blind:
        print_note(
            f"{', '.join(blind)}: random views of an image are to agree, and views are off (-t "
            "views=none), so nothing "
            "of that is left. -t views=… or --recipe today turns them on; reports mark such runs "
            "(A009)."
        )


def print_costs(plan: Plan, as_json: bool) -> None:
    """What is missing of a grid, and what it takes."""
    from dataclasses import asdict

    from askew.cli.terminal import print_json, print_table, print_text
    from askew.runs.launch.estimate import costs

    note_missing_views(plan.planned)
    found = costs([*plan.pretrainings, *plan.runs])
    if as_json:
        print_json([asdict(cost) for cost in found])
        return
    minutes = ["–" if cost.minutes is None else f"{cost.minutes:.1f}" for cost in found]
    print_table(
        ["method", "network", "runs", "jobs", "steps of all runs", "GPU minutes"],
        [
            [c.method, c.network, f"{c.runs:,}", f"{c.jobs:.0f}", f"{c.steps:,}", time]
            for c, time in zip(found, minutes, strict=True)
        ],
    )
    total = sum(cost.minutes or 0 for cost in found)
    unknown = (
        "" if all(cost.minutes is not None for cost in found) else " for those whose speed is known"
    )
    before = sum(len(job.runs) for job in plan.pretrainings)
    print_text(
        f"{plan.missing - before} of {len(set(plan.keys))} runs and {before} "
        "pre-trainings are missing: about "
        f"{total:.1f} GPU minutes{unknown}, by speeds measured on one H200, plus some seconds "
        "for each of "
        f"{len(plan.pretrainings) + len(plan.runs)} jobs."
    )
