"""The digits benchmark: MNIST, USPS, SVHN and rendered digits, as in the paper, and the development tasks.

Real images are read from `<data>/digits/<mnist|usps|svhn>/<train|test>.npz` with x uint8 (n, h, w[, 3]) and y.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from askew.data import protocol
from askew.data.syn import syn
from askew.data.task import Counts, Pool, Shift, Task, make_task
from askew.data.views import Labeled
from askew.errors import UserError

CLASSES = tuple("0123456789")

MNIST_DROPPED = 5_000
"""The first images of MNIST's train part, left out: only then the rule gives the paper's 12,144."""

SYN_SIZE = 47_941
"""Rendered digits a class to draw from: the smallest with which the rule gives the paper's 107,005."""

SYN_DEVELOPMENT_SIZE = 4_659
"""The same for the development task, where the source is to be as large as SVHN's."""


@dataclass(frozen=True)
class Info:
    """What `askew tasks` says of a task."""

    source: str
    target: str
    network: str
    role: Literal["reported", "development"] = "reported"
    notes: tuple[str, ...] = ()
    draws_differ: bool = False
    """Whether draws but the reported 0 are for development: no real target is spent on it."""


_USPS = "USPS: the standard 7,291 / 2,007 split; the paper's 1,550 / 459 come from another, unpublished one"
_SYN = "SYN: our rendering of Ganin's recipe, not the original images"

TASKS = {
    "usps-mnist": Info("usps", "mnist", "digits-28", notes=(_USPS,)),
    "mnist-usps": Info("mnist", "usps", "digits-28", notes=(_USPS,)),
    "svhn-mnist": Info("svhn", "mnist", "digits-32"),
    "syn-mnist": Info("syn", "mnist", "digits-32", notes=(_SYN,)),
    "usps-uci": Info("usps", "uci", "digits-28", "development"),
    "uci-mnist": Info("uci", "mnist", "digits-28", "development"),
    "syn-usps": Info("syn", "usps", "digits-32", "development", (_SYN,)),
}


def data_folder(given: Path | None) -> Path:
    """The folder of real data: as given, or ASKEW_DATA."""
    text = str(given) if given else os.environ.get("ASKEW_DATA", "")
    if not text:
        raise UserError(
            "This task needs real images, and no data folder was given.", "use --data DIR or set ASKEW_DATA."
        )
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise UserError(f"The data folder {folder} does not exist.", "use --data DIR or set ASKEW_DATA.")
    return folder


def read_npz(path: Path) -> Labeled:
    """Images and labels of one part; grey images come as one channel."""
    layout = "expected an .npz with x: uint8 images (n, h, w) or (n, h, w, 3) and y: digits."
    if not path.is_file():
        raise UserError(f"The data folder is incomplete: {path} is missing.", layout)
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
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) <= 9:
        raise UserError(f"{path} holds labels from {y.min()} to {y.max()}.", "digits run from 0 to 9.")
    return Labeled(x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2), y.astype(np.int64))


def framed(x: NDArray[np.uint8], box: int, size: int) -> NDArray[np.uint8]:
    """Grey images (n, 1, h, w) resized to box x box (bilinear) and centred on black size x size."""
    from PIL import Image

    low = (size - box) // 2
    out = np.zeros((len(x), 1, size, size), dtype=np.uint8)
    for i, image in enumerate(x[:, 0]):
        resized = Image.fromarray(image).resize((box, box), Image.Resampling.BILINEAR)
        out[i, 0, low : low + box, low : low + box] = np.asarray(resized)
    return out


def shaped(images: Labeled, size: int, channels: int) -> Labeled:
    """Images padded with black to `size` and, where they are grey, repeated to `channels`."""
    x = images.x
    if x.shape[2] > size or x.shape[2] != x.shape[3]:
        found = f"{x.shape[2]} x {x.shape[3]}"
        raise UserError(f"Square images of at most {size} x {size} were expected, found {found}.", "resize them first.")
    low, high = (size - x.shape[2]) // 2, (size - x.shape[2] + 1) // 2
    x = np.pad(x, ((0, 0), (0, 0), (low, high), (low, high)))
    if x.shape[1] < channels:
        x = np.repeat(x, channels, axis=1)
    return Labeled(np.ascontiguousarray(x), images.y)


@lru_cache(maxsize=8)
def _real(name: str, folder: Path) -> tuple[Labeled, Labeled | None]:
    """A real domain's train and test part, digits as large as MNIST's in a 28 x 28 frame (SVHN: 32 x 32)."""
    base = folder / "digits" / name
    train = read_npz(base / "train.npz")
    # SVHN is only ever a source here, so its test part is not needed.
    test = read_npz(base / "test.npz") if name != "svhn" or (base / "test.npz").is_file() else None
    if name == "mnist":
        train = train.take(np.arange(MNIST_DROPPED, len(train)))
    if name == "usps":
        # USPS digits fill their 16 x 16 frame, MNIST's a 20 x 20 box: stretching the frame costs 30 points.
        assert test is not None
        train = Labeled(framed(train.x, 20, 28), train.y)
        test = Labeled(framed(test.x, 20, 28), test.y)
    return train, test


@lru_cache(maxsize=2)
def uci(box: int = 20, size: int = 28) -> Labeled:
    """scikit-learn's 1,797 handwritten digits of 8 x 8, `box` pixels tall in a black frame; by default as MNIST's."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    grey = np.round(x.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
    return Labeled(framed(grey, box, size), y.astype(np.int64))


def halves(images: Labeled, seed: int) -> tuple[Labeled, Labeled]:
    """Two halves with equal class mixes."""
    first = protocol.draw(images.y, images.sizes(len(CLASSES)) // 2, seed)
    return images.take(first), images.take(np.setdiff1d(np.arange(len(images)), first))


def syn_pool(size: int, seed: int) -> Pool:
    """Rendered digits, `size` a class for the rule to count with; just those are rendered that are wanted."""

    def images(wanted: Counts) -> Labeled:
        x, y = syn(wanted.tolist(), seed=seed)
        return Labeled(x.transpose(0, 3, 1, 2), y.astype(np.int64))

    return Pool(np.full(len(CLASSES), size), images)


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark under a label shift."""
    info = TASKS[name]
    size, channels = (28, 1) if info.network == "digits-28" else (32, 3)

    def part(images: Labeled) -> Labeled:
        return shaped(images, size, channels)

    def real(domain: str) -> tuple[Labeled, Labeled | None]:
        train, test = _real(domain, data_folder(data))
        return part(train), None if test is None else part(test)

    if info.source == "syn":
        source = syn_pool(SYN_SIZE if name == "syn-mnist" else SYN_DEVELOPMENT_SIZE, seed=draw)
    elif info.source == "uci":
        source = Pool.of(part(uci()), len(CLASSES))
    else:
        train, test = real(info.source)
        source = Pool.of(train, len(CLASSES), spare=test)
    if info.target == "uci":
        target, exam = halves(part(uci()), seed=draw)
    else:
        target, held = real(info.target)
        assert held is not None, "only SVHN may lack its test part, and it is never a target"
        exam = held
    task = make_task(
        f"digits/{name}", CLASSES, protocol.DIGITS_TAIL, shift, draw, source, Pool.of(target, len(CLASSES)), exam
    )
    return Task(task.name, task.study, task.exam, (*info.notes, *task.notes))
