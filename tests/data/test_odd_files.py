"""Odd files and systems: one sentence, or they are read; no traceback."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command
from generated_trees import picture
from many_runs import make_runs
from own_files import cache, flat, tree  # noqa: F401 -- cache is a fixture
from safetensors.torch import save_file

import askew
from askew.adaptation import inputs
from askew.adaptation.inputs import _stream
from askew.adaptation.request import AdaptRequest
from askew.core.device import pick_device
from askew.core.errors import UserError
from askew.data import custom
from askew.data.array_files import read_array
from askew.data.benchmarks.image_trees import hash_order
from askew.data.paths import cache_folder
from askew.nets.starting_weights import load_weights
from askew.runs.claims import holder_of
from askew.runs.store import FAILURE, RunFolder


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_member_that_is_no_array_is_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "a.npz", **{"x" if name == "y" else "y": np.ones((3, 2))})
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr(f"{name}.npy", b"not an array")
    with pytest.raises(UserError, match="is no array"):
        read_array(tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        archive.writestr("x", b"not an array")
    with pytest.raises(UserError, match=r"The member x of .* is no array"):
        read_array(tmp_path / "b.npz")


def test_brackets_within_brackets_do_not_stop_status(cli: Command, tmp_path: Path) -> None:
    root = make_runs(tmp_path / "runs", 1, classes=2)
    (run,) = (path for path in root.iterdir() if path.is_dir())
    for name in ("run.json", "claim.1", FAILURE):
        (run / name).write_text("[" * 200_000)
    assert holder_of(run) is None
    assert RunFolder(run).failure() == "its reason cannot be read"
    (run / "done").unlink()
    assert cli("status", root).code == 0


def test_names_that_are_not_utf_8_are_put_in_order() -> None:
    names = ["cat/a.png", os.fsdecode(b"cat/\xff.png")]
    assert sorted(hash_order(names)) == sorted(names)


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("ASKEW_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(UserError, match="has no home folder") as told:
        cache_folder()
    assert "ASKEW_CACHE" in told.value.hint


@pytest.mark.parametrize("appears", [True, False])
def test_images_that_come_and_go_while_embedded_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appears: bool
) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")

    class Embedder:
        def open_listings(self, listings: list[Any]) -> Any:
            if appears:
                picture(target / "new.png")
            else:
                (target / "0.png").unlink(missing_ok=True)
            yield from ()
            return [custom.open_unread(one) for one in listings]

    monkeypatch.setattr(inputs, "picture_embedders", lambda *args: (Embedder(), Embedder()))
    work = _stream(AdaptRequest(source=source, target=target), tmp_path / "o", torch.device("cpu"))
    with pytest.raises(UserError, match="changed while they were embedded") as told:
        list(work)
    assert len(str(told.value)) < 400


def test_starting_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    save_file(
        {"weight": torch.full((2, 3), torch.nan), "bias": torch.zeros(2)},
        tmp_path / "w.safetensors",
    )
    with pytest.raises(UserError, match=r"The weights weight in .* hold NaN or infinity"):
        load_weights(torch.nn.Linear(3, 2), tmp_path / "w.safetensors", "linear")


X = np.zeros((6, 3), np.float32)
WRONG: dict[str, Callable[[Any], object]] = {
    "source": lambda v: askew.adapt(v, X),
    "target": lambda v: askew.adapt((X, [0, 1] * 3), v),
    "labels of the source": lambda v: askew.adapt((X, v), X),
    "image": lambda v: askew.embed(X, image=v),
    "labels": lambda v: askew.adapt((X, [0, 1] * 3), X, labels=v),
    "shares": lambda v: askew.adapt((X, [0, 1] * 3), X, target_shares=v),
    "out": lambda v: askew.adapt((X, [0, 1] * 3), X, out=v),
    "device": pick_device,
    "model": askew.load,
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize(
    "value",
    [5, 2.5, object, np.array("a"), SimpleNamespace(), np.zeros((0, 3)), {"a": None}, iter([1])],
)
def test_an_argument_of_the_wrong_type_is_refused(what: str, value: object) -> None:
    with pytest.raises(UserError):
        WRONG[what](value)
