"""What a method is: a frozen dataclass whose fields are its hyper-parameters and whose `losses` are
minimised."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from askew.core import random
from askew.methods.losses import reverse_grad
from askew.nets.network import Net, build, new_head
from askew.nets.spec import NetworkSpec


class Batch(NamedTuple):
    """One step's images: source with labels, target with its row numbers; both as their first
    random view.

    >>> askew.Batch(torch.zeros(4, 8), torch.arange(4), torch.zeros(4, 8), torch.arange(4)).xt.shape
    torch.Size([4, 8])
    """

    xs: Tensor  # (b, c, h, w) uint8 or (b, d)
    ys: Tensor  # (b,)
    xt: Tensor  # (b, …)
    it: Tensor  # (b,) rows of the target, to look up what the last refresh computed for them
    source_views: tuple[Tensor, ...] = ()
    """As many as the method's `source_views` ask for, the first being `xs`."""
    target_views: tuple[Tensor, ...] = ()
    """Likewise of the target."""
    key: Tensor | None = None
    """A hash of (seed, step): what `askew.core.random.uniform` and `normal` draw a method's own
    numbers from. ()"""


State = Mapping[str, Tensor]
Losses = dict[str, Tensor]


class Outputs(Protocol):
    """The present network's outputs for all of the training data; each entry is computed when it is
    first read.

    >>> class Confident(askew.Method):
    ...     def refresh(self, outputs, round):
    ...         return {"confidence": outputs.target.softmax(dim=1).amax(dim=1)}
    """

    @property
    def target(self) -> Tensor:
        """Logits of every target image. (n_t, c)"""

    @property
    def source_val(self) -> Tensor:
        """Logits of the held-out source images. (n_v, c)"""

    @property
    def source_val_y(self) -> Tensor:
        """Their labels. (n_v,)"""

    @property
    def source_prior(self) -> Tensor:
        """Share of each class in the source batches, as the sampler delivers them. (c,)"""

    @property
    def answers(self) -> Tensor | None:
        """Probabilities that other networks gave the target's images, where the training data has
        some. (n_t, c)"""


@dataclass(frozen=True)
class Shape:
    """What a method's own parts have to fit.

    >>> askew.Shape(16, 3, lambda: torch.nn.Linear(16, 3)).new_head().out_features
    3
    """

    width: int
    """Of the features."""
    classes: int
    new_head: Callable[[], nn.Module]
    """Makes one more head like the network's."""


@dataclass(frozen=True)
class Phase:
    """One optimiser step within a step: which losses, and which parts of the network they train.

    >>> askew.Phase(COAL().losses, trains=("head",)).repeat
    1
    """

    losses: Callable[[Net, Batch, State, Tensor], Losses]
    trains: tuple[str, ...] | None = None
    """Names of the parts; None means all."""
    repeat: int = 1


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods. Three rules let one `losses` serve eager execution, CUDA graphs and many
    runs at once: no Python that depends on a tensor's value; fixed shapes (weigh, don't index); `t`
    and float hyper-parameters are only ever computed with.

    >>> COAL(alpha=0.3).alpha, COAL.id, COAL.head
    (0.3, 'coal', 'cosine')
    """

    id: ClassVar[str]
    revision: ClassVar[str] = "1"
    """Changed whenever the method's numbers change; part of a run's identity."""
    head: ClassVar[Literal["linear", "cosine"]] = "linear"
    """The head that the method was published with; a run may choose the other."""
    source_views: ClassVar[tuple[float, ...]] = (1.0,)
    """How many random views of each source image it needs, by their strength; 0 is the image as it
    is."""
    target_views: ClassVar[tuple[float, ...]] = (1.0,)
    """Likewise of each target image."""
    teacher: ClassVar[bool] = False
    """Whether `net["teacher"]`, an average of features and head over the steps, is kept, and
    predicts."""
    takes_answers: ClassVar[bool] = False
    """Whether it can begin with what other networks answered for the target's images."""
    sees_target: ClassVar[bool] = True
    """Whether it learns from target images at all."""
    restarts: ClassVar[bool] = False
    """Whether it trains from fresh weights: a finished source-only network only tells its first
    refresh what it saw."""

    calibrated: ClassVar[bool] = False
    """Whether its logits are calibrated already, by cross-validation on the source."""
    runner: ClassVar[str] = ""
    """The function that trains and scores in place of the usual loop, as `module:function`.

    It is called as `function(run, task, how)` and yields `askew.runs.execute.Progress`. It ends
    with `askew.runs.outcome.write_results(RunFolder(how.root / run.key), task, predictions)`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "id" not in cls.__dict__:
            cls.id = cls.__name__.lower()

    @property
    def compares_views(self) -> bool:
        """Whether it is about several views of one target image, so that little is left of it where
        views are off."""
        return len(self.target_views) > 1

    def teacher_memory(self) -> int:
        """How many steps the teacher averages over; 1: it is the student."""
        return 100

    def parts(self, shape: Shape) -> dict[str, nn.Module]:
        """Networks beyond features and head."""
        return {}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """Named terms, each a scalar; their sum is minimised. `t` is progress from 0 to 1."""
        raise TypeError(f"{type(self).__name__} defines no losses")

    def phases(self) -> tuple[Phase, ...]:
        return (Phase(self.losses),)

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        """What a round needs to know of all training data; read as `state[name]`, by target row as
        `[batch.it]`."""
        return {}

    def pseudo_labels(self, outputs: Outputs, round: int) -> Tensor:
        """The classes that target batches are balanced or even by in a round, where they are.
        (n_t,)"""
        return outputs.target.argmax(dim=-1)

    def training_prior(self, source_prior: Tensor, state: State) -> Tensor:
        """The class prior that the label loss sees: the sampler's, unless the method weighs
        classes. (c,) → (c,)"""
        return source_prior

    def predict(self, net: Net, x: Tensor) -> Tensor:
        """Logits. (n, …) → (n, c)"""
        logits: Tensor = net["teacher"](x) if self.teacher else net["head"](net["features"](x))
        return logits


class LinearFit(NamedTuple):
    """A head that was computed: W (f − centre of f's domain) + b."""

    weight: Tensor
    """(c, d)"""
    bias: Tensor | None = None
    """(c,)"""
    source_centre: Tensor | None = None
    """None: nothing is taken from the features. (d,)"""
    target_centre: Tensor | None = None
    """(d,)"""


@dataclass(frozen=True, kw_only=True)
class ClosedForm(Method):
    """Base of methods that compute their head from the features of all images at once, without
    gradients."""

    def fit(self, fs: Tensor, ys: Tensor, ft: Tensor, classes: int) -> LinearFit:
        """The head. (n_s, d), (n_s,), (n_t, d)

        One that takes `answers` too is given them where the training data has some. (n_t, c)
        """
        raise TypeError(f"{type(self).__name__} defines no fit")

    def training_prior(self, source_prior: Tensor, state: State) -> Tensor:
        """Uniform: a class's mean does not tell how many images it was made of."""
        return torch.full_like(source_prior, 1 / len(source_prior))


SECTIONS = ("Assumes", "Minimises", "Cites", "Use when")


def sections(method: type[Method]) -> dict[str, str]:
    """What a method's docstring says under each of SECTIONS, as it stands there; empty where it
    says nothing."""
    found: dict[str, list[str]] = {name: [] for name in SECTIONS}
    current: list[str] = []
    for line in inspect.cleandoc(method.__doc__ or "").splitlines():
        if name := next((name for name in SECTIONS if line.startswith(name)), None):
            current = found[name]
            current.append(line.removeprefix(name).removeprefix(":").strip())
        elif line.startswith(" "):
            current.append(line.removeprefix("    "))
        else:
            current = []
    return {name: "\n".join(lines).removeprefix(", ") for name, lines in found.items()}


def new_net(
    spec: NetworkSpec,
    method: Method,
    shape: tuple[int, ...],
    classes: int,
    seed: int = 0,
    parts_key: int = 0,
) -> Net:
    """The network that a method trains: features and head by the seed, the method's own parts by a
    key."""
    own, width = build(spec, shape, classes, seed)
    with random.seeded(parts_key):
        own |= method.parts(Shape(width, classes, lambda: new_head(spec, width, classes)))
    return Net(
        own, width, split_norm=spec.norm == "split" and method.sees_target, teacher=method.teacher
    )


def features_of(net: Net, xs: Tensor, *xt: Tensor) -> list[Tensor]:
    """Features of source images, then of each view of the target: in one pass, so that batch
    statistics are of both domains, or of each domain in its own where the net keeps them apart."""
    sizes = [len(x) for x in xt]
    if net.split_norm:
        fs, ft = net.features_apart(xs, torch.cat(xt))
        return [fs, *torch.split(ft, sizes)]
    return list(net["features"](torch.cat([xs, *xt])).split([len(xs), *sizes]))


def both(net: Net, batch: Batch) -> tuple[Tensor, Tensor]:
    """Features of both domains, by their first views.

    >>> parts = {"features": torch.nn.Flatten(), "head": torch.nn.Linear(8, 3)}
    >>> net = askew.Net(parts, width=8, split_norm=False)
    >>> batch = askew.Batch(torch.zeros(4, 8), torch.arange(4), torch.ones(5, 8), torch.arange(5))
    >>> [len(features) for features in askew.both(net, batch)]
    [4, 5]
    """
    fs, ft = features_of(net, batch.xs, batch.xt)
    return fs, ft


def verdicts(critic: nn.Module, fs: Tensor, ft: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """What a critic says of both domains, in one pass; the features' gradient is reversed with that
    strength."""
    ds, dt = critic(reverse_grad(torch.cat([fs, ft]), strength)).split([len(fs), len(ft)])
    return ds, dt
