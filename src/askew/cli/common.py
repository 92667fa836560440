"""What several commands share: options, and steps on the way from an option to a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.terminal import TableFormat, err, follow
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.runs.config import RunRequest
    from askew.runs.execute import Execution
    from askew.runs.launch.jobs import Launcher


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
ShiftOption = Annotated[
    str, typer.Option("--shift", help="rs-ut, bs-bt, natural, degree:D or dirichlet:S; default: as published.")
]
Draw = Annotated[int, typer.Option("--draw", help="Which images are drawn; tables use 0.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
SettingsFile = Annotated[Path | None, typer.Option("--settings", help="TOML file instead of the committed settings.")]
Curve = Annotated[bool, typer.Option("--curve", help="Score after every round, into the trace (for looking only).")]
CheckpointEvery = Annotated[float, typer.Option("--checkpoint-every", help="Least seconds between checkpoints.", min=0)]
Reweight = Annotated[bool, typer.Option("--reweight", help="Also score logits reweighted by the estimated target mix.")]
Format = Annotated[
    TableFormat | None,
    typer.Option("--format", help="The long table, or the paper's layout: wide, markdown, csv, latex or json."),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs side by side; 0: one a core, or one on a GPU.", min=0)]


class Place(StrEnum):
    """Where runs are carried out."""

    local = "local"
    ray = "ray"
    slurm = "slurm"


On = Annotated[Place, typer.Option("--on", help="Where to run: this machine, a Ray cluster, or Slurm.")]
Address = Annotated[
    str, typer.Option("--address", help="With --on ray: the cluster, such as auto or HOST:PORT; default: one here.")
]
Gpus = Annotated[
    float, typer.Option("--gpus", help="With --on ray or slurm: GPUs a job; 0.25 on Ray lets four share one.", min=0)
]
SlurmOption = Annotated[
    list[str],
    typer.Option(
        "--slurm", metavar="NAME=VALUE", help="With --on slurm: of sbatch, such as partition=gpu, time=12:00:00."
    ),
]
Lanes = Annotated[int, typer.Option("--lanes", help="Runs trained in one step; 0: as many as pay on a GPU.", min=0)]
Plain = Annotated[bool, typer.Option("--plain", help="No CUDA graphs.")]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def launcher(on: Place, workers: int, how: Execution, address: str, gpus: float, slurm: list[str]) -> Launcher:
    """Where the user wants the runs carried out."""
    for flag, given, belongs in (("--address", address, "ray"), ("--slurm", slurm, "slurm")):
        if given and on != belongs:
            raise UserError(f"{flag} has no meaning with --on {on}.", f"--on {belongs}")
    if on == Place.local:
        from askew.runs.launch.local import Local

        if gpus:
            raise UserError("--gpus has no meaning with --on local.", "--device cuda:N chooses one, --jobs shares it.")
        return Local(workers or (1 if how.device.type == "cuda" else os.cpu_count() or 1))
    if on == Place.ray:
        from askew.runs.launch.ray import Ray

        ray = Ray(address, workers, gpus)
        ray.connect()
        return ray
    from askew.runs.launch.slurm import Slurm

    if gpus != int(gpus):
        raise UserError(f"Slurm gives whole GPUs, found --gpus {gpus:g}.", "--lanes puts several runs on one.")
    cluster = Slurm(workers, int(gpus), pairs(slurm, "Slurm"))
    cluster.connect()
    return cluster


def carry_out(requests: Sequence[RunRequest], how: Execution, launcher: Launcher) -> list[str]:
    """Run what is missing, pre-trainings first, and tell which failed, as it happens; every run's key."""
    from askew.runs.launch.jobs import plan_jobs, write_plan
    from askew.runs.store import open_root

    keys, shared, rest = plan_jobs(requests, how)
    open_root(how.root)  # only now: a wrong wish leaves nothing behind
    if rest:
        write_plan(how, keys, requests)
    with contextlib.closing(launcher):
        for jobs, what in ((shared, "pre-training"), (rest, "runs")):
            for failure in follow(jobs, how, launcher, what):
                err.print(f"{failure.request.label}: {failure.reason}", markup=False, soft_wrap=True)
    return keys


def pairs(pairs: list[str], what: str) -> dict[str, str]:
    from askew.core.options import parse

    return parse(pairs, what)


def at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise UserError(f"{flag} must be at least {low}, found {value}.", f"for example {flag} 3")


def execution(
    root: Path,
    device: str,
    curve: bool,
    checkpoint_every: float,
    plain: bool,
    lanes: int = 0,
    on: Place = Place.local,
    gpus: float = 0.0,
) -> Execution:
    import torch

    from askew.core.device import pick_device
    from askew.runs.execute import Execution
    from askew.runs.store import check_root

    if on == Place.local:
        chosen = pick_device(device)
    else:  # what there is over there, its workers will see
        chosen = torch.device("cuda" if gpus else "cpu")
        if device not in ("auto", chosen.type):
            raise UserError(
                f"--device {device} does not fit --gpus {gpus:g}.", "--on ray and slurm go by --gpus alone."
            )
    return Execution(check_root(root), chosen, not plain, checkpoint_every, lanes, curve)
