"""What several commands share: options, and steps on the way from an option to a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.errors import UserError
from askew.show import TableFormat, err, follow

if TYPE_CHECKING:
    from askew.execute import Execution
    from askew.launch.local import Job

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
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
SettingsFile = Annotated[Path | None, typer.Option("--settings", help="TOML file instead of the committed settings.")]
Curve = Annotated[bool, typer.Option("--curve", help="Score after every round, into the trace (for looking only).")]
CheckpointEvery = Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.", min=0)]
Reweight = Annotated[bool, typer.Option("--reweight", help="Also score logits reweighted by the estimated target mix.")]
Format = Annotated[
    TableFormat | None,
    typer.Option("--format", help="The long table, or the paper's layout: wide, markdown, csv, latex or json."),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Runs side by side; 0: one a core, or one on a GPU.", min=0)]
Lanes = Annotated[int, typer.Option("--lanes", help="Runs trained together in one step; meant for a GPU.", min=1)]
Plain = Annotated[bool, typer.Option("--plain", help="No CUDA graphs.")]


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def carry_out(shared: list[Job], rest: list[Job], how: Execution, workers: int) -> None:
    """Run all jobs, pre-trainings first, and tell which failed."""
    workers = workers or (1 if how.device.type == "cuda" else os.cpu_count() or 1)
    for jobs, what in ((shared, "pre-training"), (rest, "runs")):
        for failure in follow(jobs, how, workers, what):
            wish = failure.wish
            err.print(f"{wish.task} {wish.method} seed {wish.seed}: {failure.reason}", markup=False, soft_wrap=True)


def pairs(pairs: list[str], what: str) -> dict[str, str]:
    from askew.options import parse

    return parse(pairs, what)


def at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise UserError(f"{flag} must be at least {low}, found {value}.", f"for example {flag} 3")


def execution(root: Path, device: str, curve: bool, checkpoint_every: float, plain: bool, lanes: int = 1) -> Execution:
    from askew.execute import Execution, pick_device
    from askew.store import check_root

    chosen = pick_device(device)
    return Execution(check_root(root), chosen, not plain, checkpoint_every, lanes, curve)
