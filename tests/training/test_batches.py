"""Batches: every row has its turn, every class its share, and a step's batch is a function of
(seed, step)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData
from askew.training.batches import (
    DomainTensor,
    Feed,
    balanced_rows,
    class_members,
    even_rows,
    natural_rows,
    taken,
)

CPU = torch.device("cpu")
steady = settings(derandomize=True, deadline=None, max_examples=80, database=None)
seeds = st.integers(0, 1000)
batches = st.integers(1, 24)
# Up to 9 classes, some of them absent.
labels = st.lists(st.integers(0, 8), min_size=1, max_size=60).map(torch.tensor)


def balanced(
    seed: int, y: Tensor, first: int, steps: int, batch: int, stream: str = "source"
) -> Tensor:
    return balanced_rows(seed, stream, class_members(y, 9), first, steps, batch, CPU)


def training_data() -> TrainingData:
    """Ten source rows of three classes and seven target rows, each row its own number."""
    x = np.arange(40, dtype=np.float32).reshape(-1, 1)
    y = np.array([0, 0, 0, 0, 0, 0, 1, 1, 2, 2])
    return TrainingData(
        source=Labeled(x[:10], y),
        source_val=Labeled(x[10:13], y[7:]),
        target=Unlabeled(x[20:27]),
        test_images=Unlabeled(x[30:35]),
        classes=tuple("abc"),
    )


# Natural


@steady
@given(seeds, st.integers(1, 50), batches, st.integers(1, 4))
def test_the_natural_sampler_visits_each_row_once_an_epoch(
    seed: int, n: int, batch: int, epochs: int
) -> None:
    steps = -(-epochs * n // batch)
    flat = natural_rows(seed, "source", n, 0, steps, batch, CPU).flatten()
    for epoch in range(epochs):
        assert flat[epoch * n : (epoch + 1) * n].sort().values.tolist() == list(range(n))


@steady
@given(seeds, st.integers(1, 50), batches, st.integers(0, 30), st.integers(1, 20))
def test_later_steps_of_the_natural_sampler_are_a_slice_of_the_whole(
    seed: int, n: int, batch: int, first: int, steps: int
) -> None:
    whole = natural_rows(seed, "source", n, 0, first + steps, batch, CPU)
    assert torch.equal(natural_rows(seed, "source", n, first, steps, batch, CPU), whole[first:])


# Balanced


@steady
@given(seeds, labels, batches, st.integers(0, 20), st.integers(1, 12))
def test_any_window_of_a_batch_holds_each_class_equally_often_give_or_take_one(
    seed: int, y: Tensor, batch: int, first: int, steps: int
) -> None:
    flat = y[balanced(seed, y, first, steps, batch).flatten()]
    classes = y.unique()
    often = (flat.unfold(0, batch, 1)[..., None] == classes).sum(dim=1)  # (windows, classes)
    assert often.min() >= batch // len(classes)
    assert often.max() <= -(-batch // len(classes))


@steady
@given(seeds, st.integers(5, 9), st.integers(1, 4), st.integers(0, 20))
def test_where_classes_outnumber_the_batch_consecutive_batches_share_them(
    seed: int, c: int, batch: int, first: int
) -> None:
    y = torch.arange(3 * c) % c
    steps = -(-c // batch)  # the fewest that can hold every class
    often = y[balanced(seed, y, first, steps, batch)].flatten().bincount(minlength=c)
    assert often.min() >= 1
    assert often.max() <= 2


@steady
@given(seeds, labels, batches, st.integers(0, 20), st.integers(1, 12))
def test_later_steps_of_the_balanced_sampler_are_a_slice_of_the_whole(
    seed: int, y: Tensor, batch: int, first: int, steps: int
) -> None:
    whole = balanced(seed, y, 0, first + steps, batch)
    assert torch.equal(balanced(seed, y, first, steps, batch), whole[first:])


@steady
@given(seeds, labels, batches)
def test_within_a_class_each_row_comes_once_before_any_comes_again(
    seed: int, y: Tensor, batch: int
) -> None:
    flat = balanced(seed, y, 0, 40, batch).flatten()
    for k in y.unique():
        members = torch.nonzero(y == k).flatten()
        turns = flat[y[flat] == k]
        passes = turns[: len(turns) // len(members) * len(members)].view(-1, len(members))
        assert torch.equal(passes.sort(dim=1).values, members.expand_as(passes))


def test_a_class_that_is_absent_is_skipped() -> None:
    y = torch.tensor([2, 2, 7, 7, 7])
    drawn = y[balanced(0, y, 0, 10, 4)]
    assert ((drawn == 2).sum(dim=1) == 2).all()
    assert ((drawn == 7).sum(dim=1) == 2).all()


# Even: drawn with replacement


def even(seed: int, y: Tensor, first: int, steps: int, batch: int, floor: float = 0.0) -> Tensor:
    return even_rows(seed, "target", y, 9, floor, first, steps, batch)


def assert_shares(drawn: Tensor, shares: Tensor) -> None:
    """Of what was drawn, every number has the share that it should have, give or take five standard
    deviations."""
    found = drawn.flatten().bincount(minlength=len(shares)) / drawn.numel()
    assert ((found - shares).abs() <= 5 * (shares * (1 - shares) / drawn.numel()).sqrt()).all(), (
        found
    )


def test_even_rows_hold_every_class_equally_often_and_every_row_of_a_class_too() -> None:
    y = torch.tensor([0, 3] * 10 + [0] * 30 + [5, 8, 5])
    rows = even(0, y, 0, 400, 50)
    assert_shares(y[rows], torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1]) / 4)
    assert_shares(rows, 1 / 4 / y.bincount()[y].float())


def test_a_class_below_the_floor_is_drawn_as_often_as_its_weight_says() -> None:
    sizes = torch.tensor([600, 370, 20, 10])
    y = torch.repeat_interleave(torch.arange(4), sizes)
    drawn = y[even(0, y, 0, 400, 50, floor=0.05)]
    shares = torch.tensor([600 / 600, 370 / 370, 20 / 50, 10 / 50])  # n_k/max(n_k, 0.05·1000)
    assert_shares(drawn, shares / shares.sum())


def test_under_a_floor_of_one_even_rows_are_drawn_as_they_come() -> None:
    y = torch.repeat_interleave(torch.arange(3), torch.tensor([60, 30, 10]))
    assert_shares(y[even(0, y, 0, 400, 50, floor=1.0)], torch.tensor([0.6, 0.3, 0.1]))


@steady
@given(seeds, labels, batches, st.integers(0, 20), st.integers(1, 12), st.sampled_from([0.0, 0.1]))
def test_later_steps_of_even_rows_are_a_slice_of_the_whole(
    seed: int, y: Tensor, batch: int, first: int, steps: int, floor: float
) -> None:
    whole = even(seed, y, 0, first + steps, batch, floor)
    assert torch.equal(even(seed, y, first, steps, batch, floor), whole[first:])
    assert whole.min() >= 0
    assert whole.max() < len(y)


def test_even_rows_of_successive_steps_and_of_other_seeds_are_unrelated() -> None:
    y = torch.zeros(1000, dtype=torch.int64)
    one, other = (
        even(0, y, 0, 2001, 1).flatten().double(),
        even(1, y, 0, 2001, 1).flatten().double(),
    )
    for a, b in ((one[:-1], one[1:]), (one, other)):
        assert torch.corrcoef(torch.stack([a, b]))[0, 1].abs() < 5 / len(a) ** 0.5


def test_a_feed_draws_an_even_target_where_a_floor_is_given() -> None:
    feed, pseudo = Feed(training_data(), CPU), torch.tensor([0, 0, 0, 0, 0, 1, 2])
    drawn = feed.target_rows(pseudo, 0, 0, 300, 10, 0.2)
    assert torch.equal(drawn, even_rows(0, "target", pseudo, 3, 0.2, 0, 300, 10))
    shares = torch.tensor([1, 1 / 1.4, 1 / 1.4])
    assert_shares(pseudo[drawn], shares / shares.sum())


# Chance


@steady
@given(st.lists(seeds, min_size=2, max_size=2, unique=True), st.booleans())
def test_another_seed_or_stream_draws_other_batches(pair: list[int], is_balanced: bool) -> None:
    y = torch.arange(60) % 9

    def table(seed: int, stream: str) -> Tensor:
        if is_balanced:
            return balanced(seed, y, 0, 5, 12, stream)
        return natural_rows(seed, stream, 60, 0, 5, 12, CPU)

    a, b = pair
    assert not torch.equal(table(a, "source"), table(b, "source"))
    assert not torch.equal(table(a, "source"), table(a, "target"))


def test_the_order_within_a_class_changes_with_the_seed() -> None:
    y = torch.zeros(9, dtype=torch.int64)
    assert len({tuple(balanced(seed, y, 0, 1, 9)[0].tolist()) for seed in range(20)}) > 15


def test_the_order_of_classes_changes_with_the_seed() -> None:
    y = torch.arange(45) % 9
    assert len({tuple(y[balanced(seed, y, 0, 1, 9)][0].tolist()) for seed in range(20)}) > 15


# On the device


@steady
@given(st.lists(st.integers(0, 9), max_size=20))
def test_a_shelf_that_is_not_resident_gives_the_same_rows(rows: list[int]) -> None:
    x = np.arange(10 * 12, dtype=np.uint8).reshape(10, 3, 2, 2)
    index = torch.tensor(rows, dtype=torch.int64)
    near, far = (DomainTensor(x, CPU, resident) for resident in (True, False))
    assert len(near) == len(far) == 10
    assert torch.equal(near.take(index), torch.from_numpy(x[rows]))
    assert torch.equal(far.take(index), near.take(index))


def test_a_shelf_on_the_host_is_asked_from_elsewhere() -> None:
    class Elsewhere:
        """Row numbers on a device that this machine need not have."""

        device = torch.device("meta")

        def cpu(self) -> Tensor:
            return torch.tensor([2, 0])

    rows: Any = Elsewhere()
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert DomainTensor(x, CPU, resident=False).take(rows).tolist() == [[4, 5], [0, 1]]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 5, 5), (8,)])
def test_images_of_many_rows_are_those_that_indexing_gives(
    shape: tuple[int, ...], device: str
) -> None:
    x = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (20, *shape), dtype=np.uint8)
    ).to(device)
    for rows in (
        torch.tensor([[3, 3, 19], [0, 1, 18]], device=device),
        torch.tensor([7], device=device),
    ):
        assert torch.equal(taken(x[2:], rows % 18), x[2:][rows % 18])


@pytest.mark.gpu
def test_a_shelf_gives_a_gpu_the_same_rows_from_the_host() -> None:
    gpu = torch.device("cuda")
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    index = torch.tensor([3, 3, 19, 0], device=gpu)
    for resident in (True, False):
        found = DomainTensor(x, gpu, resident).take(index)
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), torch.from_numpy(x)[index.cpu()])


@pytest.mark.gpu
def test_index_tables_are_the_same_on_a_gpu() -> None:
    gpu = torch.device("cuda")
    y = torch.arange(90) % 9
    members = class_members(y.to(gpu), 9)
    assert torch.equal(
        balanced_rows(3, "source", members, 5, 30, 16, gpu).cpu(), balanced(3, y, 5, 30, 16)
    )
    tables = [natural_rows(3, "source", 77, 5, 30, 16, device).cpu() for device in (CPU, gpu)]
    assert torch.equal(*tables)
    assert torch.equal(even(3, y.to(gpu), 5, 30, 16).cpu(), even(3, y, 5, 30, 16))


# Feeds


def test_a_feed_gives_source_rows_with_labels_and_target_rows_with_numbers() -> None:
    feed = Feed(training_data(), CPU)
    batch = feed.batch(torch.tensor([0, 6, 9]), torch.tensor([6, 0, 6]))
    assert batch.xs.tolist() == [[0], [6], [9]]
    assert batch.ys.tolist() == [0, 1, 2]
    assert batch.xt.tolist() == [[26], [20], [26]]
    assert batch.it.tolist() == [6, 0, 6]


def test_a_feed_samples_the_source_as_asked() -> None:
    feed = Feed(training_data(), CPU)
    natural, even = (
        feed.ys[feed.source_rows(kind, 0, 0, 10, 3)] for kind in ("natural", "balanced")
    )
    assert natural.flatten().bincount().tolist() == [18, 6, 6]
    assert torch.equal(even.sort(dim=1).values, torch.arange(3).expand(10, 3))


@steady
@given(seeds, st.lists(st.integers(0, 2), min_size=7, max_size=7).map(torch.tensor))
def test_target_batches_are_natural_or_balanced_over_pseudo_classes(
    seed: int, pseudo: Tensor
) -> None:
    feed = Feed(training_data(), CPU)
    assert torch.equal(
        feed.target_rows(None, seed, 0, 5, 7).sort(dim=1).values, torch.arange(7).expand(5, 7)
    )
    named = pseudo.unique()
    drawn = pseudo[feed.target_rows(pseudo, seed, 0, 5, len(named))]
    assert torch.equal(drawn.sort(dim=1).values, named.expand(5, -1))


@steady
@given(seeds, st.integers(1, 30), st.integers(1, 10))
def test_a_resumed_feed_goes_on_with_the_same_batches(seed: int, done: int, steps: int) -> None:
    assume(done + steps < 40)
    whole, resumed = Feed(training_data(), CPU), Feed(training_data(), CPU)
    for kind in ("natural", "balanced"):
        rows = whole.source_rows(kind, seed, 0, done + steps, 4)
        assert torch.equal(resumed.source_rows(kind, seed, done, steps, 4), rows[done:])
