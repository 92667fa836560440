"""Picked rows of a memory map are what the rows themselves would be, in subsets and in a feed."""

from __future__ import annotations

import numpy as np
import torch

from askew.data.domains import Labeled, RowSubset, Unlabeled
from askew.training.batches import DomainTensor

BASE = np.random.default_rng(0).integers(0, 255, (600, 1, 2, 2), dtype=np.uint8)
ROWS = np.random.default_rng(1).permutation(600)[:400].astype(np.int64)
Y = (ROWS % 3).astype(np.int64)
CPU = torch.device("cpu")


def test_picked_rows_look_like_an_array() -> None:
    x, real = RowSubset(BASE, ROWS), BASE[ROWS]
    assert (x.shape, x.dtype, x.ndim, x.nbytes, len(x)) == (
        real.shape,
        real.dtype,
        4,
        real.nbytes,
        400,
    )
    assert (np.asarray(x) == real).all()
    assert (x[3] == real[3]).all()
    assert (x[5:9] == real[5:9]).all()
    assert [row.tolist() for row in x] == real.tolist()
    assert np.asarray(x, dtype=np.float32).dtype == np.float32


def test_a_view_of_picked_rows_has_the_identity_of_the_rows_themselves() -> None:
    lazy, eager = Labeled(RowSubset(BASE, ROWS), Y), Labeled(BASE[ROWS], Y)
    assert lazy.fingerprint() == eager.fingerprint()
    assert Unlabeled(lazy.x).fingerprint() == Unlabeled(eager.x).fingerprint()
    index = np.array([7, 1, 300])
    assert lazy.take(index).fingerprint() == eager.take(index).fingerprint()
    assert lazy.followed_by(lazy).fingerprint() == eager.followed_by(eager).fingerprint()
    assert lazy.followed_by(eager).fingerprint() == eager.followed_by(eager).fingerprint()


def test_taking_and_joining_picked_rows_copies_nothing() -> None:
    view = Labeled(RowSubset(BASE, ROWS), Y)
    joined = view.take(np.arange(9)).followed_by(view)
    assert isinstance(joined.x, RowSubset)
    assert joined.x.base is BASE


def test_a_domain_on_a_memory_map_gives_the_images_of_one_in_memory() -> None:
    domain, plain = (
        DomainTensor(RowSubset(BASE, ROWS), CPU, resident=True),
        DomainTensor(BASE[ROWS], CPU, resident=True),
    )
    rows = torch.tensor([3, 399, 0, 3])
    assert domain.x.data_ptr() == BASE.ctypes.data, "the tensor is the map itself"
    assert len(domain) == len(plain) == 400
    assert torch.equal(domain.take(rows), plain.take(rows))
    assert torch.equal(DomainTensor.joined([domain, plain]).x, torch.cat([plain.x, plain.x]))
