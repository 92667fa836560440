"""Batch statistics of a domain, for a network that is not trained (AdaBN)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

NORMS = "norms:"
"""Before a network's name, after CORNERS: it looks by its own batch statistics and by those of the
image's domain."""
STATISTICS = ("running_mean", "running_var")
"""What a batch norm remembers of what it saw."""


class TwoNorms(nn.Module):
    """The mean of a network's features under two sets of batch statistics: those it came with, and
    a domain's.

    A domain's statistics move its features to where another domain's are (AdaBN: Y. Li et al.,
    Revisiting batch normalization for practical domain adaptation, 2016), but they follow its label
    distribution, and lose what the network knew; the mean of both keeps some of either. Until
    `estimate` the domain's are those it came with.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body: Any = body
        self.kept_fast: Any = None
        """The body's `fast` under the statistics that are not in use."""
        for norm in batch_norms(body):
            for name in STATISTICS:
                norm.register_buffer(f"kept_{name}", getattr(norm, name).clone())

    def forward(self, x: Tensor) -> Tensor:
        by_domain = self.body(x)
        with self.kept():
            f: Tensor = (by_domain + self.body(x)) / 2
        return f

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Meanwhile the body has the statistics that it came with."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        self.body.fast, self.kept_fast = self.kept_fast, self.body.fast
        for norm in batch_norms(self.body):
            own = norm._buffers
            for name in STATISTICS:
                own[name], own[f"kept_{name}"] = own[f"kept_{name}"], own[name]

    def estimate(self, batches: Iterable[Tensor]) -> None:
        """Take the domain's statistics from batches of its images: the mean of what each layer sees
        in each batch."""
        norms = batch_norms(self.body)
        before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
        for norm in norms:
            norm.momentum = None  # a plain mean over the batches
            norm.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=norm.weight.device)
            norm.train()
        with torch.no_grad():
            for x in batches:
                self.body(x)
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
            norm.eval()

    @property
    def statistics(self) -> Tensor:
        """The domain's, one after another. (s,)"""
        return torch.cat(
            [getattr(norm, name) for norm in batch_norms(self.body) for name in STATISTICS]
        )

    def set_statistics(self, statistics: Tensor) -> None:
        buffers = [getattr(norm, name) for norm in batch_norms(self.body) for name in STATISTICS]
        for buffer, values in zip(
            buffers, torch.split(statistics, [len(b) for b in buffers]), strict=True
        ):
            buffer.copy_(values)


NORM_IMAGES = 256
"""Images that suffice to estimate a domain's statistics."""
_BATCH = 64


def in_batches(images: NDArray[Any]) -> Iterator[Tensor]:
    """Images in batches of about equal size, to estimate statistics from."""
    for part in np.array_split(images, -(-len(images) // _BATCH)):
        yield torch.from_numpy(np.ascontiguousarray(part))


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """The batch norms of a network that keep running statistics."""
    return [
        m for m in network.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
    ]


def domain_norms(network: nn.Module) -> TwoNorms | None:
    """The part of a network that has statistics of a domain, if any."""
    return next((module for module in network.modules() if isinstance(module, TwoNorms)), None)
