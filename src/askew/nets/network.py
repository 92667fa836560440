"""Networks: features (uint8 images or float rows in, one vector out) and heads (vector in, logits
out)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew.core import random
from askew.core.errors import UserError
from askew.nets.adabn import SOURCE, STATISTICS, with_statistics
from askew.nets.backbones import build_backbone
from askew.nets.heads import CosineHead, LinearHead
from askew.nets.layers import Centre, Crop, Dropout, Linear
from askew.nets.small import OWN
from askew.nets.spec import ON_BACKBONE, NetworkSpec, unknown_layers

TEACHER_LAYERS = 500
"""Added to the numbers of a teacher's dropout layers, which key their masks."""


class Teacher(nn.Module):
    """A copy of features and head that no gradient trains: its weights are buffers, averaged over
    the steps."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = copy.deepcopy(features), copy.deepcopy(head)
        for module in self.modules():
            for name, value in list(module._parameters.items()):
                del module._parameters[name]
                module.register_buffer(name, None if value is None else value.detach().clone())
            if isinstance(module, Dropout):
                module.layer += TEACHER_LAYERS  # a mask of its own in every step

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


class Net(nn.ModuleDict):
    """`net["features"]`, `net["head"]` and whatever parts a method adds, each by its name.

    With `split_norm`, batch norms keep running statistics of each domain: the target's, which are
    the ordinary ones, and the source's, which are in use within `source_statistics`.

    >>> parts = {"features": torch.nn.Flatten(), "head": torch.nn.Linear(8, 3)}
    >>> net = askew.methods.Net(parts, width=8, split_norm=False)
    >>> net["head"](net["features"](torch.zeros(2, 2, 4))).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, parts: Mapping[str, nn.Module], width: int, split_norm: bool, teacher: bool = False
    ) -> None:
        super().__init__(dict(parts))
        self.width = width
        self.split_norm = split_norm
        self._step_key = torch.zeros((), dtype=torch.int64)
        self._norms = (
            [m for m in self["features"].modules() if isinstance(m, _BatchNorm)]
            if split_norm
            else []
        )
        for norm in self._norms:
            for name in STATISTICS:
                norm.register_buffer(f"{SOURCE}{name}", getattr(norm, name).clone())
        if teacher:
            self["teacher"] = Teacher(self["features"], self["head"])
            self._norms += (
                [m for m in self["teacher"].modules() if isinstance(m, _BatchNorm)]
                if split_norm
                else []
            )

    def of_domain(self, domain: Literal["source", "target"]) -> Net:
        """Return a view of the network that predicts with a domain's statistics, in any thread."""
        return with_statistics(self, SOURCE) if domain == "source" else self

    @contextmanager
    def source_statistics(self) -> Iterator[None]:
        """Meanwhile batch norms use, and in training move, the source's running statistics, if they
        keep them apart. For training, in one thread alone; to predict, use `of_domain`."""
        self._swap_statistics()
        try:
            yield
        finally:
            self._swap_statistics()

    def features_apart(self, xs: Tensor, xt: Tensor) -> tuple[Tensor, Tensor]:
        """Features of both domains, each by its own statistics; row i of both gets the same dropout
        mask, which couples nothing that is learnt from.

        In lanes layer by layer, so that dense layers see both at once: to read their weights takes
        longer than all else.
        """
        features = self["features"]
        layers = list(features) if isinstance(features, nn.Sequential) else []
        in_lanes = any(getattr(layer, "in_lanes", False) for layer in layers)
        for layer in layers if in_lanes else [features]:
            if in_lanes and isinstance(layer, Linear):
                xs, xt = torch.split(layer(torch.cat([xs, xt])), [len(xs), len(xt)])
                continue
            with self.source_statistics():
                xs = layer(xs)
            xt = layer(xt)
        return xs, xt

    def _swap_statistics(self) -> None:
        for norm in self._norms:
            own = norm._buffers
            for name in STATISTICS:
                own[name], own[f"{SOURCE}{name}"] = own[f"{SOURCE}{name}"], own[name]

    def averaged(self) -> list[tuple[str, str]]:
        """What the teacher averages: (its tensor's name, the student's)."""
        weights = {name for name, _ in self.named_parameters()}
        mine = [name for name, _ in self.named_buffers() if name.startswith("teacher.")]
        pairs = [(name, name.removeprefix("teacher.")) for name in mine]
        return [(own, its) for own, its in pairs if its in weights or ".source_running_" in its]

    def copied(self) -> list[tuple[str, str]]:
        """Which statistics the teacher takes from the student as they are: none where it keeps the
        target's own."""
        if self.split_norm:
            return []
        mine = [
            name
            for name, _ in self.named_buffers()
            if name.startswith("teacher.") and ".running_" in name
        ]
        return [(name, name.removeprefix("teacher.")) for name in mine]

    def set_head(
        self,
        weight: Tensor,
        bias: Tensor | None,
        source_centre: Tensor | None,
        target_centre: Tensor | None,
    ) -> None:
        """Take a head W (f − centre) + b of features f as they are now: by a centre of each domain
        where features are centred at the end, else by the target's. (c, d), (c,), (d,), (d,)"""
        head: Any = self["head"]
        last = list(self["features"].modules())[-1]
        if target_centre is not None and source_centre is not None:
            if isinstance(last, Centre):
                last.move(source_centre, target_centre)
            else:
                bias = (0 if bias is None else bias) - weight @ target_centre
        head.set_weight(weight, bias)

    def share_step_key(self) -> None:
        """Give all dropouts and crops one clock on the device they are on, so that setting it is
        one copy."""
        self._step_key = torch.zeros((), dtype=torch.int64, device=next(self.parameters()).device)
        for module in self.modules():
            if isinstance(module, Dropout | Crop):
                module.step_key = self._step_key

    def set_step_key(self, step_key: Tensor) -> None:
        """Tell every dropout and crop the key of the step, without leaving the device."""
        self._step_key.copy_(step_key)


@functools.cache
def check(spec: NetworkSpec, shape: tuple[int, ...]) -> None:
    """UserError if there is no such network, or it takes no such inputs or weights. Costs nothing:
    none are made."""
    if spec.norm == "kept" and spec.weights == "none":
        raise UserError(
            f"The network {spec.name} starts from nothing, so it has no statistics to keep.",
            "-t norm=joint or split, or starting weights with -t weights=….",
        )
    with torch.device("meta"):
        build(spec.without_weights() if spec.weights == "hub" else spec, shape, 2, 0)


@functools.cache
def fetch_weights(spec: NetworkSpec, shape: tuple[int, ...]) -> None:
    """Download published weights that a network starts from, unless they are here; UserError if
    they cannot be had."""
    if spec.weights == "hub":
        build(spec, shape, 2, 0)


def predicting_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the plain network that predicts the same: those of the teacher, where there is
    one."""
    mine = {
        name.removeprefix("teacher."): value
        for name, value in weights.items()
        if name.startswith("teacher.")
    }
    return {
        name: mine.get(name, value)
        for name, value in weights.items()
        if not name.startswith("teacher.")
    }


def keeps_source_statistics(weights: Iterable[str]) -> bool:
    """Whether a network with tensors of these names has batch statistics of each domain."""
    return any(".source_running_" in name for name in weights)


def with_source_statistics(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a network with statistics of both domains together the same for each."""
    own = dict(weights)
    for name, value in weights.items():
        stem, _, leaf = name.rpartition(".")
        if leaf in STATISTICS:
            own.setdefault(f"{stem}.{SOURCE}{leaf}", value)
    return own


def new_head(spec: NetworkSpec, width: int, classes: int) -> nn.Module:
    """A head as the spec names it, with fresh weights."""
    return (
        CosineHead(width, classes, spec.temperature)
        if spec.head == "cosine"
        else LinearHead(width, classes)
    )


def build_features(spec: NetworkSpec, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Build a backbone, layers, or layers on a backbone, and tell the width of its features."""
    if spec.embedding is None:
        if spec.layers not in OWN:
            known = f"own networks: {', '.join(OWN)}."
            raise UserError(f"There is no network '{spec.layers[:99]}'.", known)
        return OWN[spec.layers](shape)
    if spec.layers not in ("", *ON_BACKBONE):
        raise unknown_layers(spec.name)
    below, width = build_backbone(spec.embedding, shape, spec.norm == "kept")
    if not spec.layers:
        return below, width
    above, width = OWN[spec.layers]((width,))
    return nn.Sequential(below, above), width


def build(
    spec: NetworkSpec, shape: tuple[int, ...], classes: int, seed: int
) -> tuple[dict[str, nn.Module], int]:
    """Features and head with weights drawn from the seed, and the width between them."""
    with random.seeded(random.key("net", seed)):
        features, width = build_features(spec, shape)
        if (
            not spec.last_dropout
            and isinstance(features, nn.Sequential)
            and isinstance(features[-1], Dropout)
        ):
            features = features[:-1]
        head = new_head(spec, width, classes)
    return {"features": features, "head": head}, width
