"""What training hands out: snapshots of a run, its network's outputs, and how it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from askew.data.task import Sampler
from askew.training.batches import DomainTensor, Feed

Checkpoint = dict[str, Tensor]
Precision = Literal["float32", "tf32", "bf16"]
"""On a GPU: float32 as torch has it (convolutions in TF32, products not); products in TF32 too; or
bfloat16."""


class NotFinite(Exception):
    """A loss or a weight is NaN or infinite; training stopped before that was written anywhere."""

    def __init__(self, stage: int, step: int, losses: dict[str, float]) -> None:
        bad = [name for name, value in losses.items() if not torch.isfinite(torch.tensor(value))]
        self.what = f"the loss '{bad[0]}' is not finite" if bad else "a weight is not finite"
        self.step, self.stage, self.losses = step, stage, losses
        super().__init__(f"{self.what} after step {step} of stage {stage}")


class NetworkOutputs:
    """The present network's outputs for all of the training data; computed when first read."""

    def __init__(
        self, predict: Callable[[DomainTensor], Tensor], feed: Feed, sampler: Sampler
    ) -> None:
        self._predict, self._feed, self._sampler = predict, feed, sampler

    @cached_property
    def target(self) -> Tensor:
        return self._predict(self._feed.target)

    @cached_property
    def source_val(self) -> Tensor:
        return self._predict(self._feed.source_val)

    @cached_property
    def test(self) -> Tensor:
        return self._predict(self._feed.test)

    @property
    def source_val_y(self) -> Tensor:
        return self._feed.source_val_y

    @property
    def source_prior(self) -> Tensor:
        return self._feed.source_prior(self._sampler)

    @property
    def soft_labels(self) -> Tensor | None:
        return self._feed.soft_labels


class Trained(Protocol):
    """What one run's trainer knows of it at any step."""

    def outputs(self) -> NetworkOutputs: ...

    def training_prior(self) -> Tensor: ...

    def tensors(self) -> Checkpoint: ...

    def weights(self) -> Checkpoint: ...


@dataclass(kw_only=True)
class Snapshot:
    """Where training stands: at a round's end, or between two looks at the losses."""

    stage: int
    step: int
    losses: dict[str, float]
    """Means over the round so far."""
    round_ends: bool
    _trained: Trained = field(repr=False)

    @property
    def outputs(self) -> NetworkOutputs:
        return self._trained.outputs()

    @property
    def training_prior(self) -> Tensor:
        """The class prior that the label loss has seen. (c,)"""
        return self._trained.training_prior()

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here, bit for bit. The tensors are live: save them
        before going on."""
        return self._trained.tensors()

    def weights(self) -> Checkpoint:
        """The network alone."""
        return self._trained.weights()
