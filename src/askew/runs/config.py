"""Configuration: from a benchmark's settings and what a user asks for to a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.options import Between, checked, options, whole_number
from askew.data.benchmarks import known_task, load_task, task_infos
from askew.data.domains import Unlabeled
from askew.data.task import TARGET_FLOOR, Sampler, Shift, TargetSampler, Task, TrainingData
from askew.methods import SourceOnly, make_method, method_class
from askew.methods.base import ClosedForm, Method
from askew.nets.augment import Views, check_views
from askew.nets.embedding import Embedding
from askew.nets.network import check
from askew.nets.spec import WITHOUT_WEIGHTS, NetworkSpec, file_hash, parse_network
from askew.runs.claims import run_label
from askew.runs.recipes import merged_settings, read_settings, settings_name
from askew.training.optim import Optim
from askew.training.run import Run, Stage

MOST_STEPS = 10**9
"""Of one stage: a fast GPU takes two weeks for as many."""
MOST_SEEDS = 10_000
"""Of one grid: with more, the standard error of a mean stops to matter."""
_STEPS_REASON = "A fast GPU takes two weeks for as many steps."


@dataclass(frozen=True, kw_only=True)
class Training(Optim, Views):
    """Settings of training beyond the method's own; the same for every method that is compared."""

    net: str = "task"
    """Network by name; `task` is the one that the task was published with."""
    head: Literal["method", "linear", "cosine"] = "method"
    """Classifier; `method` is the one that the method was published with."""
    temperature: Annotated[float, Between(1e-3, 10)] = 0.05
    """T of a cosine head."""
    weights: str = "none"
    """Starting weights of the features: none, hub, or a .safetensors or .pth file."""
    norm: Literal["joint", "split", "kept"] = "joint"
    """Batch statistics over both domains together, each by itself, or kept as the starting weights
    have them."""
    crop: Annotated[int, Between(0, 4096)] = 224
    """Side of the square that torchvision's and timm's networks see of larger images; 0: the
    whole."""
    batch: Annotated[int, Between(2, 65_536)] = 32
    """Images of each domain in a batch."""
    sampler: Sampler = "balanced"
    """Source batches: natural, or the same number of each class."""
    target_sampler: TargetSampler = "natural"
    """Target batches: natural, or by pseudo-label (beyond the paper): balanced, or even, drawn with
    replacement."""
    target_floor: Annotated[float, Between(0, 1)] = TARGET_FLOOR
    """Share of the target that a pseudo-class is taken to have at least, where target batches are
    even."""
    last_dropout: bool = True
    """Whether features that end in a dropout keep it."""
    pretrain: Annotated[int, Between(0, MOST_STEPS, _STEPS_REASON)] = 2000
    """Steps on source alone before adaptation."""
    pretrain_schedule: Literal["same", "constant", "inverse", "cosine"] = "same"
    """Schedule of the rates during pre-training."""
    pretrain_rate: Annotated[float, Between(0, 1e6)] = 1.0
    """Both rates during pre-training, as a multiple."""
    rounds: Annotated[int, Between(1, MOST_STEPS, _STEPS_REASON)] = 10
    """Rounds of adaptation; each begins with a refresh of pseudo-labels."""
    round: Annotated[
        Literal["larger", "smaller", "source", "target"] | int,
        Between(1, MOST_STEPS, _STEPS_REASON),
    ] = "larger"
    """A round is one pass over that domain, or so many steps."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Arithmetic of the networks."""
    threads: Annotated[int, Between(1, 1024)] = 1
    """CPU threads; part of a run's identity, since sums depend on their order."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a user asks for; small enough to send to another process or machine.

    >>> askew.runs.RunRequest(task="mini/syn-uci", method="coal", seed=1).label
    'mini/syn-uci coal seed 1'
    """

    task: str
    method: str
    seed: int = 0
    """Of training."""
    draw: int = 0
    """Which images are drawn from the two domains; tables use 0."""
    shift: str = ""
    """Label shift; empty: the one that the task was published with."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the method that differ from the settings."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that differ."""
    settings: Path | None = None
    """A file in place of the committed settings."""
    data: Path | None = None
    """The folder of real data."""
    recipe: str = ""
    """Which of the settings' recipes trains the method; empty: the method's own, if the settings
    name one."""

    def __post_init__(self) -> None:
        for name in ("seed", "draw"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))

    @property
    def label(self) -> str:
        return run_label(self.task, self.method, self.seed)


def check_seeds(seeds: int) -> int:
    """A number of seeds; UserError if a grid cannot have as many."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(
            f"The number of seeds must be between 1 and {MOST_SEEDS:,}, found {seeds:,}.",
            "each seed trains every method on every task once more; tables have 3 to 5.",
        )
    return seeds


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """A request, the run that it and the settings describe, and its task, loaded.

    A request is planned once; all later steps take the result.

    >>> askew.runs.prepare(askew.runs.RunRequest(task="mini/syn-uci", method="coal")).request.label
    'mini/syn-uci coal seed 0'
    """

    request: RunRequest
    run: Run
    task: Task

    @property
    def key(self) -> str:
        return self.run.key


def prepare(request: RunRequest) -> Planned:
    """Plan the run that a request and the benchmark's settings describe, and load its task.

    >>> request = askew.runs.RunRequest(task="mini/syn-uci", method="coal", params={"alpha": 0.3})
    >>> planned = askew.runs.prepare(request)
    >>> planned.run.method.alpha, planned.task.origin == planned.run.origin
    (0.3, True)
    """
    info = task_infos()[known_task(request.task)]
    shift = str(Shift.parse(request.shift or info.shift))
    task = load_task(request.task, shift, request.draw, request.data)
    run = plan_run(dataclasses.replace(request, shift=shift), task, info.network)
    return Planned(request=request, run=run, task=task)


def plan_run(request: RunRequest, task: Task, network: str) -> Run:
    """The same for a task that is loaded already; `network` is the one that the setting `net=task`
    stands for."""
    short = request.task.partition("/")[2]
    settings = read_settings(settings_name(request.task), request.settings)
    params, training = merged_settings(
        settings, short, method_class(request.method).id, request.recipe
    )
    method = make_method(request.method, params | dict(request.params))
    chosen = Training(**checked(Training, training | dict(request.training), "training"))
    net = _net_spec(chosen, network, method)
    shape, views = tuple(task.training_data.source.x.shape[1:]), _part(Views, chosen)
    check(net, shape)
    check_views(views, shape)
    return Run(
        task=request.task,
        shift=request.shift,
        draw=request.draw,
        origin=task.origin,
        net=net,
        plan=_stages(method, chosen, net, task.training_data),
        batch=chosen.batch,
        sampler=chosen.sampler,
        target_sampler=chosen.target_sampler,
        precision=chosen.precision,
        seed=request.seed,
        threads=chosen.threads,
        views=views,
        target_floor=chosen.target_floor,
        soft_labels=hash_of_soft_labels(task.training_data.soft_labels),
        recipe=request.recipe if method.runner else "",
        overrides=_overrides(request, chosen) if method.runner else (),
    )


def _overrides(request: RunRequest, chosen: Training) -> tuple[tuple[str, Any], ...]:
    """The training settings that a user asked for, checked, by name."""
    return tuple((name, getattr(chosen, name)) for name in sorted(request.training))


def hash_of_soft_labels(soft_labels: NDArray[np.float32] | None) -> str:
    """Hash soft labels, by which runs that learn from other ones differ; empty without any."""
    return "" if soft_labels is None else Unlabeled(soft_labels).fingerprint()[:16]


def _net_spec(training: Training, network: str, method: Method) -> NetworkSpec:
    is_file = training.weights not in ("none", "hub")
    if is_file and not Path(training.weights).is_file():
        raise UserError(
            f"The weights file {training.weights} does not exist.",
            options(Embedding)["weights"].help,
        )
    return parse_network(
        network if training.net == "task" else training.net,
        head=method.head if training.head == "method" else training.head,
        temperature=training.temperature,
        weights=training.weights,
        weights_hash=file_hash(Path(training.weights)) if is_file else "",
        norm=training.norm,
        last_dropout=training.last_dropout,
        crop=training.crop,
    )


Part = TypeVar("Part", Optim, Views)


def _part(cls: type[Part], training: Training) -> Part:
    """The settings that belong to one of the classes that `Training` is made of."""
    return cls(**{field.name: getattr(training, field.name) for field in dataclasses.fields(cls)})


def _stages(
    method: Method, training: Training, net: NetworkSpec, data: TrainingData
) -> tuple[Stage, ...]:
    """Pre-training on the source, if any; source-only training, for a method that begins anew after
    it; the method. A method with its own runner is one stage."""
    optim = _part(Optim, training)
    computed = isinstance(method, ClosedForm)  # at once, however long others train
    rounds, steps = (1, 1) if computed else (training.rounds, _round_steps(training, data))
    last = Stage(method=method, rounds=rounds, round_steps=steps, optim=optim)
    if method.runner:
        return (last,)
    stages = [dataclasses.replace(last, restart=method.restarts)]
    if method.restarts:
        stages.insert(0, dataclasses.replace(last, method=SourceOnly()))
    # A closed form replaces the head: without weights below it, nothing of a pre-training would be
    # left.
    if training.pretrain and not (
        computed and net.embedding is None and net.layers in WITHOUT_WEIGHTS
    ):
        rate, schedule = training.pretrain_rate, training.pretrain_schedule
        before = dataclasses.replace(
            optim,
            lr=optim.lr * rate,
            features_lr=optim.features_lr * rate,
            schedule=optim.schedule if schedule == "same" else schedule,
        )
        stages.insert(
            0, Stage(method=SourceOnly(), rounds=1, round_steps=training.pretrain, optim=before)
        )
    return tuple(stages)


def _round_steps(training: Training, data: TrainingData) -> int:
    """Steps of one round; UserError if all rounds together have too many."""
    if isinstance(training.round, int):
        steps = training.round
    else:
        source, target = len(data.source), len(data.target)
        images = {
            "larger": max(source, target),
            "smaller": min(source, target),
            "source": source,
            "target": target,
        }
        steps = -(-images[training.round] // training.batch)
    if training.rounds * steps > MOST_STEPS:
        raise UserError(
            f"{training.rounds:,} rounds of {steps:,} steps are more than {MOST_STEPS:,} steps.",
            f"choose fewer with -t rounds=… or -t round=…. {_STEPS_REASON}",
        )
    return steps
