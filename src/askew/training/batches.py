"""Batches from domains that live on the device, by index tables that are pure functions of (seed,
step)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from askew.core.device import wide
from askew.core.random import hash64, key, shuffled
from askew.data.domains import Rows, RowSubset
from askew.data.task import Sampler, TrainingData
from askew.methods.base import Batch, Method
from askew.nets.augment import Views, make_view
from askew.nets.triton import draws

RESIDENT_SHARE = 0.5
"""Of the device's free memory that training data may take; larger ones stay on the host."""

_BLOCK = 256  # images that go to the device at a time


class DomainTensor:
    """One domain's images: on the device when they fit, else on the host and fetched by the
    batch."""

    def __init__(self, x: Rows, device: torch.device, resident: bool) -> None:
        self.device = device
        self.picks: Tensor | None = None
        """Which rows of `x` are meant, where `x` is a memory-mapped file that stays one."""
        self.file: RowSubset | None = None
        """These rows of it."""
        if not isinstance(x, RowSubset):
            host = torch.from_numpy(np.ascontiguousarray(x))
            self.x = host.to(device) if resident else host
        elif resident and device.type != "cpu":
            self.x = torch.empty(x.shape, dtype=torch.uint8, device=device)
            for start in range(0, len(x), _BLOCK):  # the host need never hold it all
                self.x[start : start + _BLOCK] = torch.from_numpy(x[start : start + _BLOCK])
        else:
            self.x, self.picks, self.file = torch.from_numpy(x.base), torch.from_numpy(x.rows), x

    @classmethod
    def joined(cls, domains: Sequence[DomainTensor]) -> DomainTensor:
        """Several domains' images, one after another."""
        domain = cls.__new__(cls)
        domain.device = domains[0].device
        domain.picks = domain.file = None
        domain.x = torch.cat(
            [other.x if other.picks is None else other.x[other.picks] for other in domains]
        )
        return domain

    def __len__(self) -> int:
        return len(self.x if self.picks is None else self.picks)

    def take(self, rows: Tensor) -> Tensor:
        if self.picks is None and self.x.device == rows.device:
            return taken(self.x, rows)
        self.expect(rows)
        return self.x[self.places(rows)].to(self.device, non_blocking=True)

    def places(self, rows: Tensor) -> Tensor:
        """Where rows lie in `x`, which is on the host."""
        return rows.cpu() if self.picks is None else self.picks[rows.cpu()]

    def expect(self, rows: Tensor) -> None:
        """Rows that are read soon, of a file or not."""
        if self.file is not None:
            self.file.expect(rows.cpu().numpy())


def taken(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]; of images eight pixels at a time where that can be, since a GPU's threads move one
    number each."""
    if x.dtype != torch.uint8 or math.prod(x.shape[1:]) % 8:
        return x[rows]
    found = x.flatten(1).view(torch.int64).index_select(0, rows.flatten())
    return found.view(torch.uint8).view(*rows.shape, *x.shape[1:])


def class_members(y: Tensor, classes: int) -> list[Tensor]:
    """The rows of each class, in order."""
    return [torch.nonzero(y == k).flatten() for k in range(classes)]


def natural_rows(
    seed: int, stream: str, n: int, first: int, steps: int, batch: int, device: torch.device
) -> Tensor:
    """Index table (steps, batch) of steps first … of an endless pass over n rows, each pass in a
    new order."""
    return shuffled(key(stream, seed), n, first * batch, steps * batch, device).view(steps, batch)


def balanced_rows(
    seed: int,
    stream: str,
    members: Sequence[Tensor],
    first: int,
    steps: int,
    batch: int,
    device: torch.device,
) -> Tensor:
    """Index table (steps, batch) in which any window of positions holds every class equally often,
    plus or minus one.

    Position p belongs to class order[p mod c]; its image is the next of that class's own endless
    shuffle.
    """
    present = [k for k, rows in enumerate(members) if len(rows)]
    order = shuffled(
        key(stream, seed, "classes"), len(present), 0, len(present), torch.device("cpu")
    ).tolist()
    c, start, stop = len(present), first * batch, (first + steps) * batch
    flat = torch.empty(stop - start, dtype=torch.int64, device=device)
    for slot, k in enumerate(order):
        rows = members[present[k]]
        turn = max(0, -(-(start - slot) // c))  # the first turn of this class at or after `start`
        where = slot + turn * c - start
        count = len(range(where, stop - start, c))
        if count:
            picks = shuffled(key(stream, seed, present[k]), len(rows), turn, count, device)
            flat[where::c] = rows[picks]
    return flat.view(steps, batch)


def even_rows(  # noqa: PLR0913
    seed: int,
    stream: str,
    labels: Tensor,
    classes: int,
    floor: float,
    first: int,
    steps: int,
    batch: int,
) -> Tensor:
    """Index table (steps, batch), drawn with replacement: every class equally often, unless it is
    below the floor.

    An image of class k has the weight 1/max(n_k, floor·n).
    """
    sizes = torch.bincount(labels, minlength=classes).to(wide(labels.device))
    until = (1 / sizes.clamp(min=max(1.0, floor * len(labels))))[labels].cumsum(0)
    position = torch.arange(first * batch, (first + steps) * batch, device=labels.device)
    u = ((hash64(key(stream, seed, "even"), position) >> 11) & (2**53 - 1)).to(until.dtype) * 2**-53
    rows = torch.searchsorted(until, u * until[-1], right=True).clamp(max=len(labels) - 1)
    return rows.view(steps, batch)


def with_views(batch: Batch, method: Method, key: Tensor, how: Views, picture_side: int) -> Batch:
    """The batch as the random views that the method asks for, a function of `key`, which has one
    element per lane."""
    lead = key.dim()

    def views(x: Tensor, domain: str, strengths: Sequence[float]) -> Iterator[Tensor]:
        rows = x.flatten(0, lead)  # of all lanes at once
        for number, strength in enumerate(strengths):
            if how.views == "none":
                yield x
                continue
            keys = draws.bits(key, f"{domain} view {number}", x.shape[lead]).flatten()
            yield torch.unflatten(
                make_view(rows, keys, how, strength, picture_side), 0, x.shape[: lead + 1]
            )

    source = tuple(views(batch.xs, "source", method.source_views))
    target = tuple(views(batch.xt, "target", method.target_views if method.sees_target else (0.0,)))
    return batch._replace(
        xs=source[0], xt=target[0], source_views=source, target_views=target, key=key
    )


class Feed:
    """Training data on a device: its images, source labels, and the index tables of its batches."""

    def __init__(self, training_data: TrainingData, device: torch.device) -> None:
        parts = (
            training_data.source.x,
            training_data.target.x,
            training_data.source_val.x,
            training_data.test_images.x,
        )
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            resident = sum(x.nbytes for x in parts) < RESIDENT_SHARE * free
        else:
            resident = not any(isinstance(x, RowSubset) for x in parts)
        self.device = device
        self.resident = resident
        self.source, self.target, self.source_val, self.test = (
            DomainTensor(x, device, resident) for x in parts
        )
        self.ys = torch.from_numpy(training_data.source.y).to(device)
        self.source_val_y = torch.from_numpy(training_data.source_val.y).to(device)
        self.classes = len(training_data.classes)
        given = training_data.soft_labels
        self.soft_labels = None if given is None else torch.from_numpy(given).to(device)
        self._members = class_members(self.ys, self.classes)

    def source_rows(
        self, sampler: Sampler, seed: int, first: int, steps: int, batch: int
    ) -> Tensor:
        if sampler == "balanced":
            return balanced_rows(seed, "source", self._members, first, steps, batch, self.device)
        return natural_rows(seed, "source", len(self.source), first, steps, batch, self.device)

    def source_prior(self, sampler: Sampler) -> Tensor:
        """Share of each class in the source batches. (c,)"""
        counts = torch.bincount(self.ys, minlength=self.classes).float()
        delivered = (counts > 0).float() if sampler == "balanced" else counts
        return delivered / delivered.sum()

    def target_rows(
        self,
        pseudo: Tensor | None,
        seed: int,
        first: int,
        steps: int,
        batch: int,
        floor: float | None = None,
    ) -> Tensor:
        """Natural without pseudo-labels; with them balanced over the classes that they name, or
        even with a floor."""
        if pseudo is not None and floor is not None:
            return even_rows(seed, "target", pseudo, self.classes, floor, first, steps, batch)
        if pseudo is not None:
            members = class_members(pseudo, self.classes)
            return balanced_rows(seed, "target", members, first, steps, batch, self.device)
        return natural_rows(seed, "target", len(self.target), first, steps, batch, self.device)

    def batch(self, source_rows: Tensor, target_rows: Tensor) -> Batch:
        return Batch(
            self.source.take(source_rows),
            self.ys[source_rows],
            self.target.take(target_rows),
            target_rows,
        )
