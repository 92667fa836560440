"""The loop of rounds and steps, whatever it trains; what it hands out, and how it fails."""

from __future__ import annotations

import gc
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from askew.methods.base import Batch, Losses
from askew.nets.lanes.dense import Gradient, factored_gradients
from askew.training.batches import with_views
from askew.training.clocks import stopwatch
from askew.training.optim import Averages, Optimiser
from askew.training.run import Run
from askew.training.snapshot import Checkpoint, Precision

CHUNK = 400
"""Steps between two looks at the losses on a GPU, where each look waits for the device."""
CPU_CHUNK = 20
"""The same on a CPU, where steps are slow, looks are free, and a person waits for the bar to
move."""

_LARGE = 1 << 22
"""Weights from which on a kernel of their own pays: one pass instead of three, one launch more."""

WINDOW = 4096
"""Most steps whose batches are drawn at once: a draw costs the same for few steps and for many."""


class NoGraphWarning(UserWarning):
    """Steps are launched kernel by kernel, which is slower."""


Seen = TypeVar("Seen")


class Loop(ABC, Generic[Seen]):
    """Rounds of refresh and training on one device. A step reads nothing from the host, so it can
    be captured.

    What is trained, one run or many, is the subclass's matter; it hands out what it sees as `Seen`.
    """

    params: dict[str, Tensor]
    optimiser: Optimiser
    source_table: Tensor
    target_table: Tensor
    step_key_table: Tensor
    view_key_table: Tensor
    averaged: dict[str, tuple[Tensor, Tensor]]
    """A teacher's tensors, and the student's that they average, by the student's name."""
    copied: list[tuple[Tensor, Tensor]]
    """Likewise those that it takes as they are."""

    def __init__(
        self, run: Run, number: int, device: torch.device, graph: bool, picture_side: int
    ) -> None:
        stage = run.plan[number]
        self.stage, self.device, self.precision = stage, device, run.precision
        self.views, self.picture_side = run.views, picture_side
        self.draws_by_round = run.target_sampler != "natural"
        """Whether batches depend on the last refresh's pseudo-labels, so that no draw may reach
        past a round's end."""
        self.phases = stage.method.phases()
        self.turns = sum(phase.repeat for phase in self.phases)
        self.chunk = min(CHUNK if device.type == "cuda" else CPU_CHUNK, stage.round_steps)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # steps done in this stage
        self.first = torch.zeros(
            1, dtype=torch.int64, device=device
        )  # the step of the tables' first row
        self.window = min(WINDOW, stage.steps)
        self.drawn = range(0)  # the steps whose batches the tables hold
        self.names: list[str] = []
        self.sums = torch.zeros(0, device=device)
        self.use_graph = graph and device.type == "cuda"
        self.captured: torch.cuda.CUDAGraph | None = None

    @abstractmethod
    def batch(self, source: Tensor, target: Tensor) -> Batch:
        """The images of these rows."""

    @abstractmethod
    def set_step_key(self, step_key: Tensor) -> None:
        """Tell every dropout and crop the key of the step."""

    @abstractmethod
    def losses(self, phase: int, batch: Batch, t: Tensor) -> Losses:
        """The named terms of a phase."""

    @abstractmethod
    def refresh(self, round: int) -> None:
        """What the method, and a target sampler that goes by pseudo-labels, want to know before a
        round."""

    @abstractmethod
    def draw(self, first: int, steps: int) -> None:
        """Fill the tables with the batches and keys of the steps first … first+steps−1, `window` at
        most."""

    @abstractmethod
    def live(self) -> Checkpoint:
        """Everything that a step changes, under stable names."""

    @abstractmethod
    def look(self, done: int, steps: int) -> Seen:
        """What to hand out after `done` steps, `steps` of them in this round."""

    def ready(self, step: int) -> None:
        """Whatever a step needs that does not lie on the device; counted from the last `draw`."""

    def agreed(self, names: list[str], grads: Sequence[Gradient]) -> Sequence[Gradient]:
        """The gradients to follow, where several processes take part."""
        return grads

    def step(self) -> None:
        """Take one step, from the clock to the sums of the losses."""
        row = self.clock - self.first
        batch = self.batch(
            self.source_table.index_select(0, row)[0], self.target_table.index_select(0, row)[0]
        )
        key = self.view_key_table.index_select(0, row)[0]
        batch = with_views(batch, self.stage.method, key, self.views, self.picture_side)
        t = (self.clock / self.stage.steps)[0]
        step_keys = iter(self.step_key_table.index_select(0, row)[0])
        terms: Losses = {}
        averages, left = self.averages(), self.turns
        moved: set[str] = set()
        for number, phase in enumerate(self.phases):
            names = [
                n
                for n in self.params
                if phase.trains is None or n.partition(".")[0] in phase.trains
            ]
            for _ in range(phase.repeat):
                self.set_step_key(next(step_keys))
                with torch.autocast(
                    self.device.type, torch.bfloat16, enabled=self.precision == "bf16"
                ):
                    losses = self.losses(number, batch, t)
                    total = torch.stack([value.float() for value in losses.values()]).sum()
                grads = self.agreed(names, gradients(total, [self.params[n] for n in names]))
                left -= 1
                moved = self.optimiser.step(names, grads, t, None if left else averages)
                terms |= losses
        self.average(averages, moved)
        values = torch.stack([value.detach().float() for value in terms.values()])
        if not self.names:
            self.names, self.sums = list(terms), torch.zeros_like(values)
        self.sums += values
        self.clock += 1

    def averages(self) -> Averages | None:
        """A teacher's weights, which follow the student's by 1/min(i + 1, memory), i being the
        step's number."""
        if not self.averaged:
            return None
        share = 1 / (self.clock[0] + 1).clamp(max=self.stage.method.teacher_memory()).float()
        return share, {name: own for name, (own, _) in self.averaged.items() if name in self.params}

    def average(self, averages: Averages | None, moved: Collection[str]) -> None:
        """Teacher ← (1 − share)·teacher + share·student, but for what has been moved already."""
        if averages is None:
            return
        pairs = [pair for name, pair in self.averaged.items() if name not in moved]
        large = [pair for pair in pairs if pair[0].numel() >= _LARGE]
        small = [pair for pair in pairs if pair[0].numel() < _LARGE]
        share = averages[0]
        with torch.no_grad():
            for own, its in large:
                own.lerp_(its, share)
            if small:
                owns, theirs = (list(tensors) for tensors in zip(*small, strict=True))
                torch._foreach_mul_(owns, 1 - share)
                torch._foreach_add_(owns, torch._foreach_mul(theirs, share))
            if self.copied:
                owns, theirs = (list(tensors) for tensors in zip(*self.copied, strict=True))
                torch._foreach_copy_(owns, theirs)

    @stopwatch.on("capture")
    def capture(self) -> None:
        """Record one step as a CUDA graph, if it can be; the warm-up steps that this needs are
        taken back."""
        live = self.live()
        kept = {name: value.clone() for name, value in live.items()}
        here = torch.cuda.current_stream()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
                self.clock -= 1
        here.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with undisturbed(), torch.cuda.graph(graph):
                self.step()
            self.captured = graph
        except RuntimeError as error:  # somebody's method waits for the device, perhaps
            self.use_graph = False
            # A capture that failed keeps the stream, and until one succeeds torch's generator waits
            # for its end.
            torch.cuda.set_stream(here)
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                self.sums.add(0)
            reason = str(error).splitlines()[0]
            warnings.warn(
                f"The step cannot be captured as a CUDA graph ({reason}).",
                NoGraphWarning,
                stacklevel=2,
            )
        for name, value in live.items():
            value.copy_(kept[name])
        if "sums" not in kept:
            self.sums.zero_()

    def advance(self, first: int, steps: int) -> None:
        """Take the steps first … first+steps−1, all of one round."""
        if first not in self.drawn or first + steps > self.drawn.stop:
            within = first % self.stage.round_steps
            most = (
                self.stage.round_steps - within if self.draws_by_round else self.stage.steps - first
            )
            self.drawn = range(first, first + min(self.window, most))
            self.draw(first, len(self.drawn))
            self.first.fill_(first)
        with arithmetic(self.precision, self.device):
            for step in range(first, first + steps):
                self.ready(step - self.drawn.start)
                if self.use_graph and self.captured is None:
                    self.capture()
                if self.captured is not None:
                    self.captured.replay()
                else:
                    self.step()

    def train(self, done: int) -> Iterator[Seen]:
        """From step `done` to the stage's end."""
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
            yield self.look(done, within + steps)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage is collected meanwhile: an earlier run's graph, were it let go of now, would spoil
    a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def arithmetic(precision: Precision, device: torch.device) -> Iterator[None]:
    """How float32 numbers are multiplied meanwhile."""
    before = torch.get_float32_matmul_precision()
    if precision != "float32" and device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def gradients(total: Tensor, params: list[Tensor]) -> Sequence[Gradient]:
    """Of a loss; none for a phase whose parts have no weights, such as the features of
    embeddings."""
    if not params:
        return ()
    with factored_gradients(params) as found:
        others = torch.autograd.grad(total, params, allow_unused=True)
    return [
        found.with_others(weight, gradient) for weight, gradient in zip(params, others, strict=True)
    ]
