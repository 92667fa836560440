"""Comparisons over the same seeds, and the mean of the seeds' networks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY, Command
from scipy.stats import ttest_rel
from test_paper_table import TASKS, fill, tables
from test_results import put

from askew.core.files import read_tensors, write_tensors
from askew.data.benchmarks import load_task
from askew.data.label_shift import DIGITS_TAIL
from askew.evaluation.outputs import OUTPUTS_FORM
from askew.reports.findings import has_few_classes, lost_classes, run_findings
from askew.reports.formats import markdown
from askew.reports.paired import comparisons, paired, with_ensembles
from askew.reports.results import collect
from askew.runs.root import finished_runs, open_root
from askew.training.run import key_before


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return open_root(tmp_path / "runs")


def test_a_difference_has_the_interval_of_the_paired_t_test() -> None:
    ours = {0: 81.0, 1: 84.5, 2: 80.0, 3: 88.0, 7: 1.0}
    theirs = {1: 80.0, 0: 79.5, 2: 80.5, 3: 82.0, 4: 99.0}
    found = paired(ours, theirs)
    assert found is not None
    common = [0, 1, 2, 3]  # seeds that only one of them has do not count
    test = ttest_rel([ours[s] for s in common], [theirs[s] for s in common]).confidence_interval(
        0.95
    )
    assert found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(
        (test.low, test.high)
    )
    assert (found.n, found.clear) == (4, False)
    assert str(found) == f"+2.88 [{test.low:+.2f}, {test.high:+.2f}]"


def test_what_all_seeds_agree_on_is_clear_and_one_seed_has_no_interval() -> None:
    better = paired({0: 5.0, 1: 6.1, 2: 7.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert better is not None
    assert better.clear
    assert str(better).endswith("*")
    single = paired({0: 5.0}, {0: 3.5})
    assert single is not None
    assert (single.half, single.clear, str(single)) == (None, False, "+1.50")
    assert paired({0: 5.0}, {1: 3.5}) is None


def test_every_method_is_compared_with_source_only_and_coal_by_task_and_on_average(
    root: Path,
) -> None:
    fill(root, {"source": 80, "dann": 75, "coal": 90}, TASKS[:2], seeds=3)
    (table,) = tables(root)
    to_source, to_coal = comparisons(table)
    assert to_source.columns == ("usps-mnist", "mnist-usps", "average")
    assert {name: [d.mean for d in row if d] for name, row in to_source.rows} == {
        "dann": [-5] * 3,
        "coal": [10] * 3,
    }
    assert {name: [d.mean for d in row if d] for name, row in to_coal.rows} == {
        "source": [-10] * 3,
        "dann": [-15] * 3,
    }
    assert "### Paired differences to source of the same variant" in markdown(
        [table], compared=True
    )
    assert "Paired" not in markdown([table])


def test_a_recipe_is_compared_with_the_paper_s_of_the_same_method(root: Path) -> None:
    today = {"views": {"views": "affine"}, "batch": 128, "net": {"norm": "split"}}
    fill(root, {"source": 70, "coal": 80}, TASKS[:1], seeds=2)
    fill(root, {"source": 90, "coal": 91}, TASKS[:1], seeds=2, **today)
    (table,) = tables(root)
    assert [line.label for line in table.lines] == ["source", "coal", "source today", "coal today"]
    assert [line.cells[0].paper is None for line in table.lines] == [False, False, True, True]
    by_title = {found.title: dict(found.rows) for found in comparisons(table)}
    to_source = by_title["Paired differences to source of the same variant"]
    assert {name: row[0].mean for name, row in to_source.items() if row[0]} == {
        "coal": 10,
        "coal today": 1,
    }
    first = by_title["Paired differences to the same method's first row"]
    assert {name: row[0].mean for name, row in first.items() if row[0]} == {
        "source today": 20,
        "coal today": 11,
    }


def test_the_ensemble_is_the_most_probable_class_on_average_over_seeds(
    cli: Command, tmp_path: Path
) -> None:
    ask = [
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source",
        "--seeds",
        2,
        "--jobs",
        1,
        *TINY,
    ]
    assert cli(*ask).code == 0
    test = load_task("mini/syn-uci").test
    assert test is not None
    folders = finished_runs(tmp_path / "runs")
    rng = np.random.default_rng(0)
    for folder in folders:  # each is right about half of the images, and sure of it
        tensors, notes = read_tensors(folder / "outputs.safetensors")
        logits = torch.from_numpy(rng.normal(size=tuple(tensors["test"].shape))).half()
        write_tensors(folder / "outputs.safetensors", tensors | {"test": logits}, notes)
    mean = np.mean(
        [_softmax(read_tensors(f / "outputs.safetensors")[0]["test"].double()) for f in folders],
        axis=0,
    )
    right = mean.argmax(axis=1) == test.y
    (row,) = with_ensembles(collect(folders), None)
    assert row.ensemble == pytest.approx(
        100 * np.mean([right[test.y == k].mean() for k in range(10)])
    )
    answer = cli("table", "--compare", "--format", "json")
    assert json.loads(answer.out)[0]["lines"][0]["cells"]["syn-uci"]["ensemble"] == pytest.approx(
        row.ensemble
    )
    (alone,) = with_ensembles(collect(folders[:1]), None)
    assert alone.ensemble is None


def _softmax(logits: torch.Tensor) -> np.ndarray:
    return logits.softmax(dim=1).numpy()


def test_a_class_is_lost_that_the_target_s_predictions_lack_and_held_out_source_has() -> None:
    held_out = torch.arange(3).repeat_interleave(5)
    target = torch.tensor([0] * 60 + [2] * 39 + [1])  # class 1 is named once in a hundred
    one_hot = torch.nn.functional.one_hot
    outputs = {
        "target": one_hot(target, 3).half(),
        "source_val": one_hot(held_out, 3).half(),
        "source_val_y": held_out,
    }
    assert lost_classes(outputs) == [1]
    assert lost_classes(outputs | {"source_val": one_hot((held_out + 1) % 3, 3).half()}) == []
    assert lost_classes(outputs | {"target": one_hot(held_out, 3).half()}) == []
    few = {
        name: outputs[name][[0, 0, 0, 5, 5, 10, 10, 10]] for name in ("source_val", "source_val_y")
    }
    assert lost_classes(outputs | few) == [], "two held-out images say too little"


def test_methods_without_their_views_and_lost_classes_are_findings(root: Path) -> None:
    put(root, "a", 70.0, method="fixmatch")
    put(root, "b", 70.0, method="sentry", views={"views": "affine"})
    folder = put(root, "c", 70.0, method="dann", seed=3)
    y = torch.arange(3).repeat_interleave(5)
    logits = torch.nn.functional.one_hot(y, 3).half()
    write_tensors(
        folder / "outputs.safetensors",
        {"target": logits[:10].clone(), "source_val": logits, "source_val_y": y},
        {"form": OUTPUTS_FORM},
    )
    found = {
        finding.code: finding.where for finding in run_findings(collect(finished_runs(root)), [])
    }
    assert found["A009"] == ("digits/usps-mnist (rs-ut), fixmatch",)
    assert found["A010"] == ("digits/usps-mnist (rs-ut), dann: class 2 (seed 3)",)


def test_two_classes_of_ten_are_few_and_a_long_tail_is_not() -> None:
    assert has_few_classes(np.array([0.7, 0.3] + [0.0] * 8))
    assert not has_few_classes(DIGITS_TAIL)
    assert not has_few_classes(np.full(10, 0.1))
    assert not has_few_classes(np.array([0.9, 0.1])), "of two classes, one is half"


@pytest.mark.parametrize(
    ("method", "sampler", "estimate", "found"),
    [
        ("teacher", "even", [0.8, 0.2] + [0.0] * 8, True),
        ("coal", "balanced", [0.8, 0.2] + [0.0] * 8, True),
        (
            "teacher",
            "natural",
            [0.8, 0.2] + [0.0] * 8,
            False,
        ),  # nothing draws the absent classes up
        ("source", "even", [0.8, 0.2] + [0.0] * 8, False),  # which does not learn from the target
        ("teacher", "even", DIGITS_TAIL.tolist(), False),
    ],
)
def test_a_target_of_few_classes_is_a_finding_where_they_are_drawn_evenly(
    root: Path, method: str, sampler: str, estimate: list[float], found: bool
) -> None:
    folder = put(root, "a", 45.0, method=method, target_sampler=sampler, target_floor=0.01, seed=2)
    key = key_before(json.loads((folder / "run.json").read_text())["run"])
    (root / str(key)).mkdir()
    (root / str(key) / "reweighted.json").write_text(json.dumps({"target_shares": estimate}))
    codes = {finding.code: finding.where for finding in run_findings(collect([folder]), [])}
    assert codes.get("A011") == (
        (f"digits/usps-mnist (rs-ut), {method}: seed 2",) if found else None
    )
