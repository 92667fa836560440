"""Training data that stay on the host train as if they lay on the device."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from askew.data.domains import Labeled, RowSubset, Unlabeled
from askew.data.task import TrainingData
from askew.training.batches import DomainTensor, Feed
from askew.training.prefetch import Ahead
from askew.training.trainer import fit

CPU = torch.device("cpu")


def on_host(training_data: TrainingData) -> TrainingData:
    """The same rows, as picks of a larger array that is read when asked."""

    def picked(x: Any) -> Any:
        base = np.concatenate([np.full_like(x, np.nan), x[::-1]])
        return RowSubset(base, np.arange(len(base) - 1, len(x) - 1, -1))

    source, val = (
        Labeled(picked(part.x), part.y) for part in (training_data.source, training_data.source_val)
    )
    target, test = (
        Unlabeled(picked(part.x)) for part in (training_data.target, training_data.test_images)
    )
    return dataclasses.replace(
        training_data, source=source, source_val=val, target=target, test_images=test
    )


def test_it_trains_to_the_same_weights_and_says_the_same(
    training_data: TrainingData, make_run: Any
) -> None:
    run = make_run(
        rounds=2, round_steps=25, pretrain=0
    )  # more than a chunk, and a chunk that is not full
    away = on_host(training_data)
    assert Feed(training_data, CPU).resident
    assert not Feed(away, CPU).resident
    (*_, here), (*_, there) = fit(run, training_data, CPU), fit(run, away, CPU)
    assert all(torch.equal(value, there.weights()[name]) for name, value in here.weights().items())
    assert torch.equal(here.outputs.target, there.outputs.target)


def test_every_step_finds_its_rows_at_the_same_place(training_data: TrainingData) -> None:
    domain = DomainTensor(np.arange(30, dtype=np.float32)[:, None], CPU, resident=False)
    ahead = Ahead([domain, domain], 4, CPU)
    places = [place.data_ptr() for place in ahead.device_buffers]
    for seed in range(3):
        tables = torch.randint(0, 30, (2, 7, 4), generator=torch.Generator().manual_seed(seed))
        ahead.begin(list(tables))
        for step in range(7):
            ahead.put(step)
            for place, table in zip(ahead.device_buffers, tables, strict=True):
                assert place.flatten().tolist() == table[step].tolist()
    assert [place.data_ptr() for place in ahead.device_buffers] == places


def test_a_failure_to_read_is_not_lost() -> None:
    ahead = Ahead([DomainTensor(np.zeros((3, 1), dtype=np.float32), CPU, resident=False)], 2, CPU)
    ahead.begin([torch.tensor([[0, 99]])])
    with pytest.raises((IndexError, RuntimeError)):
        ahead.put(0)


class Told(mmap.mmap):
    """Mapped files that keep the ranges which the system was told of; one may refuse to be told."""

    ranges: list[tuple[int, int]]
    refuses = False

    def madvise(self, option: int, start: int, length: int) -> None:
        if self.refuses:
            raise OSError
        super().madvise(option, start, length)
        self.ranges.append((start, start + length))


@pytest.fixture
def streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DomainTensor:
    """Pictures in a mapped file, from behind to front: each as large as a page and a half."""
    monkeypatch.setattr(mmap, "mmap", Told)
    monkeypatch.setattr(Told, "ranges", [], raising=False)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 3, mmap.PAGESIZE // 2), dtype=np.uint8)
    np.save(tmp_path / "pictures.npy", pixels)
    rows = RowSubset(np.load(tmp_path / "pictures.npy", mmap_mode="c"), np.arange(40)[::-1].copy())
    return DomainTensor(rows, CPU, resident=False)


def read(domain: DomainTensor, tables: torch.Tensor) -> torch.Tensor:
    ahead = Ahead([domain], tables.shape[1], CPU)
    ahead.begin([tables])
    steps = []
    for step in range(len(tables)):
        ahead.put(step)
        steps.append(ahead.device_buffers[0].clone())
    return torch.stack(steps)


TABLES = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:30].view(6, 5)


@pytest.mark.skipif(not hasattr(mmap, "MADV_WILLNEED"), reason="the system cannot be told")
def test_the_system_is_told_once_of_every_row_of_a_mapped_file(streamed: DomainTensor) -> None:
    wanted = streamed.x.flip(0)
    assert torch.equal(read(streamed, TABLES), wanted[TABLES])
    assert len(Told.ranges) == TABLES.numel()
    head = Path(streamed.file.base.filename).stat().st_size - streamed.x.numel()
    size = streamed.x[0].numel()
    for (start, stop), row in zip(Told.ranges, TABLES.flatten().tolist(), strict=True):
        begin = head + (39 - row) * size
        assert 0 <= begin - start < mmap.PAGESIZE
        assert stop == begin + size


@pytest.mark.parametrize("why", ["there is no such call", "it fails"])
def test_rows_are_the_same_where_the_system_cannot_be_told(
    streamed: DomainTensor, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "it fails":
        monkeypatch.setattr(Told, "refuses", True)
    else:
        monkeypatch.delattr(mmap, "MADV_WILLNEED", raising=False)
    assert torch.equal(read(streamed, TABLES), streamed.x.flip(0)[TABLES])
    assert not Told.ranges
