"""The programs in benchmarks/ can be started, and its grids name options and tasks that exist."""

from __future__ import annotations

import importlib
import itertools
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from toy_data import wide_task

from askew.core.options import checked
from askew.data.benchmarks import task_infos
from askew.methods import make_method
from askew.nets.embedding import Embedding
from askew.runs.config import RunRequest, Training
from askew.runs.grid import read_grid

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAMS = sorted(p for p in FOLDER.rglob("*.py") if "__main__" in p.read_text())
GRIDS = sorted((FOLDER / "grids").rglob("*.toml"))
FROZEN = ("first", "schedule", "length", "final")
"""Sweeps that results/development reports: they name every setting, whatever the committed ones
become."""
DEVELOPMENT = [grid for grid in GRIDS if grid.parent.name == "development"]


def test_there_are_programs_and_grids() -> None:
    assert {"drawings.py", "glyphs.py", "speed.py", "lane_conv.py"} <= {p.name for p in PROGRAMS}
    assert set(FROZEN) <= {p.stem for p in DEVELOPMENT}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_a_program_starts_and_explains_itself(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if program.name == "deep_conv.py":
        pytest.importorskip("triton", reason="Triton is missing")
    monkeypatch.syspath_prepend(program.parent)
    monkeypatch.setattr(sys, "argv", [program.name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    assert end.value.code == 0
    assert "usage: " in capsys.readouterr().out


@pytest.mark.parametrize("path", GRIDS, ids=lambda p: p.stem)
def test_every_run_of_a_grid_has_options_that_exist(path: Path) -> None:
    for _, request in read_grid(path).requests(RunRequest(task="", method="", seed=0)):
        make_method(request.method, request.params)
        checked(Training, request.training, "training")


@pytest.mark.parametrize("path", DEVELOPMENT, ids=lambda p: p.stem)
def test_a_development_grid_names_development_tasks_alone(path: Path) -> None:
    tasks = {task for variant in read_grid(path).variants for task in variant.tasks}
    assert {task_infos()[task].role for task in tasks} == {"development"}


@pytest.mark.parametrize("name", FROZEN)
def test_a_reported_sweep_names_every_setting_that_it_was_run_with(name: str) -> None:
    for variant in read_grid(FOLDER / "grids" / "development" / f"{name}.toml").variants:
        assert {"rounds", "schedule", "temperature", "precision"} <= variant.train.keys()
        if "coal" in variant.methods:
            assert {"alpha", "k0", "k_step", "k_max"} <= variant.params.keys(), variant.name


def test_embeddings_of_domains_are_files_that_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER / "studies")
    own_rows = importlib.import_module("own_rows")
    assert len(own_rows.PAIRS["development"]) == 8
    assert not own_rows.REPORTED & set(own_rows.PAIRS["development"])
    rng = np.random.default_rng(0)
    for domain, kind in itertools.product(("cartoon", "sketch"), ("cat", "dog")):
        (tmp_path / "pacs" / domain / kind).mkdir(parents=True)
        for i in range(6):
            picture = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            picture.save(tmp_path / "pacs" / domain / kind / f"{i}.png")
    embedding = Embedding(backbone="resnet18", statistics="both")
    place, device = (tmp_path / "pacs", tmp_path / "rows"), torch.device("cpu")
    own_rows.embed(*place, embedding, 32, "rs-ut", device)
    rows = np.load(tmp_path / "rows" / "sketch.npz")
    assert rows["x"].shape == (12, 512)
    assert sorted(rows["y"].tolist()) == ["cat"] * 6 + ["dog"] * 6
    monkeypatch.setattr(own_rows, "embed_rows", lambda *_: pytest.fail("it is there"))
    own_rows.embed(*place, embedding, 32, "rs-ut", device)


def test_peers_predict_a_class_for_every_row_of_the_target() -> None:
    task = wide_task(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER / "studies")
        peers = importlib.import_module("peers")
    found = peers.peers(task)
    assert list(found)[:2] == ["k-means", "LogisticRegression"]
    assert all(len(classes) == len(task.training_data.target) for classes in found.values())
    assert all(set(classes.tolist()) <= {0, 1, 2} for classes in found.values())


def test_glyphs_are_two_domains_of_the_same_classes_and_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="it brings the font")
    monkeypatch.syspath_prepend(FOLDER / "studies")
    glyphs = importlib.import_module("glyphs")
    assert {len(set(glyphs.CLASSES[kind])) for kind in ("letters", "symbols")} == {31}
    monkeypatch.setattr(glyphs, "CLASSES", {"symbols": "☀☂", "scenes": "xx"})
    monkeypatch.setattr(glyphs, "SIZES", {"p": (3, 5), "q": (2, 4)})
    rng = np.random.default_rng(0)
    for i in range(2):
        Image.fromarray(rng.integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.jpg"
        )
    for kind in ("symbols", "scenes"):
        (x, y), (again, _), (other, other_y) = (
            glyphs.draw(kind, domain, tmp_path) for domain in "ppq"
        )
        assert x.shape == (len(y), 3, 128, 128)
        assert (x == again).all()
        assert x.mean() != other.mean()
        assert set(y) == set(other_y)


def test_drawings_are_two_domains_of_the_same_classes_and_what_is_alike_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER / "studies")
    drawings = importlib.import_module("drawings")
    rng = np.random.default_rng(0)
    for of in drawings.CLASSES["stamps"].values():
        for place in (f"openclipart/png/{of['clips']}", f"tuxpaint/stamps/{of['stamps'][0]}"):
            (folder := tmp_path / "usr" / "share" / place).mkdir(parents=True)
            picture = Image.fromarray(rng.integers(9, 256, (9, 6, 4), dtype=np.uint8))
            for name in (f"{of.get('with', ['thing'])[0]}_1", "copy", "outline_mirror"):
                picture.save(folder / f"{name}.png")
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", Image.MAX_IMAGE_PIXELS
    )  # which the program changes
    monkeypatch.setattr(
        sys, "argv", ["drawings.py", "stamps", f"{tmp_path}/pictures", f"--debian={tmp_path}"]
    )
    drawings.main()
    found = [sorted((tmp_path / "pictures" / f"stamps_{domain}").rglob("*.png")) for domain in "pq"]
    for files in found:
        assert [file.parent.name for file in files] == sorted(drawings.CLASSES["stamps"])
        assert {(file.name, Image.open(file).convert("RGB").size) for file in files} == {
            ("000.png", (128, 128))
        }


def test_a_reversed_shift_leaves_a_tenth_of_the_other_end_and_never_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(FOLDER / "studies")
    own_rows = importlib.import_module("own_rows")
    source, target = (own_rows.wanted(np.full(31, 100), "reversed", side) for side in (True, False))
    assert source.tolist() == target[::-1].tolist()
    assert (target[0], target[-1]) == (100, 10)
    few = [own_rows.wanted(np.full(31, 5), "reversed", side).min() for side in (True, False)]
    assert few == [3, 2]
