"""The one training loop: rounds of refresh and training, as an iterator that never prints and never calls back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from askew import chance
from askew.data.feed import Feed, Sampler, Shelf
from askew.data.task import Study
from askew.method import Method, Shape
from askew.nets import Net, build, new_head
from askew.optim import Optimiser
from askew.plan import Run, Stage

CHUNK = 200
"""Steps between two looks at the losses on a GPU, where each look waits for the device."""
CPU_CHUNK = 20
"""The same on a CPU, where steps are slow, looks are free, and a person waits for the bar to move."""
PREDICT_BATCH = 1024

Checkpoint = dict[str, Tensor]


class NotFinite(Exception):
    """A loss or a weight is NaN or infinite; training stopped before that was written anywhere."""

    def __init__(self, stage: int, step: int, losses: dict[str, float]) -> None:
        bad = [name for name, value in losses.items() if not torch.isfinite(torch.tensor(value))]
        self.what = f"the loss '{bad[0]}' is not finite" if bad else "a weight is not finite"
        self.step, self.stage, self.losses = step, stage, losses
        super().__init__(f"{self.what} after step {step} of stage {stage}")


class NetworkOutputs:
    """What the present network says of the whole study; computed when first read."""

    def __init__(self, predict: Callable[[Shelf], Tensor], feed: Feed, sampler: Sampler) -> None:
        self._predict, self._feed, self._sampler = predict, feed, sampler

    @cached_property
    def target(self) -> Tensor:
        return self._predict(self._feed.target)

    @cached_property
    def source_val(self) -> Tensor:
        return self._predict(self._feed.source_val)

    @cached_property
    def exam(self) -> Tensor:
        return self._predict(self._feed.exam)

    @property
    def source_val_y(self) -> Tensor:
        return self._feed.source_val_y

    @property
    def source_mix(self) -> Tensor:
        return self._feed.source_mix(self._sampler)


@dataclass
class Snapshot:
    """Where training stands: at a round's end, or between two looks at the losses."""

    stage: int
    step: int
    losses: dict[str, float]
    """Means over the round so far."""
    round_ends: bool
    _trainer: Trainer = field(repr=False)

    @property
    def outputs(self) -> NetworkOutputs:
        return self._trainer.outputs()

    @property
    def seen_mix(self) -> Tensor:
        """The class mix that the label loss has seen. (c,)"""
        trainer = self._trainer
        return trainer.method.seen_mix(trainer.outputs().source_mix, trainer.state)

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here, bit for bit. The tensors are live: save them before going on."""
        return self._trainer.tensors()

    def weights(self) -> Checkpoint:
        """The network alone."""
        return {name: value.detach() for name, value in self._trainer.net.state_dict().items()}


class Trainer:
    """One stage of a run on one device. A step reads nothing from the host, so it can be captured as a graph."""

    def __init__(self, run: Run, number: int, feed: Feed, net: Net, graph: bool) -> None:
        self.run, self.number, self.feed, self.net = run, number, feed, net
        self.stage: Stage = run.plan[number]
        self.method: Method = self.stage.method
        self.phases = self.method.phases()
        device = feed.device
        self.params: dict[str, Tensor] = {n: p for n, p in net.named_parameters() if p.requires_grad}
        self.optimiser = Optimiser(self.stage.optim, self.params)
        self.state: dict[str, Tensor] = {}
        self.pseudo: Tensor | None = None
        self.names: list[str] = []
        self.sums = torch.zeros(0, device=device)
        self.chunk = min(CHUNK if device.type == "cuda" else CPU_CHUNK, self.stage.round_steps)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # steps done in this stage
        self.first = torch.zeros(1, dtype=torch.int64, device=device)  # the step of the tables' first row
        shape = (self.chunk, run.batch)
        self.source_table = torch.zeros(shape, dtype=torch.int64, device=device)
        self.target_table = torch.zeros(shape, dtype=torch.int64, device=device)
        self.turns = sum(phase.repeat for phase in self.phases)
        self.moment_table = torch.zeros((self.chunk, self.turns), dtype=torch.int64, device=device)
        self.noise = chance.key("noise", run.seed, number)
        self.use_graph = graph and device.type == "cuda" and feed.resident
        self.captured: torch.cuda.CUDAGraph | None = None

    # --- one step ---

    def step(self) -> None:
        row = self.clock - self.first
        batch = self.feed.batch(self.source_table.index_select(0, row)[0], self.target_table.index_select(0, row)[0])
        t = (self.clock / self.stage.steps)[0]
        moments = self.moment_table.index_select(0, row)[0]
        turn = 0
        terms: dict[str, Tensor] = {}
        for phase in self.phases:
            names = [n for n in self.params if phase.trains is None or n.partition(".")[0] in phase.trains]
            for _ in range(phase.repeat):
                self.net.set_moment(moments[turn])
                turn += 1
                with torch.autocast(self.feed.device.type, torch.bfloat16, enabled=self.run.precision == "bf16"):
                    losses = phase.losses(self.net, batch, self.state, t)
                    total = torch.stack([value.float() for value in losses.values()]).sum()
                grads = torch.autograd.grad(total, [self.params[n] for n in names], allow_unused=True)
                self.optimiser.step(names, grads, t)
                terms |= losses
        values = torch.stack([value.detach().float() for value in terms.values()])
        if not self.names:
            self.names, self.sums = list(terms), torch.zeros_like(values)
        self.sums += values
        self.clock += 1

    def capture(self) -> None:
        """Record one step as a CUDA graph; the warm-up steps that this needs are taken back."""
        live = self.tensors()
        kept = {name: value.clone() for name, value in live.items()}
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
                self.clock -= 1
        torch.cuda.current_stream().wait_stream(stream)
        self.captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.captured):
            self.step()
        for name, value in live.items():
            value.copy_(kept[name])
        if "sums" not in kept:
            self.sums.zero_()

    # --- rounds ---

    def refresh(self, round: int) -> None:
        """What the method, and a target sampler that goes by pseudo-labels, want to know before a round."""
        outputs = self.outputs()
        fresh = self.method.refresh(outputs, round)
        if self.run.target_sampler == "balanced":
            self.pseudo = outputs.target.argmax(dim=-1)
        for name, value in fresh.items():
            if name in self.state:
                self.state[name].copy_(value)  # in place: a captured graph reads from the same memory
            else:
                self.state[name] = value.clone()

    def advance(self, first: int, steps: int) -> None:
        """Take the steps first … first+steps−1, all of one round."""
        run, feed = self.run, self.feed
        offset = sum(stage.steps for stage in run.plan[: self.number]) + first
        source = feed.source_rows(run.sampler, run.seed, offset, steps, run.batch)
        target = feed.target_rows(self.pseudo, run.seed, offset, steps, run.batch)
        self.source_table[:steps].copy_(source)
        self.target_table[:steps].copy_(target)
        moments = torch.arange(first * self.turns, (first + steps) * self.turns, device=feed.device)
        self.moment_table[:steps].copy_(chance.scatter(self.noise, moments).view(steps, self.turns))
        self.first.fill_(first)
        if self.use_graph and self.captured is None:
            self.capture()
        for _ in range(steps):
            if self.captured is not None:
                self.captured.replay()
            else:
                self.step()

    def train(self, done: int) -> Iterator[Snapshot]:
        """From step `done` to the stage's end."""
        self.net.train()
        round_steps, total = self.stage.round_steps, self.stage.steps
        while done < total:
            round, within = divmod(done, round_steps)
            if within == 0:
                if round > 0 or not self.stage.restart:
                    self.refresh(round)
                self.sums.zero_()
            steps = min(self.chunk, round_steps - within)
            self.advance(done, steps)
            done += steps
            means = (self.sums / (within + steps)).tolist()
            losses = dict(zip(self.names, means, strict=True))
            size = torch.stack(torch._foreach_norm(list(self.params.values()))).sum()
            if not torch.isfinite(self.sums.sum() + size):
                raise NotFinite(self.number, done, losses)
            yield Snapshot(self.number, done, losses, done % round_steps == 0, self)

    # --- looking ---

    def predict(self, shelf: Shelf) -> Tensor:
        """Logits of a whole domain."""
        was_training = self.net.training
        self.net.eval()
        rows = torch.arange(len(shelf), device=self.feed.device)
        with (
            torch.no_grad(),
            torch.autocast(self.feed.device.type, torch.bfloat16, enabled=self.run.precision == "bf16"),
        ):
            logits = [self.method.predict(self.net, shelf.take(r)).float() for r in torch.split(rows, PREDICT_BATCH)]
        self.net.train(was_training)
        return torch.cat(logits) if logits else torch.zeros(0, self.feed.classes, device=self.feed.device)

    def outputs(self) -> NetworkOutputs:
        return NetworkOutputs(self.predict, self.feed, self.run.sampler)

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


def fit(
    run: Run,
    study: Study,
    device: torch.device,
    *,
    start: Checkpoint | None = None,
    resume: Resume | None = None,
    graph: bool = True,
) -> Iterator[Snapshot]:
    """Train the run's last stage, yielding snapshots.

    It begins from `start`, the weights that the stages before it left (none for a single stage), or goes on from
    `resume`. It holds no target label: the study has none.
    """
    feed = Feed(study, device)
    number = len(run.plan) - 1
    method = run.method
    shape = tuple(study.source.x.shape[1:])
    parts, width = build(run.net, shape, feed.classes, run.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.key("parts", run.seed, number))
        parts |= method.parts(Shape(width, feed.classes, lambda: new_head(run.net, width, feed.classes)))
    net = Net(parts, width, split_norm=run.net.norm == "split").to(device)
    net.share_moment()
    fresh = {name: value.clone() for name, value in net.state_dict().items()}
    if start is not None:
        net.load_state_dict({name: start.get(name, value) for name, value in fresh.items()})
    trainer = Trainer(run, number, feed, net, graph)
    if resume is not None:
        trainer.load(resume.tensors, resume.loss_names)
    elif run.plan[-1].restart:
        trainer.refresh(0)  # the last word of the network before
        net.load_state_dict(fresh)
    yield from trainer.train(resume.step if resume else 0)
