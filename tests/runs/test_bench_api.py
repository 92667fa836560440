"""`askew.run` and `askew.bench` with methods by name, as classes and as objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import askew
from askew.core.errors import UserError
from askew.methods import COAL
from askew.methods.losses import cross_entropy, entropy

TRAINING = {"pretrain": 5, "rounds": 1, "round": 5, "batch": 16}


@dataclass(frozen=True, kw_only=True)
class Sharp(askew.methods.Method):
    """Confident on the target."""

    weight: float = 0.1
    """Of the entropy."""

    def losses(
        self,
        net: askew.methods.Net,
        batch: askew.methods.Batch,
        state: askew.methods.State,
        t: Tensor,
    ) -> askew.methods.Losses:
        fs, ft = askew.methods.join_domains(net, batch)
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "entropy": self.weight * entropy(net["head"](ft)),
        }


def test_a_benchmark_takes_objects_and_gives_a_table(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="a table is a DataFrame")
    call: Any = {
        "tasks": ["syn-uci"],
        "seeds": 2,
        "training": TRAINING,
        "out": tmp_path,
        "device": "cpu",
    }
    found = askew.bench("mini", ["source", Sharp(weight=0.2)], **call)
    table = found.table
    assert table[["method", "params", "seed"]].values.tolist() == [
        ["source", "", 0],
        ["source", "", 1],
        ["sharp", "weight=0.2", 0],
        ["sharp", "weight=0.2", 1],
    ]
    assert table["per_class_mean"].between(0, 100).all()
    assert "sharp" in repr(found)
    assert "<td>weight=0.2</td>" in found._repr_html_()
    one = askew.run(
        "mini/syn-uci", Sharp(weight=0.2), seed=1, training=TRAINING, out=tmp_path, device="cpu"
    )
    assert one.key == table["key"].tolist()[-1], "the same run, which is read"


def test_under_natural_shift_the_papers_test_split_is_the_whole_one(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="a table is a DataFrame")
    call: Any = {
        "seeds": 1,
        "shift": "natural",
        "training": TRAINING,
        "out": tmp_path,
        "device": "cpu",
    }
    table = askew.bench("mini", ["source"], ["syn-uci"], **call).table
    assert table["paper_split"].tolist() == table["per_class_mean"].tolist()


def test_an_object_s_hyper_parameters_are_those_of_the_run(tmp_path: Path) -> None:
    same: Any = {"training": TRAINING, "out": tmp_path, "device": "cpu"}
    by_name = askew.run("mini/syn-uci", "coal", params=vars(COAL(alpha=0.3)), **same)
    assert askew.run("mini/syn-uci", COAL(alpha=0.3), **same) == by_name


def test_classes_that_cannot_be_told_apart_or_found_are_refused(tmp_path: Path) -> None:
    class Other(askew.methods.Method):
        id = "sharp"

    with pytest.raises(UserError, match="Two methods have the id 'sharp'"):
        askew.bench("mini", [Sharp(), Other()], out=tmp_path / "runs")
    with pytest.raises(UserError, match="Other processes do not know the class Sharp"):
        askew.bench("mini", [Sharp()], jobs=2, out=tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
