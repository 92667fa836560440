"""Domains in memory: the same data in every form that people have it in gives the same domain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_files import CLASSES, cache, flat, rows, tree  # noqa: F401
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from askew.core.errors import UserError
from askew.data.custom import CustomDomain, load_custom_data, read_domain
from askew.data.objects import as_domain

X = rows(6)
NAMES = ["cat", "dog", "owl", "cat", "dog", "owl"]
Y = np.array([0, 1, 2, 0, 1, 2])


class Pairs(Dataset[Any]):
    """A data set of torch's with names for its labels, as torchvision's have."""

    classes = CLASSES

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Any:
        return self.x[row], self.y[row]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, NAMES, strict=True))


def frame(**columns: Any) -> Any:
    return pytest.importorskip("pandas", reason="DataFrames are pandas'").DataFrame(columns)


def hugging_face(**columns: Any) -> Any:
    datasets = pytest.importorskip("datasets", reason="data sets of Hugging Face's library")
    return datasets.Dataset.from_dict(columns)


ROWS: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (X, NAMES),
    "tensors": lambda: (torch.from_numpy(X), torch.from_numpy(Y)),
    "pairs": lambda: list(zip(X, NAMES, strict=True)),
    "lists": lambda: (X.tolist(), NAMES),
    "frame": lambda: frame(**{f"f{i}": X[:, i] for i in range(5)}, label=NAMES),
    "dataset": lambda: Pairs(X, Y),
    "subset": lambda: Subset(Pairs(X, Y), range(6)),
    "stream": lambda: Stream(),
    "loader": lambda: DataLoader(Pairs(X, torch.from_numpy(Y)), batch_size=4),
    "hugging face": lambda: hugging_face(image=X.tolist(), label=NAMES),
}


@pytest.mark.parametrize("form", ROWS)
def test_rows_in_any_form_are_one_domain(form: str) -> None:
    domain = as_domain(ROWS[form](), "source")
    numbers = form == "tensors"
    assert np.asarray(domain.x) == pytest.approx(X)
    assert domain.labels == tuple(map(str, Y)) if numbers else tuple(NAMES)
    assert domain.names == tuple("012345")
    target = as_domain(ROWS[form](), "target")
    assert target.labels is None
    assert target.labels_ignored


def test_arrays_alone_are_a_target() -> None:
    assert not as_domain(X, "target").labels_ignored
    assert as_domain(TensorDataset(torch.from_numpy(X)), "target").shape == (5,)
    with pytest.raises(UserError, match="The source an array has no labels"):
        as_domain(X, "source")


def pictures(folder: Path) -> CustomDomain:
    return read_domain(tree(folder, n=2), "source")


PICTURES: dict[str, Callable[[Path, list[Path], list[str]], Any]] = {
    "paths": lambda folder, files, labels: ([str(file) for file in files], labels),
    "opened": lambda folder, files, labels: list(
        zip([Image.open(file) for file in files], labels, strict=True)
    ),
    "frame of paths": lambda folder, files, labels: frame(
        path=[str(file) for file in files], label=labels
    ),
    "dataset": lambda folder, files, labels: Pairs(
        [Image.open(f) for f in files], [CLASSES.index(y) for y in labels]
    ),
    "hugging face": lambda folder, files, labels: _imagefolder(files, labels),
}


def _imagefolder(files: list[Path], labels: list[str]) -> Any:
    datasets = pytest.importorskip("datasets", reason="data sets of Hugging Face's library")
    kinds = datasets.Features(
        {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=list(CLASSES))}
    )
    return datasets.Dataset.from_dict(
        {"photo": [str(file) for file in files], "kind": labels}, features=kinds
    )


@pytest.mark.parametrize("form", PICTURES)
def test_pictures_in_any_form_are_those_of_the_folder(form: str, tmp_path: Path) -> None:
    whole = pictures(tmp_path / "own")
    files, labels = [tmp_path / "own" / name for name in whole.names], list(whole.labels or ())
    given = PICTURES[form](tmp_path, files, labels)
    domain = as_domain(given, "source")
    assert (np.asarray(domain.x) == np.asarray(whole.x)).all()
    assert domain.labels == whole.labels
    target = flat(tmp_path / "there")
    one, other = load_custom_data(whole.path, target), load_custom_data(domain, target)
    assert one.task.origin == other.task.origin, "its runs are those of the folder"
    assert one.kind == other.kind == "images"


def test_columns_are_found_by_the_names_that_are_given(tmp_path: Path) -> None:
    files = [str(file) for file in sorted(tree(tmp_path / "own", n=1).rglob("*.png"))]
    data = frame(where=files, what=CLASSES, label=[0, 0, 0])
    assert as_domain(data, "source", image="where", label="what").labels == CLASSES
    with pytest.raises(UserError, match="There is no column 'whom'"):
        as_domain(data, "source", image="where", label="whom")


def test_floats_from_0_to_1_are_images_and_normalised_ones_are_refused() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), dtype=np.uint8)
    scaled = TensorDataset(torch.from_numpy(images).float() / 255)
    assert (np.asarray(as_domain(scaled, "target").x) == images).all()
    with pytest.raises(UserError, match="hold numbers from -1 to 1"):
        as_domain(TensorDataset(torch.from_numpy(images).float() / 127.5 - 1), "target")


class Damaged(Pairs):
    def __getitem__(self, row: int) -> Any:
        if row == 1:
            raise OSError("image file is truncated")
        return super().__getitem__(row)


def test_a_picture_that_cannot_be_read_is_named_or_left_out() -> None:
    data = Damaged(
        [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")], [0, 1, 2]
    )
    with pytest.raises(
        UserError,
        match="1 of the 3 pictures of a Damaged cannot be read: 1: image file is truncated",
    ):
        as_domain(data, "source")
    domain = as_domain(data, "source", skip_broken=True)
    assert domain.names == ("0", "2")
    assert domain.labels == ("cat", "owl")
    assert domain.broken == ("1: image file is truncated",)


def test_what_is_no_data_set_is_refused() -> None:
    splits = {"train": hugging_face(image=X.tolist(), label=NAMES)}
    for given, message in (
        (3, "A int is no data set"),
        ([], "is empty"),
        ((X, NAMES[:4]), "There are 6 images and 4 labels"),
        (splits, "The data set has the splits train"),
        ([np.zeros((3, 4, 4)), np.zeros((3, 5, 5))], "no arrays of one shape"),
        (["a.png", "a.png"], "names a.png twice"),
        (DataLoader(Pairs(X, Y), shuffle=True), "The target's DataLoader shuffles"),
    ):
        with pytest.raises(UserError, match=message):
            as_domain(given, "target")
