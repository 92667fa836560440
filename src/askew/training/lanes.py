"""Lanes: runs of equal shape trained together, one step for all, under `torch.func.vmap` with
stacked weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from askew.data.task import TrainingData
from askew.methods.base import Batch, Losses, State
from askew.nets.network import Net
from askew.training.batches import DomainTensor, Feed
from askew.training.clocks import stopwatch
from askew.training.lane_groups import Block, Call, blocks, float_options, inside, joined, stacked
from askew.training.loop import Loop, arithmetic
from askew.training.optim import Optimiser
from askew.training.run import Run
from askew.training.snapshot import Checkpoint, NetworkOutputs, NotFinite, Snapshot
from askew.training.trainer import Resume, built_on, picture_side, portions, run_net, tables


class Lane:
    """One run among the lanes, seen by itself."""

    def __init__(self, lanes: Lanes, number: int, block: Block) -> None:
        self.lanes, self.number, self.block = lanes, number, block
        self.run = lanes.runs[number]

    def outputs(self) -> NetworkOutputs:
        predict = self.lanes.shared_predictions(self.block)
        place = self.number - self.block.lanes.start
        return NetworkOutputs(
            lambda domain: predict(domain)[place], self.block.feed, self.run.sampler
        )

    @property
    def state(self) -> dict[str, Tensor]:
        sizes = self.lanes.state_sizes
        return {n: v[self.number][: sizes[n][self.number]] for n, v in self.lanes.state.items()}

    def training_prior(self) -> Tensor:
        return self.run.method.training_prior(
            self.block.feed.source_prior(self.run.sampler), self.state
        )

    def weights(self) -> Checkpoint:
        return {name: self.lanes.tensor(name)[self.number].detach() for name in self.lanes.saved}

    def tensors(self) -> Checkpoint:
        """The same names and shapes as a run by itself saves, so that either can go on from the
        other's."""
        lanes, i = self.lanes, self.number
        named = {f"net.{n}": v for n, v in self.weights().items()}
        for name, value in lanes.optimiser.tensors().items():
            named[f"optim.{name}"] = value if name.startswith("count.") else value[i]
        named |= {f"state.{n}": v for n, v in self.state.items()}
        named["clock"] = lanes.clock
        if lanes.names:
            named["sums"] = lanes.sums[:, i]
        if lanes.pseudo is not None:
            named["pseudo"] = lanes.pseudo[i]
        return named


class Lanes(Loop[list[Snapshot | NotFinite]]):
    """One stage of many runs: everything of theirs has one more dimension, the first."""

    def __init__(
        self, runs: Sequence[Run], feeds: Sequence[Feed], nets: Sequence[Net], graph: bool
    ) -> None:
        self.runs, self.number = list(runs), len(runs[0].plan) - 1
        self.method = runs[0].method
        device = feeds[0].device
        resident = all(feed.resident for feed in feeds)
        super().__init__(
            runs[0], self.number, device, graph and resident, picture_side(runs[0], feeds[0])
        )
        self.call = Call(nets[0])
        self.call.train()
        for module in self.call.modules():
            if hasattr(module, "in_lanes"):
                # Modules' attributes are Tensor or Module to mypy.
                setattr(module, "in_lanes", True)  # noqa: B010
        self.params = stacked([dict(net.named_parameters()) for net in nets], device)
        for value in self.params.values():
            value.requires_grad_()
        self.step_key = torch.zeros(len(runs), dtype=torch.int64, device=device)
        self.buffers = stacked([dict(net.named_buffers()) for net in nets], device)
        self.buffers |= {name: self.step_key for name in self.buffers if name.endswith(".step_key")}
        self.saved = list(nets[0].state_dict())
        self.hyper = {
            name: torch.tensor([float(getattr(run.method, name)) for run in runs], device=device)
            for name in float_options(self.method)
        }
        self.optimiser = Optimiser(self.stage.optim, self.params, runs[0].net.on_backbone)
        self.state: dict[str, Tensor] = {}
        self.state_sizes: dict[str, list[int]] = {}
        self.pseudo: list[Tensor] | None = None
        self.predictions: dict[tuple[int, int, int], Tensor] = {}
        self.blocks = blocks(feeds)
        self.lanes = [
            Lane(self, i, b) for b in self.blocks for i in range(b.lanes.start, b.lanes.stop)
        ]
        self._lay_out(runs[0].batch)
        self.averaged = {
            its: (self.tensor(own), self.tensor(its)) for own, its in nets[0].averaged()
        }
        self.copied = [(self.tensor(own), self.tensor(its)) for own, its in nets[0].copied()]

    def _lay_out(self, batch: int) -> None:
        """All lanes' data side by side, and the tables of what their steps draw."""
        count, device = len(self.runs), self.device
        self.source = joined([block.feed.source for block in self.blocks])
        self.target = joined([block.feed.target for block in self.blocks])
        self.ys = torch.cat([block.feed.ys for block in self.blocks])
        offsets = [(lane.block.source_offset, lane.block.target_offset) for lane in self.lanes]
        self.offsets = torch.tensor(offsets, device=device)[:, :, None]
        shape = (self.window, count)
        self.source_table = torch.zeros((*shape, batch), dtype=torch.int64, device=device)
        self.target_table = torch.zeros((*shape, batch), dtype=torch.int64, device=device)
        self.step_key_table = torch.zeros(
            (self.window, self.turns, count), dtype=torch.int64, device=device
        )
        self.view_key_table = torch.zeros(shape, dtype=torch.int64, device=device)

    def tensor(self, name: str) -> Tensor:
        """A parameter or buffer of all lanes."""
        return self.params[name] if name in self.params else self.buffers[name]

    # --- one step ---

    def batch(self, source: Tensor, target: Tensor) -> Batch:
        rows = source + self.offsets[:, 0]
        return Batch(
            self.source.take(rows),
            self.ys[rows],
            self.target.take(target + self.offsets[:, 1]),
            target,
        )

    def set_step_key(self, step_key: Tensor) -> None:
        self.step_key.copy_(step_key)

    def losses(self, phase: int, batch: Batch, t: Tensor) -> Losses:
        """A phase's terms, a value a lane: the gradient of their sum is each lane's own."""

        def one(params: State, buffers: State, hyper: State, batch: Batch, state: State) -> Losses:
            own = dataclasses.replace(self.method, **hyper).phases()[phase]
            losses: Losses = functional_call(
                self.call, inside(params, buffers), (own.losses, batch, state, t)
            )
            return losses

        every: Losses = vmap(one)(self.params, self.buffers, self.hyper, batch, self.state)
        return every

    # --- rounds ---

    def refresh(self, round: int) -> None:
        fresh, pseudo = [], []
        for lane in self.lanes:
            outputs = lane.outputs()
            fresh.append(lane.run.method.refresh(outputs, round))
            if lane.run.target_sampler != "natural":
                pseudo.append(lane.run.method.pseudo_labels(outputs, round))
        self.keep(fresh)
        self.pseudo = pseudo or None

    def keep(self, fresh: Sequence[dict[str, Tensor]]) -> None:
        """Take over what the lanes' refreshes computed; targets of several sizes lie in the room of
        the largest."""
        for name in fresh[0]:
            values = [one[name] for one in fresh]
            if name not in self.state:
                shape = (len(values), max(len(value) for value in values), *values[0].shape[1:])
                self.state[name] = torch.zeros(shape, dtype=values[0].dtype, device=self.device)
                self.state_sizes[name] = [len(value) for value in values]
            for room, value in zip(self.state[name], values, strict=True):
                room[: len(value)].copy_(value)

    def draw(self, first: int, steps: int) -> None:
        for lane in self.lanes:
            i = lane.number
            pseudo = None if self.pseudo is None else self.pseudo[i]
            drawn = tables(lane.run, self.number, lane.block.feed, pseudo, first, steps, self.turns)
            self.source_table[:steps, i].copy_(drawn.source)
            self.target_table[:steps, i].copy_(drawn.target)
            self.step_key_table[:steps, :, i].copy_(drawn.step_keys)
            self.view_key_table[:steps, i].copy_(drawn.view_keys)

    def look(self, done: int, steps: int) -> list[Snapshot | NotFinite]:
        means = (self.sums / steps).T.tolist()
        sizes = torch.stack(
            [value.detach().flatten(1).norm(dim=1) for value in self.params.values()]
        ).sum(dim=0)
        sound = torch.isfinite(sizes + self.sums.sum(dim=0)).tolist()
        seen: list[Snapshot | NotFinite] = []
        for lane, values, fine in zip(self.lanes, means, sound, strict=True):
            losses = dict(zip(self.names, values, strict=True))
            ends = done % self.stage.round_steps == 0
            seen.append(
                Snapshot(
                    stage=self.number, step=done, losses=losses, round_ends=ends, _trained=lane
                )
                if fine
                else NotFinite(self.number, done, losses)
            )
        return seen

    # --- looking ---

    def shared_predictions(self, block: Block) -> Callable[[DomainTensor], Tensor]:
        """Logits of whole domains by all lanes of a block, computed together when the first of them
        asks."""
        kept = self.predictions
        clock = (int(self.clock), block.lanes.start)

        def predict(domain: DomainTensor) -> Tensor:
            key = (*clock, id(domain))
            if key not in kept:
                for old in [k for k in kept if k[0] != clock[0]]:
                    del kept[old]
                kept[key] = self.predict(block, domain)
            return kept[key]

        return predict

    def predict(self, block: Block, domain: DomainTensor) -> Tensor:
        """Logits of a whole domain by all lanes of a block. (lanes, n, c)"""
        params, buffers = (
            {n: v[block.lanes] for n, v in named.items()} for named in (self.params, self.buffers)
        )

        def predict(net: Net, x: Tensor) -> Tensor:
            with net.source_statistics() if domain is block.feed.source_val else nullcontext():
                return self.method.predict(net, x)

        def one(params: State, buffers: State, x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.call, inside(params, buffers), (predict, x))
            return logits

        self.call.eval()
        with (
            torch.no_grad(),
            arithmetic(self.precision, self.device),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"),
        ):
            logits = [
                vmap(one, in_dims=(0, 0, None))(params, buffers, domain.take(r)).float()
                for r in portions(domain, self.device, len(self.runs))
            ]
        self.call.train()
        return torch.cat(logits, dim=1)

    # --- saving ---

    def live(self) -> Checkpoint:
        named = {f"net.{n}": self.tensor(n).detach() for n in self.saved}
        named |= {f"optim.{n}": v for n, v in self.optimiser.tensors().items()}
        named["clock"] = self.clock
        if self.names:
            named["sums"] = self.sums
        return named

    def load(self, resumes: Sequence[Resume]) -> None:
        """Go on from the checkpoints of all lanes, which are of the same step."""
        self.keep(
            [
                {n[6:]: v for n, v in resume.tensors.items() if n.startswith("state.")}
                for resume in resumes
            ]
        )
        for lane, resume in zip(self.lanes, resumes, strict=True):
            saved = {name: value.to(self.device) for name, value in resume.tensors.items()}
            if resume.loss_names and not self.names:
                self.names = resume.loss_names
                self.sums = torch.zeros((len(self.names), len(self.runs)), device=self.device)
            if "pseudo" in saved:
                self.pseudo = [*(self.pseudo or []), saved["pseudo"]]
            for name, value in lane.tensors().items():
                value.copy_(saved[name])


@stopwatch.on("start-up")
def _begin(
    runs: Sequence[Run],
    training_datas: Sequence[TrainingData],
    device: torch.device,
    starts: Sequence[Checkpoint | None],
    resumes: Sequence[Resume] | None,
    graph: bool,
) -> Lanes:
    """Lanes that are ready to take their first step."""
    feeds: dict[int, Feed] = {}
    for training_data in training_datas:
        if id(training_data) not in feeds:
            feeds[id(training_data)] = Feed(training_data, device)
    nets = [
        run_net(run, training_data) for run, training_data in zip(runs, training_datas, strict=True)
    ]
    fresh = [{name: value.clone() for name, value in net.state_dict().items()} for net in nets]
    for net, own, start in zip(nets, fresh, starts, strict=True):
        if start is not None:
            net.load_state_dict(built_on(start, own))
    lanes = Lanes(runs, [feeds[id(training_data)] for training_data in training_datas], nets, graph)
    if resumes is not None:
        lanes.load(resumes)
    elif runs[0].plan[-1].restart:
        lanes.refresh(0)
        for lane, own in zip(lanes.lanes, fresh, strict=True):
            for name, value in lane.weights().items():
                value.copy_(own[name])
    return lanes


def fit_lanes(
    runs: Sequence[Run],
    training_datas: Sequence[TrainingData],
    device: torch.device,
    *,
    starts: Sequence[Checkpoint | None],
    resumes: Sequence[Resume] | None = None,
    graph: bool = True,
) -> Iterator[list[Snapshot | NotFinite]]:
    """Train the last stage of runs of equal `lane_shape` together: what `fit` does for one, a
    snapshot a lane.

    A lane whose numbers are no longer finite is reported as such and harms no other. Lanes with the
    same training data should be neighbours; all resume from the same step.
    """
    lanes = _begin(runs, training_datas, device, starts, resumes, graph)
    yield from lanes.train(resumes[0].step if resumes else 0)
