"""Batch statistics of a domain, for a network that is not trained (AdaBN)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

STATISTICS = ("running_mean", "running_var")
"""The running statistics of a batch norm."""
ORIGINAL, SOURCE = "original_", "source_"
"""Prefixes of a second set of statistics in a batch norm: those of the pre-training, and those of
the source where `running_mean` is the target's."""

Network = TypeVar("Network", bound=nn.Module)


def with_statistics(network: Network, prefix: str) -> Network:
    """Return a view of a network whose batch norms use another set of running statistics.

    The view shares all tensors with the network and leaves it unchanged, so several threads can
    predict with different statistics at once. Modules without such statistics are shared too.
    """
    return _view(network, prefix, {})


def _view(module: Network, prefix: str, seen: dict[nn.Module, nn.Module]) -> Network:
    if module in seen:
        return cast(Network, seen[module])
    children = {
        name: None if child is None else _view(child, prefix, seen)
        for name, child in module._modules.items()
    }
    own = {
        name: module._buffers[f"{prefix}{name}"]
        for name in STATISTICS
        if f"{prefix}{name}" in module._buffers
    }
    view = module
    if own or any(child is not module._modules[name] for name, child in children.items()):
        view = object.__new__(type(module))
        view.__dict__.update(
            {name: _bound_to(view, module, value) for name, value in vars(module).items()}
        )
        view.__dict__["_modules"] = children
        view.__dict__["_buffers"] = module._buffers | own
    seen[module] = view
    return view


def _bound_to(view: nn.Module, module: nn.Module, value: Any) -> Any:
    """Bind a method that a module holds as an attribute to its view."""
    if isinstance(value, MethodType) and value.__self__ is module:
        return MethodType(value.__func__, view)
    return value


class DomainNorms(nn.Module):
    """A network's features under batch statistics of a domain, or the mean of those and of the
    features under the original statistics.

    A domain's statistics move its features to where another domain's are (AdaBN: Y. Li et al.,
    Revisiting batch normalization for practical domain adaptation, 2016), but they follow its label
    distribution, and lose what the network knew; the mean of both keeps some of either. Until
    `estimate` the domain's are the original ones. (n, k, h, w) → (n, d)
    """

    def __init__(self, body: nn.Module, both: bool = True) -> None:
        """`body` is a `Backbone`, which takes `original` too."""
        super().__init__()
        self.body: Any = body
        self.both = both
        for norm in batch_norms(body) if both else ():
            for name in STATISTICS:
                norm.register_buffer(f"{ORIGINAL}{name}", getattr(norm, name).clone())

    def forward(self, x: Tensor) -> Tensor:
        f = self.by_domain(x)
        return (f + self.by_original(x)) / 2 if self.both else f

    def by_domain(self, x: Tensor) -> Tensor:
        """Features under the domain's statistics."""
        f: Tensor = self.body(x)
        return f

    def by_original(self, x: Tensor) -> Tensor:
        """Features under the statistics of the pre-training."""
        f: Tensor = self.body(x, original=True)
        return f

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


def domain_norms(network: nn.Module) -> DomainNorms | None:
    """The part of a network that has statistics of a domain, if any."""
    return next((module for module in network.modules() if isinstance(module, DomainNorms)), None)
