"""MNIST, USPS and SVHN from their files: torchvision's own downloads, or one .npz per part.

Looked for in `<data>/digits/<name>`, then where torchvision puts them when its root is `<data>` or
`<data>/digits`:

    train.npz, test.npz                         x: uint8 (n, h, w[, 3]), y: digits
    train-images-idx3-ubyte[.gz] …              MNIST, also in MNIST/raw
    usps.bz2, usps.t.bz2                        USPS in libsvm's form
    train_32x32.mat, test_32x32.mat             SVHN
"""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.data.domains import Labeled

Part = Literal["train", "test"]
Bytes = NDArray[np.uint8]

_NAMES = {
    ("mnist", "train"): ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("mnist", "test"): ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    ("usps", "train"): ("usps.bz2",),
    ("usps", "test"): ("usps.t.bz2",),
    ("svhn", "train"): ("train_32x32.mat",),
    ("svhn", "test"): ("test_32x32.mat",),
}


def places(data: Path, name: str) -> list[Path]:
    """The folders that a digits data set is looked for in."""
    own, roots = data / "digits" / name, (data / "digits", data)
    if name == "mnist":
        return [own, own / "raw", *(root / "MNIST" / "raw" for root in (own, *roots))]
    return [own, *roots]


def find_part(data: Path, name: str, part: Part) -> tuple[Path, ...]:
    """The files of a part; empty if it is not there."""
    for place in places(data, name):
        npz = place / f"{part}.npz"
        if npz.is_file() and place.name == name:
            return (npz,)
        found = tuple(path for file in _NAMES[name, part] if (path := _raw_or_packed(place / file)))
        if len(found) == len(_NAMES[name, part]):
            return found
    return ()


def _raw_or_packed(path: Path) -> Path | None:
    options = [path, path.with_name(f"{path.name}.gz")] if path.name.endswith("ubyte") else [path]
    return next((option for option in options if option.is_file()), None)


def read_part(data: Path, name: str, part: Part) -> Labeled:
    """Images and labels of one part; grey images come as one channel."""
    files = find_part(data, name, part)
    if not files or files[0].suffix == ".npz":
        return read_npz(files[0] if files else data / "digits" / name / f"{part}.npz", name)
    try:
        match name:
            case "mnist":
                x, y = _idx(files[0], 3), _idx(files[1], 1).astype(np.int64)
            case "usps":
                x, y = _libsvm(files[0])
            case _:
                x, y = _mat(files[0])
    except Exception as error:  # a damaged archive can raise almost anything
        raise UserError(
            f"{files[0]} cannot be read: {error}.",
            f"remove it and run `askew data fetch {name}` again.",
        ) from None
    return _checked(files[0], x, y)


def read_npz(path: Path, name: str = "") -> Labeled:
    """Images and labels of one part from our own form."""
    layout = "expected an .npz with x: uint8 images (n, h, w) or (n, h, w, 3) and y: digits."
    if not path.is_file():
        fetch = f"`askew data fetch {name}` gets it; or " if name else ""
        raise UserError(f"The data folder is incomplete: {path} is missing.", fetch + layout)
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            x, y = file["x"], file["y"]
    except Exception as error:  # a damaged archive can raise almost anything
        raise UserError(f"{path} cannot be read: {error}.", layout) from None
    if (
        y.dtype.kind not in "iu"
        or x.dtype != np.uint8
        or x.ndim not in (3, 4)
        or y.shape != x.shape[:1]
        or (x.ndim == 4 and x.shape[3] != 3)
    ):
        raise UserError(f"{path} holds x {x.dtype} {x.shape} and y {y.dtype} {y.shape}.", layout)
    return _checked(path, x, y)


def _checked(path: Path, x: Bytes, y: NDArray[np.integer]) -> Labeled:
    if len(x) != len(y):
        raise UserError(
            f"{path} holds {len(x)} images for {len(y)} labels.", "get the files again."
        )
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) <= 9:
        raise UserError(
            f"{path} holds labels from {y.min()} to {y.max()}.", "digits run from 0 to 9."
        )
    return Labeled(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2), y.astype(np.int64))


def _idx(path: Path, dimensions: int) -> Bytes:
    """An array of bytes in the form of MNIST: 0, 0, 8 (bytes), how many sizes, each in four bytes,
    then the values."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if content[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"it does not begin as an idx file of {dimensions} dimensions does")
    head = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:head], dtype=">u4").astype(int).tolist()
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def _lines(path: Path) -> Iterator[str]:
    with bz2.open(path, "rt", encoding="ascii") as file:
        yield from (line for line in file if line.strip())


def _libsvm(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """USPS: lines `label index:value …`, labels 1 … 10, values from -1 to 1 in 16 x 16.

    Values are rounded to the nearest byte; torchvision cuts them off, which takes a grey level from
    half of them.
    """
    images, labels = [], []
    for line in _lines(path):
        label, *pairs = line.split()
        values = np.zeros(256)
        for pair in pairs:
            index, _, value = pair.partition(":")
            values[int(index) - 1] = float(value)
        images.append(np.rint((values + 1) / 2 * 255).clip(0, 255).astype(np.uint8))
        labels.append(round(float(label)) - 1)
    return np.stack(images).reshape(-1, 16, 16), np.array(labels, dtype=np.int64)


def _mat(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """SVHN: X (32, 32, 3, n), and y in which 10 is the digit 0. MATLAB's version 5 holds arrays
    alone, no code."""
    from scipy.io import loadmat

    arrays = loadmat(path, variable_names=["X", "y"])
    x = arrays["X"]
    if x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(f"X is {x.dtype} {x.shape}")
    return x.transpose(3, 0, 1, 2), arrays["y"].astype(np.int64).ravel() % 10


def read_labels(data: Path, name: str, part: Part) -> NDArray[np.int64]:
    """The labels of a part, without its images where the files allow it."""
    files = find_part(data, name, part)
    try:
        if files and files[0].suffix == ".npz":
            with np.load(files[0], allow_pickle=False) as file:
                labels: NDArray[np.int64] = file["y"].astype(np.int64).ravel()
                return labels
        if files and name == "mnist":
            return _idx(files[1], 1).astype(np.int64)
        if files and name == "usps":
            return np.array(
                [round(float(line.split(maxsplit=1)[0])) - 1 for line in _lines(files[0])],
                dtype=np.int64,
            )
    except Exception as error:  # a damaged archive can raise almost anything
        raise UserError(f"{files[0]} cannot be read: {error}.", "get it again.") from None
    return read_part(data, name, part).y
