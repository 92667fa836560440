"""Predictions in shards, by Ray Data: one row per image, only what is missing, the same as on one
machine."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from leftovers import left_by_dead_process

from askew.core.errors import UserError
from askew.inference.model_card import ModelCard
from askew.inference.predictor import Predictor
from askew.inference.ray_predict import INPUTS, REQUEST, ShardFolder, open_shards, predict_shard
from askew.methods import METHODS
from askew.nets.network import build
from askew.nets.spec import NetworkSpec

parquet = pytest.importorskip("pyarrow.parquet")
WIDTH, ROWS = 3, 11


@pytest.fixture
def predictor() -> Predictor:
    parts, _ = build(NetworkSpec(layers="bare"), (WIDTH,), 2, 0)
    weights = {
        f"{name}.{n}": value
        for name, part in parts.items()
        for n, value in part.state_dict().items()
    }
    card = ModelCard(
        net=NetworkSpec(layers="bare"),
        rule=METHODS["source"](),
        shape=(WIDTH,),
        classes=("a", "b"),
        training_prior=(0.5, 0.5),
    )
    return Predictor(card, weights, "cpu")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    x[7, 1] = np.nan  # one row that is broken
    np.save(tmp_path / "rows.npy", x)
    return tmp_path / "rows.npy"


def names(shards: ShardFolder) -> list[str]:
    files = [shards.file(shard) for shard in range(len(shards.offsets))]
    return [name for file in files for name in parquet.read_table(file)["path"].to_pylist()]


def test_shards_hold_every_input_once_and_in_order(
    predictor: Predictor, rows: Path, tmp_path: Path
) -> None:
    shards = open_shards([rows], predictor, "equal", tmp_path / "out", size=4)
    assert len(shards.offsets) == 3
    assert [predict_shard(predictor, shards, shard, "equal") for shard in shards.missing()] == [
        4,
        4,
        3,
    ]
    assert names(shards) == [f"{rows}:{i}" for i in range(ROWS)]
    counts = shards.counts(predictor.classes)
    assert (counts.images, counts.broken, counts.counts.sum()) == (ROWS, 1, ROWS - 1)


def test_only_shards_that_are_missing_are_predicted(
    predictor: Predictor, rows: Path, tmp_path: Path
) -> None:
    shards = open_shards([rows], predictor, "equal", tmp_path / "out", size=4)
    for shard in shards.missing():
        predict_shard(predictor, shards, shard, "equal")
    before = shards.file(0).stat().st_mtime_ns
    shards.file(1).unlink()
    again = open_shards([rows], predictor, "equal", tmp_path / "out", size=4)
    assert again.missing() == [1]
    predict_shard(predictor, again, 1, "equal")
    assert names(again) == [f"{rows}:{i}" for i in range(ROWS)]
    assert shards.file(0).stat().st_mtime_ns == before


def test_inputs_are_split_again_after_a_process_was_killed(
    predictor: Predictor, rows: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / INPUTS).write_text("{")
    for name in (INPUTS, REQUEST, "out"):
        left_by_dead_process(folder / name)
    shards = open_shards([rows], predictor, "equal", folder, size=4)
    assert len(shards.missing()) == 3
    left_by_dead_process(shards.file(0))
    open_shards([rows], predictor, "equal", folder, size=4)
    assert sorted(path.name for path in folder.iterdir()) == [REQUEST, INPUTS]


@pytest.mark.parametrize("what", ["other images", "other class shares", "something else"])
def test_a_folder_that_was_begun_otherwise_is_left_alone(
    predictor: Predictor, rows: Path, tmp_path: Path, what: str
) -> None:
    folder = tmp_path / "out"
    if what == "something else":
        folder.mkdir()
        (folder / "thesis.txt").write_text("mine")
    else:
        open_shards([rows], predictor, "equal", folder)
    np.save(tmp_path / "other.npy", np.zeros((2, WIDTH), dtype=np.float32))
    source = tmp_path / "other.npy" if what == "other images" else rows
    shares = [0.9, 0.1] if what == "other class shares" else "equal"
    with pytest.raises(UserError, match="holds"):
        open_shards([source], predictor, shares, folder)


@pytest.mark.soak
def test_ray_predicts_what_one_machine_predicts(
    predictor: Predictor, rows: Path, tmp_path: Path, cli: Command, shell: Command
) -> None:
    pytest.importorskip("ray")
    predictor.save(tmp_path / "model")
    alone = cli(
        "predict",
        str(tmp_path / "model"),
        str(rows),
        "-o",
        str(tmp_path / "alone.csv"),
        "--device",
        "cpu",
    )
    assert alone.code == 0
    done = shell(  # a process of its own, which Ray ends with
        "predict",
        str(tmp_path / "model"),
        str(rows),
        "--on",
        "ray",
        "--jobs",
        "1",
        "-o",
        str(tmp_path / "parts"),
        "--device",
        "cpu",
        "--json",
    )
    assert done.code == 0, done.err
    assert json.loads(done.out)["images"] == ROWS
    found = parquet.read_table(tmp_path / "parts" / "part-00000.parquet").to_pylist()
    with (tmp_path / "alone.csv").open() as file:
        wanted = list(csv.DictReader(file))
    assert [row["path"] for row in found] == [row["path"] for row in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert (a["class"] or "") == b["class"]
        assert a["p_a"] is None or a["p_a"] == pytest.approx(float(b["p_a"]), abs=1e-5)
    again = cli(
        "predict",
        str(tmp_path / "model"),
        str(rows),
        "--on",
        "ray",
        "-o",
        str(tmp_path / "parts"),
        "--json",
    )
    assert json.loads(again.out) == json.loads(done.out)


def test_ray_needs_a_folder(predictor: Predictor, rows: Path, tmp_path: Path, cli: Command) -> None:
    predictor.save(tmp_path / "model")
    message = cli("predict", str(tmp_path / "model"), str(rows), "--on", "ray")
    assert message.code == 2
    assert "name it with -o" in message.err
