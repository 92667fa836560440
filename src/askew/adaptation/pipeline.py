"""Adapt to data of one's own: train a few methods, choose one without labels, and say whether it helped."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew.adaptation.embeddings import embedded, frozen
from askew.core.errors import UserError
from askew.core.files import is_temporary, read_tensors, sweep
from askew.core.options import checked
from askew.data.custom import CustomData, few, load_custom_data
from askew.data.task import Task
from askew.evaluation.diagnosis import Diagnosis, diagnose
from askew.evaluation.outputs import DomainOutputs, softmax
from askew.evaluation.validators import choose, score_all
from askew.evaluation.verdict import Verdict, judge_transfer
from askew.inference.predictor import load
from askew.methods import method_class
from askew.nets.small import OWN
from askew.nets.spec import NetSpec, file_hash
from askew.runs.config import RunRequest, Training, plan_run
from askew.runs.execute import Execution, Progress, execute
from askew.runs.store import MARKER, is_unmarked, open_root
from askew.training.run import Run

Floats = NDArray[np.float64]

QUICK_IMAGES = 200
"""Images of each domain that a quick look takes."""
QUICK = {"pretrain": 200, "rounds": 4, "round": 40}


@dataclass(frozen=True)
class Candidate:
    """One way to train; the first of several is always source-only, which the others have to beat."""

    name: str
    method: str
    training: Mapping[str, Any] = field(default_factory=dict)


SOURCE_ONLY = Candidate("source", "source")
AUTO = (
    SOURCE_ONLY,
    Candidate("coal", "coal"),
    Candidate("coal, balanced target", "coal", {"target_sampler": "balanced"}),
    Candidate("dann", "dann"),
    Candidate("mcd", "mcd"),
)
QUICK_AUTO = AUTO[:2]


@dataclass(frozen=True)
class Order:
    """What a user asks for."""

    source: Path
    target: Path
    method: str = "auto"
    backbone: str = ""
    """Network by name; empty: one that fits the data."""
    weights: str = "hub"
    """Its starting weights: hub, none, or a .safetensors file."""
    tuned: bool | None = None
    """Whether the backbone is trained too, or frozen; None: trained on a GPU, frozen on a CPU."""
    quick: bool = False
    seed: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)
    skip_broken: bool = False

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        if self.method == "auto":
            return QUICK_AUTO if self.quick else AUTO
        name = method_class(self.method).id
        return (SOURCE_ONLY,) if name == "source" else (SOURCE_ONLY, Candidate(name, self.method))


@dataclass(frozen=True, eq=False)
class Setup:
    """The data as they are trained on, and the network."""

    data: CustomData
    task: Task
    """With embeddings in place of images where the backbone is frozen."""
    network: str
    backbone: NetSpec | None
    """The frozen one below the network."""
    training: Mapping[str, Any]

    @property
    def said(self) -> str:
        if self.backbone is not None:
            return f"{self.network} on embeddings of a frozen {self.backbone.name}"
        if self.data.kind == "rows":
            return f"{self.network} on rows of {self.data.source.shape[0]} numbers"
        return f"{self.network}, all of it trained"


@dataclass(frozen=True, eq=False)
class Trained:
    """A candidate with its finished run, and what its network says."""

    candidate: Candidate
    run: Run
    folder: Path
    said: DomainOutputs


@dataclass(frozen=True, eq=False)
class Adaptation:
    """All that was found out."""

    order: Order
    setup: Setup
    trained: tuple[Trained, ...]
    failed: Mapping[str, str]
    """Candidates that could not be trained, and why."""
    scores: tuple[Mapping[str, float], ...]
    """Label-free scores of each."""
    verdicts: Mapping[str, Verdict]
    """Of each candidate against source-only."""
    chosen: int
    diagnosis: Diagnosis
    probabilities: Floats
    """Of the target's images, under an even mix. (n_t, c)"""
    seconds: float

    @property
    def winner(self) -> Trained:
        return self.trained[self.chosen]

    @property
    def classes(self) -> tuple[str, ...]:
        return self.setup.task.training_data.classes

    @property
    def predicted(self) -> NDArray[np.int64]:
        classes: NDArray[np.int64] = self.probabilities.argmax(axis=1)
        return classes

    @property
    def sentence(self) -> str:
        """Whether it helped."""
        if self.chosen:
            return self.verdicts[self.winner.candidate.name].sentence
        if len(self.trained) > 1:
            return "No method looks better than the network without adaptation, which was kept."
        return "The network was trained on the source alone: there is nothing to compare it with."


# --- before training ---


def check_out(out: Path) -> None:
    """UserError if `out` is somebody else's; writes nothing."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, not a folder.", "choose another folder with -o.")
    runs = out / "runs"
    if (runs / MARKER).exists() or not out.is_dir():
        return
    if not all(is_temporary(p) or (p == runs and is_unmarked(p)) for p in out.iterdir()):
        raise UserError(
            f"The folder {out} holds other things and was not made by askew.", "choose a new or empty folder with -o."
        )


def set_up(order: Order, out: Path, device: torch.device) -> Generator[Progress, None, Setup]:
    """Read both domains, choose a network, and compute embeddings where the backbone is frozen."""
    data = load_custom_data(order.source, order.target, order.skip_broken, QUICK_IMAGES if order.quick else 0)
    quick = QUICK if order.quick else {}
    if data.kind == "rows":
        if order.backbone not in ("", "mlp", "bare"):
            raise UserError(
                f"The data are rows of numbers, which {order.backbone} does not take.", "--backbone mlp or bare."
            )
        return Setup(data, data.task, order.backbone or "mlp", None, quick | dict(order.training))
    shape = tuple(data.task.training_data.source.x.shape[1:])
    name = order.backbone or _fitting(shape, device)
    if name in OWN:
        return Setup(data, data.task, name, None, quick | dict(order.training))
    file = order.weights not in ("hub", "none")
    if file and not Path(order.weights).is_file():
        raise UserError(f"The weights file {order.weights} does not exist.", "--weights hub, none, or a file.")
    spec = NetSpec(name=name, weights=order.weights, weights_hash=file_hash(Path(order.weights)) if file else "")
    _fetched(spec, shape)
    if order.tuned if order.tuned is not None else device.type == "cuda":
        return Setup(data, data.task, name, None, {"weights": order.weights} | quick | dict(order.training))
    open_root(out / "runs")  # marks the folder as ours, so that work stopped from here on can go on
    task = yield from embedded(data.task, spec, out / "embeddings", device)
    return Setup(data, task, "mlp", spec, quick | dict(order.training))


def _fitting(shape: tuple[int, ...], device: torch.device) -> str:
    """A network for such images: a small one of ours for small ones, else a ResNet that the machine can bear."""
    small: dict[tuple[int, ...], str] = {(1, 28, 28): "digits-28", (3, 32, 32): "mini"}
    return small.get(shape) or ("resnet50" if device.type == "cuda" else "resnet18")


def _fetched(spec: NetSpec, shape: tuple[int, ...]) -> None:
    """UserError if the weights cannot be had."""
    try:
        frozen(spec, shape)
    except OSError as error:  # a download that failed
        raise UserError(
            f"The weights of {spec.name} could not be fetched: {error}.",
            "name a file with --weights FILE.safetensors, or use --weights none: random features, which are weak.",
        ) from None


# --- training and choosing ---


def train(
    setup: Setup, order: Order, candidates: Sequence[Candidate], out: Path, device: torch.device
) -> Generator[Progress, None, tuple[list[Trained], dict[str, str]]]:
    """Every candidate's run, in its folder; one that fails is told, unless it is source-only."""
    runs = []
    for candidate in candidates:
        training = dict(setup.training) | dict(candidate.training)
        request = RunRequest(setup.task.name, candidate.method, order.seed, shift="natural", training=training)
        runs.append((candidate, plan_run(request, setup.task, setup.network)))
    how = Execution(open_root(out / "runs"), device)
    done, failed = [], {}
    for candidate, run in runs:
        try:
            yield from execute(run, setup.task, how)
        except UserError as error:
            if candidate is SOURCE_ONLY:
                raise
            failed[candidate.name] = error.sentence
            continue
        folder = how.root / run.key
        done.append(Trained(candidate, run, folder, said(folder)))
    return done, failed


def said(folder: Path) -> DomainOutputs:
    """What the network of a finished run says of held-out source and target."""
    told, _ = read_tensors(folder / "outputs.safetensors")
    return DomainOutputs.of(told["source_val"], told["source_val_y"], told["target"], told["seen_mix"])


def adapt(order: Order, out: Path, device: torch.device) -> Generator[Progress, None, Adaptation]:
    """The whole way, but for what is written at its end; `write` does that."""
    began = time.monotonic()
    check_out(out)
    sweep(out)
    candidates = order.candidates  # what is wrong in the order is said before any work
    checked(Training, dict(order.training), "training")
    setup = yield from set_up(order, out, device)
    trained, failed = yield from train(setup, order, candidates, out, device)
    saids = [t.said for t in trained]
    steps = len(trained) + 2
    yield Progress("choice", "choosing without labels", 0, steps, {})
    scores = tuple(score_all(saids))
    chosen = choose(saids) if order.method == "auto" else len(saids) - 1
    verdicts = {}
    for i, t in enumerate(trained[1:], start=1):
        yield Progress("choice", "choosing without labels", i, steps, {})
        verdicts[t.candidate.name] = judge_transfer(saids[0], t.said, [*saids[1:i], *saids[i + 1 :]])
    yield Progress("choice", "estimating the class mix", steps - 1, steps, {})
    diagnosis = diagnose(saids[0], saids[chosen] if chosen else None)
    return Adaptation(
        order, setup, tuple(trained), failed, scores, verdicts, chosen, diagnosis,
        softmax(saids[chosen].target_evenly), time.monotonic() - began,
    )  # fmt: skip


def diagnosed(
    order: Order, out: Path, device: torch.device, model: Path | None
) -> Generator[Progress, None, tuple[Diagnosis, CustomData]]:
    """What differs between the domains, by a network trained on the source or by a model that is there; the data."""
    checked(Training, dict(order.training), "training")
    if model is None:
        setup = yield from set_up(order, out, device)
        ((only,), _) = yield from train(setup, order, (SOURCE_ONLY,), out, device)
        return diagnose(only.said), setup.data
    trained = load(model, str(device))
    data = load_custom_data(order.source, order.target, order.skip_broken, QUICK_IMAGES if order.quick else 0)
    training_data = data.task.training_data
    if trained.classes != training_data.classes:
        raise UserError(
            f"The model knows the classes {few(trained.classes)}; the source has {few(training_data.classes)}.",
            "name the source that it was trained on, or one with the same classes.",
        )
    yield Progress("model", "asking the model", 0, 2, {})
    held = trained.logits(training_data.source_val.x, domain="source")
    yield Progress("model", "asking the model", 1, 2, {})
    told = DomainOutputs.of(
        held, training_data.source_val.y, trained.logits(training_data.target.x), np.array(trained.card.training_prior)
    )
    return diagnose(told), data
