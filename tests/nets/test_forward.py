"""One forward pass over any number of inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from askew.core.device import LANE_ROWS, PREDICT_NUMBERS, PREDICT_ROWS
from askew.data.domains import RowSubset
from askew.nets.forward import chunk_rows, forward_in_chunks

CPU = torch.device("cpu")
X = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 3, 10, 11])
def test_chunks_of_any_size_give_every_row_once_and_in_order(rows: int) -> None:
    assert (forward_in_chunks(lambda x: 2 * x, X, CPU, rows) == 2 * X).all()


def test_no_chunk_has_more_rows_than_asked_for() -> None:
    sizes: list[int] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x

    forward_in_chunks(forward, X, CPU, 4)
    assert sizes == [4, 4, 2]


def test_rows_that_are_read_only_or_picked_from_an_array_pass_without_a_warning() -> None:
    fixed = X.copy()
    fixed.flags.writeable = False
    assert (forward_in_chunks(nn.Identity(), fixed, CPU) == X).all()
    assert (forward_in_chunks(nn.Identity(), RowSubset(fixed, np.array([7, 2])), CPU) == X[[7, 2]]).all()


def test_a_chunk_is_bounded_by_rows_by_numbers_and_by_lanes() -> None:
    assert chunk_rows((4,)) == PREDICT_ROWS
    assert chunk_rows((3, 224, 224)) == PREDICT_NUMBERS // (3 * 224 * 224)
    assert chunk_rows((PREDICT_NUMBERS,)) == 16
    assert chunk_rows((4,), lanes=8) == LANE_ROWS // 8
