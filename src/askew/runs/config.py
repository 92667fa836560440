"""From a benchmark's settings and a user's wishes to a run."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from askew.core.errors import UserError
from askew.core.options import Between, checked, options
from askew.data.benchmarks import known_task, load_task, task_infos
from askew.data.task import Sampler, Shift, Task, TrainingData
from askew.methods import SourceOnly, make_method, method_class
from askew.nets.network import check
from askew.nets.spec import NetSpec, file_hash
from askew.training.optim import Optim
from askew.training.run import Run, Stage


@dataclass(frozen=True, kw_only=True)
class Training(Optim):
    """What a run needs beyond its method; the same for every method that is compared."""

    net: str = "task"
    """Network by name; `task` is the one that the task was published with."""
    head: Literal["method", "linear", "cosine"] = "method"
    """Classifier; `method` is the one that the method was published with."""
    temperature: Annotated[float, Between(1e-3, 10)] = 0.05
    """T of a cosine head."""
    weights: str = "none"
    """Starting weights of the features: none, hub, or a .safetensors file."""
    norm: Literal["joint", "split", "kept"] = "joint"
    """Batch statistics over both domains together, each by itself, or kept as the starting weights have them."""
    crop: Annotated[int, Between(0)] = 224
    """Side of the square that torchvision's and timm's networks see of larger images; 0: the whole."""
    batch: Annotated[int, Between(2)] = 32
    """Images of each domain in a batch."""
    sampler: Sampler = "balanced"
    """Source batches: natural, or the same number of each class."""
    target_sampler: Sampler = "natural"
    """Target batches: natural, or balanced by pseudo-label (beyond the paper)."""
    pretrain: Annotated[int, Between(0)] = 2000
    """Steps on source alone before adaptation."""
    pretrain_rate: Annotated[float, Between(0)] = 1.0
    """Both rates during pre-training, as a multiple."""
    rounds: Annotated[int, Between(1)] = 10
    """Rounds of adaptation; each begins with a refresh of pseudo-labels."""
    round: Annotated[Literal["larger", "smaller", "source", "target"] | int, Between(1)] = "larger"
    """A round is one pass over that domain, or so many steps."""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """Arithmetic of the networks."""
    threads: Annotated[int, Between(1)] = 1
    """CPU threads; part of a run's identity, since sums depend on their order."""


Settings = dict[str, Any]


def read_settings(benchmark: str, path: Path | None = None) -> Settings:
    """A benchmark's settings: the committed ones, or a file of the same form."""
    example = "see src/askew/runs/settings/digits.toml for the form."
    try:
        file = path or resources.files("askew.runs.settings") / f"{benchmark}.toml"
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(
            f"The settings file {path} does not exist.", "leave --settings out for the committed ones."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"The settings file {path} is not TOML: {error}.", example) from None
    for name in settings:
        if name not in ("train", "method", "task"):
            raise UserError(f"The settings file {path} has a table '{name}' that means nothing.", example)
    tables = {name: value for name in settings for name, value in _tables(name, settings[name])}
    for name, value in tables.items():
        if not isinstance(value, dict):
            raise UserError(f"The settings file {path} holds '{name}' = {value} where a table belongs.", example)
    return settings


def _tables(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What has to be a table in a settings file, by its dotted name: train, method.M, task.T, task.T.method.M."""
    yield name, value
    if name.rpartition(".")[2] in ("method", "task") and isinstance(value, dict):
        for inner, table in value.items():
            yield f"{name}.{inner}", table
            for part in ("train", "method"):
                if isinstance(table, dict) and part in table:
                    yield from _tables(f"{name}.{inner}.{part}", table[part])


def method_settings(settings: Settings, method: str) -> dict[str, Any]:
    """A method's hyper-parameters on all tasks of a benchmark."""
    return {name: value for name, value in settings.get("method", {}).get(method, {}).items() if name != "train"}


def _layers(settings: Settings, task: str, method: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Method options and training settings: benchmark, then method, then task, then task and method."""
    own_task = settings.get("task", {}).get(task, {})
    layers = [settings.get("method", {}).get(method, {}), own_task.get("method", {}).get(method, {})]
    trains = [settings, layers[0], own_task, layers[1]]
    training = {name: value for layer in trains for name, value in layer.get("train", {}).items()}
    hyper = {name: value for layer in layers for name, value in layer.items() if name != "train"}
    return hyper, training


def _round_steps(training: Training, training_data: TrainingData) -> int:
    if isinstance(training.round, int):
        return training.round
    source, target = len(training_data.source), len(training_data.target)
    images = {"larger": max(source, target), "smaller": min(source, target), "source": source, "target": target}
    return -(-images[training.round] // training.batch)


@dataclass(frozen=True)
class RunRequest:
    """What a user asks for; small enough to send to another process or machine."""

    task: str
    method: str
    seed: int = 0
    draw: int = 0
    shift: str = ""
    """Label shift; empty: the one that the task was published with."""
    hyper: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the method that differ from the settings'."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that differ."""
    settings: Path | None = None
    data: Path | None = None


def prepare(request: RunRequest) -> tuple[Run, Task]:
    """The run that a benchmark's settings and the wish describe, with its task loaded."""
    info = task_infos()[known_task(request.task)]
    shift = str(Shift.parse(request.shift or info.shift))
    loaded = load_task(request.task, shift, request.draw, request.data)
    return plan_run(dataclasses.replace(request, shift=shift), loaded, info.network), loaded


def plan_run(request: RunRequest, task: Task, network: str) -> Run:
    """The same for a task that is there already; `network` is what the training setting `task` stands for."""
    benchmark, _, short = request.task.partition("/")
    cls = method_class(request.method)
    base_hyper, base_training = _layers(read_settings(benchmark, request.settings), short, cls.id)
    chosen = make_method(request.method, base_hyper | dict(request.hyper))
    train = Training(**checked(Training, base_training | dict(request.training), "training"))
    weights_file = train.weights not in ("none", "hub")
    if weights_file and not Path(train.weights).is_file():
        raise UserError(f"The weights file {train.weights} does not exist.", options(NetSpec)["weights"].help)
    net = NetSpec(
        name=network if train.net == "task" else train.net,
        head=chosen.head if train.head == "method" else train.head,
        temperature=train.temperature,
        weights=train.weights,
        weights_hash=file_hash(Path(train.weights)) if weights_file else "",
        norm=train.norm,
        crop=train.crop,
    )
    check(net, tuple(task.training_data.source.x.shape[1:]))
    optim = Optim(**{field.name: getattr(train, field.name) for field in dataclasses.fields(Optim)})
    length = (train.rounds, _round_steps(train, task.training_data), optim)
    plan = [Stage(chosen, *length, restart=chosen.restarts)]
    if chosen.restarts:
        plan.insert(0, Stage(SourceOnly(), *length))
    if train.pretrain:
        faster = dataclasses.replace(
            optim, lr=optim.lr * train.pretrain_rate, features_lr=optim.features_lr * train.pretrain_rate
        )
        plan.insert(0, Stage(SourceOnly(), 1, train.pretrain, faster))
    return Run(
        task=request.task,
        shift=request.shift,
        draw=request.draw,
        origin=task.origin,
        net=net,
        plan=tuple(plan),
        batch=train.batch,
        sampler=train.sampler,
        target_sampler=train.target_sampler,
        precision=train.precision,
        seed=request.seed,
        threads=train.threads,
    )
