"""Batches of training data that do not fit the device: read on the host while the device is at the
step before."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from askew.training.batches import DomainTensor

EXPECTED = 2
"""Steps whose rows the disk is at while those of the one before are gathered."""


class Ahead:
    """Puts each step's rows of some domains where a captured step reads them, always at the same
    place on the device.

    A thread fills one of two pinned buffers while the other is being copied; torch lets go of
    Python's lock while it gathers, so neither waits for the other.
    """

    def __init__(self, domains: Sequence[DomainTensor], batch: int, device: torch.device) -> None:
        self.domains, self.cuda = domains, device.type == "cuda"
        self.device_buffers = [
            torch.empty((batch, *s.x.shape[1:]), dtype=s.x.dtype, device=device) for s in domains
        ]
        self.pinned_buffers = [
            [torch.empty(p.shape, dtype=p.dtype, pin_memory=self.cuda) for p in self.device_buffers]
            for _ in range(2)
        ]
        self.cleared: list[torch.cuda.Event | None] = [None, None]
        self.tables: Sequence[Tensor] = ()
        self.reading: Future[None] | None = None
        self.thread = ThreadPoolExecutor(1, "askew-ahead")

    def begin(self, tables: Sequence[Tensor]) -> None:
        """The rows of the coming steps, one table (steps, batch) per domain."""
        self.tables = [table.cpu() for table in tables]
        self.reading = self.thread.submit(self._read, 0)

    def put(self, step: int) -> None:
        """Bring the rows of a step, counted from `begin`, to the device, and begin to read the
        next."""
        assert self.reading is not None
        self.reading.result()
        for buffer, pinned in zip(self.device_buffers, self.pinned_buffers[step % 2], strict=True):
            buffer.copy_(pinned, non_blocking=True)
        if self.cuda:
            self.cleared[step % 2] = torch.cuda.current_stream().record_event()
        if step + 1 < len(self.tables[0]):
            self.reading = self.thread.submit(self._read, step + 1)

    def _read(self, step: int) -> None:
        for domain, table in zip(self.domains, self.tables, strict=True):
            domain.expect(
                table[step + EXPECTED if step else 0 : step + EXPECTED + 1]
            )  # each step's rows once
        copied = self.cleared[step % 2]
        if copied is not None:
            copied.synchronize()  # the device may still be reading what lies there
        for domain, table, pinned in zip(
            self.domains, self.tables, self.pinned_buffers[step % 2], strict=True
        ):
            torch.index_select(domain.x, 0, domain.places(table[step]), out=pinned)
