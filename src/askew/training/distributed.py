"""One run on several processes, as torchrun starts them: the features are shared out, everything
else is not.

Every process sees the whole batch, takes its rows of it through the features, the large network,
and gathers what the others made of theirs. The losses are then those of one process, whatever they
compare across a batch; no method knows.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.overrides import TorchFunctionMode

from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.methods.base import ClosedForm
from askew.nets.layers import Crop, Dropout
from askew.nets.network import Net
from askew.nets.vmap.dense import Gradient
from askew.training.batches import DomainTensor, Feed
from askew.training.run import Run
from askew.training.snapshot import Checkpoint, Snapshot
from askew.training.trainer import Resume, Trainer, begin

PATIENCE = timedelta(days=1)
"""How long processes wait for the first, which may itself wait for a run that somebody else is at.
One that dies is noticed at once all the same, by torchrun."""

Find = Callable[[str], tuple[Run, TrainingData]]
"""The run with a key, and its training data."""


class Team:
    """The processes that train one run together. The first alone reads and writes run folders, and
    tells the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.acting = False

    def share(self, n: int, rank: int | None = None) -> slice:
        """A process's rows of n, this one's unless told: as even as they can be."""
        rank = self.rank if rank is None else rank
        return slice(n * rank // self.size, n * (rank + 1) // self.size)

    def sum(self, x: Tensor) -> Tensor:
        """Over all processes, in place."""
        dist.all_reduce(x)
        return x

    @contextlib.contextmanager
    def act(
        self, name: str, *args: Any, tensors: Mapping[str, Tensor] | None = None
    ) -> Iterator[None]:
        """What all processes do at the same time. The first announces it, unless it is part of
        something announced."""
        announced, self.acting = self.acting, True
        if self.rank == 0 and not announced:
            self.tell([name, *args], tensors or {})
        yield
        self.acting = (
            announced  # not so after an error: the others are still at it, and hear nothing
        )

    def tell(self, order: list[Any], tensors: Mapping[str, Tensor]) -> None:
        """An order, and tensors that it needs, to all others; in the form of our files, which run
        no code when read."""
        from safetensors.torch import save

        words = torch.frombuffer(bytearray(json.dumps(order).encode()), dtype=torch.uint8)
        named = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        message = torch.frombuffer(bytearray(save(named | {"order": words})), dtype=torch.uint8)
        dist.broadcast(torch.tensor([len(message)]), 0)
        dist.broadcast(message, 0)

    def hear(self) -> tuple[list[Any], Checkpoint]:
        """The same, on the other side."""
        from safetensors.torch import load

        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, 0)
        message = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(message, 0)
        tensors = load(message.numpy().tobytes())
        return json.loads(tensors.pop("order").numpy().tobytes()), tensors

    def part(self) -> None:
        """Let the others go. After an error in the middle of an act they cannot hear; then torchrun
        ends them."""
        if self.acting:
            return
        if self.rank == 0:
            with contextlib.suppress(RuntimeError):  # one of them has died
                self.tell(["end"], {})
        dist.destroy_process_group()


@contextlib.contextmanager
def together() -> Iterator[Team | None]:
    """The team that torchrun put this process into; None where it is by itself."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" not in os.environ or size == 1:
        yield None
        return
    team = Team(int(os.environ["RANK"]), size)
    # Orders go from host to host, numbers from GPU to GPU.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE
    )
    try:
        yield team
    finally:
        team.part()


def own_device(name: str) -> torch.device:
    """A GPU for each process of this machine, or the CPU for all."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"Under torchrun every process has a device of its own, found --device {name}.",
            "auto, cpu or cuda.",
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    gpus, processes = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    if processes > gpus:
        raise UserError(
            f"torchrun has started {processes} processes for {gpus} GPUs.",
            "--nproc-per-node, or askew's --device cpu.",
        )
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


# --- the features, shared out ---


def share_features(features: nn.Module, team: Team) -> None:
    """In training, take only this process's rows through the features, and hand out those of all,
    in order.

    All processes compute the same loss from them, so the gradient of the rows made here is all that
    they need.
    """
    alone: Callable[[Tensor], Tensor] = features.forward
    by_row = [layer for layer in features.modules() if isinstance(layer, Dropout | Crop)]

    def forward(x: Tensor) -> Tensor:
        if not features.training:
            return alone(x)
        rows = team.share(len(x))
        for layer in by_row:
            layer.share = (rows.start, rows.stop - rows.start)
        with _Norms(team, len(x)):
            own = alone(x[rows])
        every = own.new_zeros(len(x), *own.shape[1:])
        every[rows] = own.detach()
        team.sum(every)
        return torch.cat([every[: rows.start], own, every[rows.stop :]])

    features.forward = forward


class _Norms(TorchFunctionMode):
    """Batch norms, in whatever library's layers, over the rows of all processes.

    torch's SyncBatchNorm is for GPUs alone; this is one sum over processes each way, on any device.
    """

    def __init__(self, team: Team, rows: int) -> None:
        super().__init__()
        self.team, self.rows = team, rows
        self.sizes = [len(range(rows)[team.share(rows, rank)]) for rank in range(team.size)]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return (self.batch_norm if func is F.batch_norm else func)(*args, **(kwargs or {}))

    def batch_norm(  # noqa: PLR0913
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """(x − μ)/√(σ² + ε)·γ + β, with μ and σ² from each process's: μ = Σ_r s_r μ_r, σ² = Σ_r s_r
        (σ_r² + (μ_r − μ)²)

        s_r is the share of rows that process r has. (n, c, …) → (n, c, …)
        """
        if not training:
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        full = x.to(torch.promote_types(x.dtype, torch.float32))
        own = torch.stack(torch.var_mean(full, [d for d in range(x.dim()) if d != 1], correction=0))
        nothing = torch.zeros_like(own)
        each = torch.stack(
            [own if rank == self.team.rank else nothing for rank in range(self.team.size)]
        )
        # (processes, c) each
        variances, means = all_reduce(each).unbind(1)  # type: ignore[no-untyped-call]
        mean = sum(
            (size / self.rows * m for size, m in zip(self.sizes, means, strict=True)), nothing[0]
        )
        apart = variances + (means - mean).square()
        var = sum(
            (size / self.rows * v for size, v in zip(self.sizes, apart, strict=True)), nothing[0]
        )
        if running_mean is not None and running_var is not None:
            count = x.numel() // x.shape[1] // self.sizes[self.team.rank] * self.rows
            with torch.no_grad():
                running_mean.lerp_(mean, momentum)
                running_var.lerp_(
                    var * (count / (count - 1)), momentum
                )  # unbiased, as torch keeps it
        scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        along = (-1, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.view(along), x, scale.view(along)).to(x.dtype)


# --- training ---


class DistributedTrainer(Trainer):
    """One stage of a run on several processes. No graph is captured: a step waits for the others in
    its middle."""

    def __init__(self, team: Team, run: Run, number: int, feed: Feed, net: Net) -> None:
        super().__init__(run, number, feed, net, graph=False)
        self.team = team
        share_features(net["features"], team)

    def refresh(self, round: int) -> None:
        with self.team.act("refresh", round):
            super().refresh(round)

    def advance(self, first: int, steps: int) -> None:
        with self.team.act("advance", first, steps):
            super().advance(first, steps)

    def predict(self, domain: DomainTensor) -> Tensor:
        name = next(name for name, kept in vars(self.feed).items() if kept is domain)
        with self.team.act("predict", name):
            return self.team.sum(super().predict(domain))

    def portions(self, domain: DomainTensor) -> Sequence[Tensor]:
        return super().portions(domain)[self.team.rank :: self.team.size]

    def agreed(self, names: list[str], grads: Sequence[Gradient]) -> Sequence[Gradient]:
        """Of the features: the sum, since each process has the gradient of its rows. Of the rest,
        which all processes have alike: the first one's, so that no rounding on a GPU lets their
        weights drift apart."""
        there = {
            name: grad for name, grad in zip(names, grads, strict=True) if isinstance(grad, Tensor)
        }
        if not there:
            return grads
        counts = {name: self.team.rank == 0 or name.startswith("features.") for name in there}
        flat = torch.cat(
            [(g if counts[name] else torch.zeros_like(g)).flatten() for name, g in there.items()]
        )
        sums = self.team.sum(flat).split_with_sizes([g.numel() for g in there.values()])
        agreed = {name: s.view(g.shape) for (name, g), s in zip(there.items(), sums, strict=True)}
        return [agreed.get(name) for name in names]


def fit_together(
    team: Team,
    run: Run,
    training_data: TrainingData,
    device: torch.device,
    *,
    start: Checkpoint | None = None,
    resume: Resume | None = None,
) -> Iterator[Snapshot]:
    """`trainer.fit` in the first of several processes, while the others `serve`."""
    if isinstance(run.method, ClosedForm):
        raise UserError(
            f"The method {run.method.id} is computed at once, which several processes cannot "
            "share.",
            "start it without torchrun.",
        )
    if run.batch < team.size:
        raise UserError(
            f"{team.size} processes cannot share batches of {run.batch} images.",
            f"-t batch={team.size}, or more.",
        )
    resumed = [resume.step, resume.loss_names] if resume else []
    tensors = resume.tensors if resume else start
    with team.act("begin", run.key, device.type, *resumed, tensors=tensors):
        trainer = begin(
            run, training_data, device, start, resume, partial(DistributedTrainer, team)
        )
    yield from trainer.train(resume.step if resume else 0)


def serve(team: Team, find: Find) -> None:
    """Do as the first process says, until it lets us go."""
    trainer: Trainer | None = None
    while True:
        (what, *args), tensors = team.hear()
        if what == "end":
            return
        if what == "begin":
            key, device, *resumed = args
            run, training_data = find(key)
            start, resume = (
                (None, Resume(resumed[0], tensors, resumed[1]))
                if resumed
                else (tensors or None, None)
            )
            trainer = begin(
                run,
                training_data,
                own_device(device),
                start,
                resume,
                partial(DistributedTrainer, team),
            )
            continue
        assert trainer is not None
        match what:
            case "refresh":
                trainer.refresh(*args)
            case "advance":
                trainer.advance(*args)
            case "predict":
                trainer.predict(getattr(trainer.feed, *args))
