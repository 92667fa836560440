"""What is hashed, seeded or stored keeps its meaning: files and numbers that an earlier askew made,
held to today's.

`tests/golden` was written by asking runs for their keys, and by `askew adapt source.npz target.npz
-o adaptation --backbone bare --method coal -t pretrain=20 -t rounds=2 -t round=10 -t batch=12 -t
norm=joint`. Its runs are older than its summary, model card and predictions.
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Command

import askew
from askew.data.domains import Labeled
from askew.data.task import TrainingData
from askew.methods import COAL, SourceOnly
from askew.nets.spec import NetworkSpec
from askew.runs.config import RunRequest, prepare
from askew.runs.store import RunFolder
from askew.training.batches import Feed
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.trainer import tables

GOLDEN = Path(__file__).parents[1] / "golden"
KEYS: dict[str, str] = json.loads((GOLDEN / "run_keys.json").read_text())
BATCHES: dict[str, Any] = json.loads((GOLDEN / "batches.json").read_text())
OTHER = RunRequest(
    task="mini/syn-uci",
    method="coal",
    seed=3,
    draw=1,
    shift="natural",
    params={"alpha": 0.5},
    training={"rounds": 2, "target_sampler": "balanced", "norm": "split", "head": "linear"},
)


@pytest.mark.usefixtures("all_test_images")
@pytest.mark.parametrize("name", KEYS)
def test_a_run_has_the_key_that_it_always_had(name: str) -> None:
    task, method, seed, *other = name.split()
    request = OTHER if other else RunRequest(task=task, method=method, seed=int(seed))
    assert prepare(request).run.key == KEYS[name]


@pytest.mark.parametrize("sampler", ["natural", "balanced"])
def test_a_seed_draws_the_batches_and_dropout_masks_that_it_always_drew(sampler: Any) -> None:
    y = np.array([0] * 7 + [1] * 5 + [2] * 3)
    x = np.arange(60, dtype=np.float32).reshape(15, 4)
    data = TrainingData(
        source=Labeled(x, y),
        source_val=Labeled(x[:3], y[:3]),
        target=Labeled(x[:11], y[:11]).unlabeled(),
        test_images=Labeled(x[:2], y[:2]).unlabeled(),
        classes=("a", "b", "c"),
    )
    stages = (
        Stage(method=SourceOnly(), rounds=1, round_steps=4, optim=Optim()),
        Stage(method=COAL(), rounds=3, round_steps=4, optim=Optim()),
    )
    run = Run(
        task="toy",
        shift="natural",
        draw=0,
        origin="o",
        net=NetworkSpec(layers="mlp"),
        plan=stages,
        batch=6,
        sampler=sampler,
        target_sampler=sampler,
        precision="float32",
        seed=5,
        threads=1,
    )
    pseudo = torch.tensor([0, 0, 1, 2, 1, 0, 0, 2, 1, 1, 0]) if sampler == "balanced" else None
    drawn = tables(run, 1, Feed(data, torch.device("cpu")), pseudo, 3, 3, 2)
    found = {"key": run.key, "source": drawn.source.tolist(), "target": drawn.target.tolist()}
    found["dropout"] = drawn.step_keys.tolist()
    assert found == BATCHES[sampler]


def test_runs_of_before_are_read_and_found_whole() -> None:
    folders = [p for p in (GOLDEN / "adaptation" / "runs").iterdir() if p.is_dir()]
    assert len(folders) == 3, "source-only, a pre-training, and COAL"
    for folder in folders:
        assert RunFolder(folder).done
        assert RunFolder(folder).intact(whole=True)


def test_a_model_of_before_predicts_what_it_predicted() -> None:
    model = askew.load(GOLDEN / "adaptation")
    with (GOLDEN / "adaptation" / "predictions.csv").open(newline="") as file:
        told = list(csv.DictReader(file))
    p = model.predict_proba(np.load(GOLDEN / "target.npz")["x"])
    assert model.classes == ("ash", "birch", "cedar")
    assert p == pytest.approx(
        np.array([[float(row[f"p_{name}"]) for name in model.classes] for row in told]), abs=2e-4
    )


def test_an_adaptation_of_before_is_gone_on_with_and_not_done_again(
    cli: Command, tmp_path: Path
) -> None:
    out = shutil.copytree(GOLDEN / "adaptation", tmp_path / "out")
    weights = {p: p.stat().st_mtime_ns for p in out.glob("runs/*/weights.safetensors")}
    short = (
        "-t",
        "pretrain=20",
        "-t",
        "rounds=2",
        "-t",
        "round=10",
        "-t",
        "batch=12",
        "-t",
        "norm=joint",
    )  # as then
    paths = (GOLDEN / "source.npz", GOLDEN / "target.npz", "-o", out)
    own = ("--backbone", "bare", "--method", "coal", "--overwrite")  # its data have moved
    answer = cli("adapt", *paths, *own, *short)
    assert answer.code == 0, answer.err
    assert {p: p.stat().st_mtime_ns for p in out.glob("runs/*/weights.safetensors")} == weights
