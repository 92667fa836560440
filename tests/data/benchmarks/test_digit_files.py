"""The digits are the same from torchvision's own files as from ours."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from askew.core.errors import UserError
from askew.data.benchmarks.digit_files import find_part, read_labels, read_part

RNG = np.random.default_rng(0)
Y = np.arange(30) % 10


def idx(x: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, x.ndim)) + np.array(x.shape, ">u4").tobytes() + x.astype(np.uint8).tobytes()
    )


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


MNIST = RNG.integers(0, 255, (30, 28, 28), dtype=np.uint8)
SVHN = RNG.integers(0, 255, (30, 32, 32, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "folder", ["digits/mnist", "MNIST/raw", "digits/MNIST/raw", "digits/mnist/MNIST/raw"]
)
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_read_from_its_own_files_packed_or_not(
    tmp_path: Path, folder: str, packed: bool
) -> None:
    for name, x in (("t10k-images-idx3-ubyte", MNIST), ("t10k-labels-idx1-ubyte", Y)):
        content = gzip.compress(idx(x)) if packed else idx(x)
        put(tmp_path / folder / (f"{name}.gz" if packed else name), content)
    found = read_part(tmp_path, "mnist", "test")
    assert (found.x == MNIST[:, None]).all()
    assert found.y.tolist() == Y.tolist() == read_labels(tmp_path, "mnist", "test").tolist()
    assert not find_part(tmp_path, "mnist", "train")


def libsvm(x: np.ndarray, y: np.ndarray) -> bytes:
    rows = (
        " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(row)) for row in x.reshape(len(x), -1)
    )
    return bz2.compress(
        "".join(f"{label + 1} {row} \n" for label, row in zip(y, rows, strict=True)).encode()
    )


@pytest.mark.parametrize("folder", ["digits/usps", "digits", "."])
def test_usps_is_read_from_libsvm_s_file_to_the_byte(tmp_path: Path, folder: str) -> None:
    grey = RNG.integers(0, 256, (30, 16, 16))
    values = (grey / 255 * 2 - 1).round(6)
    put(tmp_path / folder / "usps.bz2", libsvm(values, Y))
    found = read_part(tmp_path, "usps", "train")
    assert (found.x[:, 0] == grey).all()
    assert found.y.tolist() == Y.tolist() == read_labels(tmp_path, "usps", "train").tolist()


@pytest.mark.parametrize("folder", ["digits/svhn", "."])
def test_svhn_is_read_from_its_matlab_file_in_which_ten_is_zero(
    tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    labels = np.where(Y == 0, 10, Y).astype(np.uint8)[:, None]
    savemat(
        tmp_path / folder / "train_32x32.mat",
        {"X": SVHN.transpose(1, 2, 3, 0), "y": labels},
        do_compression=True,
    )
    found = read_part(tmp_path, "svhn", "train")
    assert (found.x == SVHN.transpose(0, 3, 1, 2)).all()
    assert found.y.tolist() == Y.tolist() == read_labels(tmp_path, "svhn", "train").tolist()


def test_our_own_form_goes_first(tmp_path: Path) -> None:
    put(tmp_path / "digits/usps/usps.bz2", b"")
    np.savez(tmp_path / "digits/usps/train.npz", x=MNIST[:, :16, :16], y=Y)
    assert len(read_part(tmp_path, "usps", "train")) == 30


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("usps", "usps.bz2", b"not packed"),
        ("usps", "usps.bz2", bz2.compress(b"<html>")),
        ("usps", "usps.bz2", bz2.compress(b"1 999:0.5\n")),
        ("usps", "usps.bz2", bz2.compress(b"17 1:0.5\n")),
        ("svhn", "train_32x32.mat", b"not a matrix"),
        ("mnist", "train-images-idx3-ubyte", idx(MNIST)[:-9]),
        ("mnist", "train-images-idx3-ubyte", idx(MNIST[:20])),
        ("mnist", "train-images-idx3-ubyte", b"\x80\x04pickled"),
        ("mnist", "train-images-idx3-ubyte.gz", b"not packed"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, file: str, content: bytes) -> None:
    put(tmp_path / "digits" / name / file, content)
    if name == "mnist":
        put(tmp_path / "digits/mnist/train-labels-idx1-ubyte", idx(Y))
    with pytest.raises(UserError, match=file):
        read_part(tmp_path, name, "train")


def test_what_is_missing_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"digits/usps/test\.npz is missing") as caught:
        read_part(tmp_path, "usps", "test")
    assert "askew data fetch usps" in caught.value.hint
