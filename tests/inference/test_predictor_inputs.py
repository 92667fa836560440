"""A model predicts on all that `askew.adapt` takes as a target."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from small_models import images, predictor, rows
from torch.utils.data import DataLoader, Dataset, TensorDataset

from askew import Predictor, UserError
from askew.adaptation import api
from askew.cli import progress


@pytest.fixture(scope="module")
def of_rows() -> Predictor:
    return predictor()


X = rows()
Y = np.arange(len(X)) % 3


class Own(Dataset[Any]):
    """Items one by one, with labels."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return X[i], int(Y[i])


def array_file(folder: Path) -> Path:
    np.savez(folder / "x.npz", x=X, y=Y)
    return folder / "x.npz"


GIVEN: dict[str, Callable[[Path], Any]] = {
    "array and labels": lambda folder: (X, Y),
    "DataFrame": lambda folder: pd.DataFrame(X),
    "DataFrame with labels": lambda folder: pd.DataFrame(X).assign(label=Y),
    "Dataset": lambda folder: Own(),
    "TensorDataset": lambda folder: TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
    "DataLoader": lambda folder: DataLoader(Own(), batch_size=4),
    "array file": array_file,
    "its name": lambda folder: str(array_file(folder)),
    "pairs": lambda folder: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
}


@pytest.mark.parametrize("kind", GIVEN)
def test_rows_in_every_form_get_the_same_predictions(
    of_rows: Predictor, tmp_path: Path, kind: str
) -> None:
    np.testing.assert_allclose(
        of_rows.predict_proba(GIVEN[kind](tmp_path)), of_rows.predict_proba(X), atol=1e-6
    )


def test_pictures_in_every_form_get_the_same_predictions(tmp_path: Path) -> None:
    model = predictor("mini", (3, 32, 32))
    paths = [tmp_path / "p" / f"{i}.png" for i in range(4)]
    (tmp_path / "p").mkdir()
    for path, x in zip(paths, images(4, 32, 32, 3), strict=True):
        Image.fromarray(x).save(path)
    (tmp_path / "list.txt").write_text("\n".join(f"p/{i}.png" for i in range(4)))
    expected = model.predict_proba(paths)
    for given in (
        tmp_path / "p",
        str(tmp_path / "p"),
        tmp_path / "list.txt",
        pd.DataFrame({"path": list(map(str, paths)), "label": [0, 1, 0, 1]}),
    ):
        np.testing.assert_allclose(model.predict_proba(given), expected, atol=1e-6)


def test_places_that_are_not_there_are_refused(of_rows: Predictor) -> None:
    with pytest.raises(UserError, match=r"none\.npz does not exist"):
        of_rows.predict("none.npz")


def test_the_repr_of_a_model_is_one_line(of_rows: Predictor) -> None:
    assert repr(of_rows).startswith("<Predictor: 3 classes (")
    assert len(repr(of_rows)) < 120


@pytest.mark.parametrize(("terminal", "watch"), [(True, progress.watch), (False, api.silently)])
def test_progress_is_shown_by_default_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, watch: Callable[..., Any]
) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", stream)
    assert api.usual_watch() is watch
