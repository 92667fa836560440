"""The one training loop: rounds of refresh and training, as an iterator that never prints and never
calls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from askew.core import random
from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.methods.base import Batch, ClosedForm, Losses, Method, new_net
from askew.nets.forward import chunk_rows
from askew.nets.network import Net
from askew.training.batches import DomainTensor, Feed
from askew.training.clocks import stopwatch
from askew.training.loop import Loop, arithmetic
from askew.training.optim import Optimiser
from askew.training.prefetch import Ahead
from askew.training.run import Run
from askew.training.snapshot import Checkpoint, NetworkOutputs, NotFinite, Snapshot


def portions(domain: DomainTensor, device: torch.device, share: int = 1) -> Sequence[Tensor]:
    """All rows of a domain, in portions whose activations fit; smaller ones where `share` networks
    predict at once."""
    return torch.split(
        torch.arange(len(domain), device=device), chunk_rows(domain.x.shape[1:], share)
    )


def picture_side(run: Run, feed: Feed) -> int:
    """The side of picture views: what the network would crop images to."""
    side = int(feed.source.x.shape[-1])
    return min(run.net.crop or side, side)


def keep(state: dict[str, Tensor], fresh: dict[str, Tensor]) -> None:
    """Take over what a refresh computed: in place, since a captured graph reads from the same
    memory."""
    for name, value in fresh.items():
        if name in state:
            state[name].copy_(value)
        else:
            state[name] = value.clone()


class Trainer(Loop[Snapshot]):
    """One stage of a run."""

    def __init__(self, run: Run, number: int, feed: Feed, net: Net, graph: bool) -> None:
        super().__init__(run, number, feed.device, graph, picture_side(run, feed))
        self.run, self.number, self.feed, self.net = run, number, feed, net
        self.method: Method = self.stage.method
        device = feed.device
        self.params: dict[str, Tensor] = {
            n: p for n, p in net.named_parameters() if p.requires_grad
        }
        self.optimiser = Optimiser(self.stage.optim, self.params, run.net.on_backbone)
        self.state: dict[str, Tensor] = {}
        self.pseudo: Tensor | None = None
        shape = (self.window, run.batch)
        self.source_table = torch.zeros(shape, dtype=torch.int64, device=device)
        self.target_table = torch.zeros(shape, dtype=torch.int64, device=device)
        self.step_key_table = torch.zeros(
            (self.window, self.turns), dtype=torch.int64, device=device
        )
        self.view_key_table = torch.zeros(self.window, dtype=torch.int64, device=device)
        named = dict(net.named_parameters()) | dict(net.named_buffers())
        self.averaged = {its: (named[own], named[its]) for own, its in net.averaged()}
        self.copied = [(named[own], named[its]) for own, its in net.copied()]
        self.ahead = None if feed.resident else Ahead((feed.source, feed.target), run.batch, device)
        net.train()

    # --- one step ---

    def batch(self, source: Tensor, target: Tensor) -> Batch:
        if self.ahead is None:
            return self.feed.batch(source, target)
        xs, xt = self.ahead.device_buffers
        return Batch(xs, self.feed.ys[source], xt, target)

    def set_step_key(self, step_key: Tensor) -> None:
        self.net.set_step_key(step_key)

    def losses(self, phase: int, batch: Batch, t: Tensor) -> Losses:
        return self.phases[phase].losses(self.net, batch, self.state, t)

    # --- rounds ---

    def refresh(self, round: int) -> None:
        outputs = self.outputs()
        keep(self.state, self.method.refresh(outputs, round))
        if self.run.target_sampler != "natural":
            self.pseudo = self.method.pseudo_labels(outputs, round)

    def draw(self, first: int, steps: int) -> None:
        drawn = tables(self.run, self.number, self.feed, self.pseudo, first, steps, self.turns)
        self.source_table[:steps].copy_(drawn.source)
        self.target_table[:steps].copy_(drawn.target)
        self.step_key_table[:steps].copy_(drawn.step_keys)
        self.view_key_table[:steps].copy_(drawn.view_keys)
        if self.ahead is not None:
            self.ahead.begin((drawn.source, drawn.target))

    def ready(self, step: int) -> None:
        if self.ahead is not None:
            self.ahead.put(step)

    def look(self, done: int, steps: int) -> Snapshot:
        losses = dict(zip(self.names, (self.sums / steps).tolist(), strict=True))
        size = torch.stack(torch._foreach_norm(list(self.params.values()))).sum()
        if not torch.isfinite(self.sums.sum() + size):
            raise NotFinite(self.number, done, losses)
        return Snapshot(
            stage=self.number,
            step=done,
            losses=losses,
            round_ends=done % self.stage.round_steps == 0,
            _trained=self,
        )

    # --- looking ---

    def portions(self, domain: DomainTensor) -> Sequence[Tensor]:
        """The rows of a domain that are predicted here."""
        return portions(domain, self.device)

    def predict(self, domain: DomainTensor) -> Tensor:
        """Logits of a whole domain; held-out source images by the source's batch statistics, if
        there are any."""
        with self.net.source_statistics() if domain is self.feed.source_val else nullcontext():
            return self.forward(domain, self.method.predict, self.feed.classes)

    def forward(
        self, domain: DomainTensor, function: Callable[[Net, Tensor], Tensor], width: int
    ) -> Tensor:
        """What a function of the network returns for a whole domain, in evaluation. (n, width)"""
        was_training = self.net.training
        self.net.eval()
        values = torch.zeros(len(domain), width, device=self.device)
        with (
            torch.no_grad(),
            arithmetic(self.precision, self.device),
            torch.autocast(
                self.feed.device.type, torch.bfloat16, enabled=self.run.precision == "bf16"
            ),
        ):
            for rows in self.portions(domain):
                values[rows] = function(self.net, domain.take(rows)).float()
        self.net.train(was_training)
        return values

    def train(self, done: int) -> Iterator[Snapshot]:
        method = self.method
        if not isinstance(method, ClosedForm):
            yield from super().train(done)
            return
        fs, ft = (
            self.forward(domain, lambda net, x: net["features"](x).flatten(1), self.net.width)
            for domain in (self.feed.source, self.feed.target)
        )
        given = {} if self.feed.soft_labels is None else {"soft_labels": self.feed.soft_labels}
        self.net.set_head(*method.fit(fs, self.feed.ys, ft, self.feed.classes, **given))
        self.clock.fill_(self.stage.steps)
        yield self.look(self.stage.steps, self.stage.steps)

    def outputs(self) -> NetworkOutputs:
        return NetworkOutputs(self.predict, self.feed, self.run.sampler)

    def training_prior(self) -> Tensor:
        return self.method.training_prior(self.feed.source_prior(self.run.sampler), self.state)

    def weights(self) -> Checkpoint:
        return {name: value.detach() for name, value in self.net.state_dict().items()}

    def live(self) -> Checkpoint:
        return self.tensors()

    def tensors(self) -> Checkpoint:
        """Everything that changes while training, under stable names."""
        named = {f"net.{n}": v.detach() for n, v in self.net.state_dict().items()}
        named |= {f"optim.{n}": v for n, v in self.optimiser.tensors().items()}
        named |= {f"state.{n}": v for n, v in self.state.items()}
        named["clock"] = self.clock
        if self.names:
            named["sums"] = self.sums
        if self.pseudo is not None:
            named["pseudo"] = self.pseudo
        return named

    def load(self, checkpoint: Checkpoint, names: list[str]) -> None:
        """Go on from a checkpoint of this stage; `names` are those of the losses it summed."""
        for name in checkpoint:
            if name.startswith("state."):
                self.state[name.removeprefix("state.")] = checkpoint[name].to(self.feed.device)
        if names:
            self.names, self.sums = names, checkpoint["sums"].to(self.feed.device)
        if "pseudo" in checkpoint:
            self.pseudo = checkpoint["pseudo"].to(self.feed.device)
        for name, value in self.tensors().items():
            value.copy_(checkpoint[name])


@dataclass(frozen=True)
class Resume:
    """Where to go on: a step of the stage, and the tensors saved there."""

    step: int
    tensors: Checkpoint
    loss_names: list[str]


class Tables(NamedTuple):
    """What the steps of a stage draw: a function of the run's seed and of the steps' numbers."""

    source: Tensor
    """Rows of the source. (steps, batch)"""
    target: Tensor
    """Rows of the target. (steps, batch)"""
    step_keys: Tensor
    """What keys dropout masks and crops, one for every update. (steps, turns)"""
    view_keys: Tensor
    """What keys random views, and numbers that a method draws. (steps,)"""


def tables(
    run: Run, number: int, feed: Feed, pseudo: Tensor | None, first: int, steps: int, turns: int
) -> Tables:
    """What the steps first … first+steps−1 of a stage draw."""
    offset = sum(stage.steps for stage in run.plan[:number]) + first
    source = feed.source_rows(run.sampler, run.seed, offset, steps, run.batch)
    floor = run.target_floor if run.target_sampler == "even" else None
    target = feed.target_rows(pseudo, run.seed, offset, steps, run.batch, floor)
    update = torch.arange(first * turns, (first + steps) * turns, device=feed.device)
    step_keys = random.hash64(random.key("noise", run.seed, number), update).view(steps, turns)
    step = torch.arange(first, first + steps, device=feed.device)
    return Tables(
        source, target, step_keys, random.hash64(random.key("views", run.seed, number), step)
    )


def built_on(start: Checkpoint, fresh: Checkpoint) -> Checkpoint:
    """A network's tensors, those of the stages before it where they have them; a method's own parts
    begin fresh."""
    strange = [n for n in start if n.partition(".")[0] in ("features", "head") and n not in fresh]
    if strange:
        raise UserError(
            f"The network has no {strange[0]}, as its pre-trained weights do: another askew made "
            "them.",
            "choose another folder with --out, so that pre-training is done again.",
        )
    return {
        name: next((start[n] for n in _origins(name) if n in start), value)
        for name, value in fresh.items()
    }


def _origins(name: str) -> tuple[str, ...]:
    """Where a tensor's value may come from: its own name; a teacher starts as the student, and
    source statistics as those of a network that has seen the source alone."""
    student = name.removeprefix("teacher.")
    return name, student, student.replace(".source_running_", ".running_")


def run_net(run: Run, training_data: TrainingData) -> Net:
    """The network of a run's last stage, with the weights that its seed gives it."""
    shape, classes = tuple(training_data.source.x.shape[1:]), len(training_data.classes)
    return new_net(
        run.net,
        run.method,
        shape,
        classes,
        run.seed,
        random.key("parts", run.seed, len(run.plan) - 1),
    )


@stopwatch.on("start-up")
def begin(
    run: Run,
    training_data: TrainingData,
    device: torch.device,
    start: Checkpoint | None,
    resume: Resume | None,
    make: Callable[[Run, int, Feed, Net], Trainer],
) -> Trainer:
    """A trainer of the run's last stage, ready to take its first step; `make` chooses its kind."""
    feed = Feed(training_data, device)
    net = run_net(run, training_data).to(device)
    if run.net.embedding is not None:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net.share_step_key()
    fresh = {name: value.clone() for name, value in net.state_dict().items()}
    if start is not None:
        net.load_state_dict(built_on(start, fresh))
    trainer = make(run, len(run.plan) - 1, feed, net)
    if resume is not None:
        trainer.load(resume.tensors, resume.loss_names)
    elif run.plan[-1].restart:
        trainer.refresh(0)  # the last word of the network before
        net.load_state_dict(fresh)
    return trainer


def fit(
    run: Run,
    training_data: TrainingData,
    device: torch.device,
    *,
    start: Checkpoint | None = None,
    resume: Resume | None = None,
    graph: bool = True,
) -> Iterator[Snapshot]:
    """Train the run's last stage, yielding snapshots.

    It begins from `start`, the weights that the stages before it left (none for a single stage), or
    goes on from `resume`. It holds no target label: the training data has none.

    >>> request = askew.runs.RunRequest(task="mini/syn-uci", method="source", training=short)
    >>> planned = askew.runs.prepare(request)
    >>> data = planned.task.training_data
    >>> *_, last = askew.methods.fit(planned.run.before, data, torch.device("cpu"))
    >>> last.step
    5
    """
    trainer = begin(run, training_data, device, start, resume, partial(Trainer, graph=graph))
    yield from trainer.train(resume.step if resume else 0)
