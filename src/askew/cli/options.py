"""Options that several commands share, as types and as dataclasses for `common.expand_options` to
spread."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

DATA, TRAINING, EXECUTION, CLUSTER = "Data", "Training", "Execution", "Cluster"
"""Panels of options in `askew COMMAND --help`."""
OWN_DATA, BENCHMARKS = "Your own data", "Benchmarks"
"""Panels of commands in `askew --help`."""


class TableFormat(StrEnum):
    """How a table of results is written."""

    long = "long"
    wide = "wide"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    json = "json"


class Cluster(StrEnum):
    """Where runs are trained."""

    local = "local"
    ray = "ray"
    slurm = "slurm"


class Sampler(StrEnum):
    """How tuning draws hyper-parameters."""

    sobol = "sobol"
    tpe = "tpe"


SamplerOption = Annotated[
    Sampler,
    typer.Option(
        "--sampler",
        help="sobol: evenly, all methods with equal budgets; tpe: near what scored well so far "
        "(needs Optuna).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", help="Also print each method's label-free scores, and all class shares."
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data", help="Folder of the data sets; default: $ASKEW_DATA.", rich_help_panel=DATA
    ),
]
Shift = Annotated[
    str,
    typer.Option(
        "--shift",
        help="Label shift: rs-ut, ut-rs, bs-bt, natural, degree:D, dirichlet:S, absent:K (the "
        "target lacks the last K classes) or few:N (N target images); default: as published.",
        rich_help_panel=DATA,
    ),
]
Draw = Annotated[
    int,
    typer.Option(
        "--draw", help="Random draw of the task's images; tables use 0.", rich_help_panel=DATA
    ),
]
HyperParameters = Annotated[
    list[str] | None,
    typer.Option(
        "-p",
        "--param",
        metavar="NAME=VALUE",
        help="Hyper-parameter of the method; `askew methods METHOD` lists them.",
        rich_help_panel=TRAINING,
    ),
]
TrainingSettings = Annotated[
    list[str],
    typer.Option(
        "-t",
        "--train",
        metavar="NAME=VALUE",
        help="Training setting, such as rounds=5; `askew methods` lists them.",
        rich_help_panel=TRAINING,
    ),
]
PathColumn = Annotated[
    str,
    typer.Option(
        "--path-column", help="Column of paths in a .csv or .tsv list.", rich_help_panel=DATA
    ),
]
LabelColumn = Annotated[
    str,
    typer.Option(
        "--label-column", help="Column of labels in a .csv or .tsv list.", rich_help_panel=DATA
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed of training.", rich_help_panel=TRAINING)
]
Device = Annotated[
    str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.", rich_help_panel=EXECUTION)
]
Curve = Annotated[
    bool,
    typer.Option(
        "--curve",
        help="Also score after every round, into trace.jsonl; for inspection only, it uses "
        "target labels.",
        rich_help_panel=EXECUTION,
    ),
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        help="With --on ray: address of the cluster, auto or HOST:PORT; default: start one on "
        "this machine.",
        rich_help_panel=CLUSTER,
    ),
]
Gpus = Annotated[
    float,
    typer.Option(
        "--gpus",
        help="With --on ray or slurm: GPUs per job; on Ray, 0.25 lets four jobs share one.",
        min=0,
        rich_help_panel=CLUSTER,
    ),
]
Log = Annotated[
    list[str],
    typer.Option(
        "--log",
        help="Tracker of every run: tensorboard, wandb or mlflow; may be repeated.",
        rich_help_panel=EXECUTION,
    ),
]
Reweight = Annotated[
    bool,
    typer.Option(
        "--reweight", help="Also score logits adjusted to the estimated target label distribution."
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        help="Also paired differences to source-only and COAL over the same seeds, and the "
        "seeds' networks averaged.",
    ),
]
Format = Annotated[
    TableFormat | None,
    typer.Option(
        "--format", help="long: one row per method and task; the others: the paper's layout."
    ),
]


@dataclass(frozen=True)
class TaskOptions:
    """Which images a task consists of."""

    shift: Shift = ""
    draw: Draw = 0
    data: Data = None


@dataclass(frozen=True)
class TrainingOptions:
    """How all methods of a comparison are trained."""

    train: TrainingSettings = field(default_factory=list)
    settings: Annotated[
        Path | None,
        typer.Option(
            "--settings",
            help="TOML file to use instead of the benchmark's settings.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    recipe: Annotated[
        str,
        typer.Option(
            "--recipe",
            help="Recipe of the settings, for every method alike, such as paper or today; "
            "default: each method's own.",
            rich_help_panel=TRAINING,
        ),
    ] = ""


@dataclass(frozen=True)
class TableOptions:
    """What a table of results shows."""

    reweight: Reweight = False
    compare: Compare = False
    format: Format = None
    as_json: AsJson = False


@dataclass(frozen=True)
class ExecutionOptions:
    """Where results go and how they are computed; none of this changes a result."""

    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Folder of runs; those that are finished there are not repeated.",
            rich_help_panel=EXECUTION,
        ),
    ] = Path("runs")
    device: Device = "auto"
    checkpoint_every: Annotated[
        float,
        typer.Option(
            "--checkpoint-every",
            help="Least seconds between checkpoints.",
            min=0,
            rich_help_panel=EXECUTION,
        ),
    ] = 20.0
    plain: Annotated[
        bool, typer.Option("--plain", help="Use no CUDA graphs.", rich_help_panel=EXECUTION)
    ] = False
    log: Log = field(default_factory=list)
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="At the end, print where the time went; with --json, as `profile` beside "
            "`results`.",
            rich_help_panel=EXECUTION,
        ),
    ] = False


@dataclass(frozen=True)
class LaunchOptions:
    """How many runs are trained at a time, and on which machines."""

    jobs: Annotated[
        int,
        typer.Option(
            "--jobs",
            help="Processes that train side by side; 0: one per core, or one on a GPU.",
            min=0,
            rich_help_panel=EXECUTION,
        ),
    ] = 0
    lanes: Annotated[
        int,
        typer.Option(
            "--lanes",
            help="Runs that are trained together in one step; 0: as many as pay off on a GPU.",
            min=0,
            rich_help_panel=EXECUTION,
        ),
    ] = 0
    mps: Annotated[
        bool,
        typer.Option(
            "--mps/--no-mps",
            help="With several --jobs on one GPU, start NVIDIA's MPS for them where it is there "
            "and nobody has.",
            rich_help_panel=EXECUTION,
        ),
    ] = True
    on: Annotated[
        Cluster,
        typer.Option(
            "--on", help="This machine, a Ray cluster, or Slurm.", rich_help_panel=CLUSTER
        ),
    ] = Cluster.local
    address: Address = ""
    gpus: Gpus = 0.0
    slurm: Annotated[
        list[str],
        typer.Option(
            "--slurm",
            metavar="NAME=VALUE",
            help="With --on slurm: option of sbatch, such as partition=gpu or time=12:00:00.",
            rich_help_panel=CLUSTER,
        ),
    ] = field(default_factory=list)
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print which runs are missing and how long one GPU takes for them; train nothing.",
            rich_help_panel=EXECUTION,
        ),
    ] = False


@dataclass(frozen=True)
class CodeOptions:
    """Code of the user's own that a model needs and does not hold."""

    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="file.py:Class, for a model whose method is from a file and predicts by it.",
        ),
    ] = ""
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone", help="file.py:function, for a model with a backbone of your own."
        ),
    ] = ""
