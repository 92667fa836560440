"""Scores of reweighted logits: what is stored, what the commands show, and that nothing is trained
for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import assert_refused, files
from conftest import TINY, Command, rows
from test_execute import finish
from torch import Tensor

from askew.core.files import read_tensors
from askew.data.domains import Labeled
from askew.data.task import Task, TestLabels, TrainingData
from askew.evaluation.metrics import score_test
from askew.evaluation.outputs import adjust_logits
from askew.evaluation.priors import bbse_prior
from askew.methods import BBSE, COAL, DANN, MCD, PADA, SourceOnly
from askew.nets.network import Net
from askew.runs.store import RunFolder

HALF = 2.0**-10
"""How far apart two neighbours in fp16 are, relatively."""


def few_of(images: Labeled, share: tuple[float, ...]) -> Labeled:
    """The first images of each class, so that classes keep these shares of what they had."""
    kept = [
        np.flatnonzero(images.y == k)[: round(s * (images.y == k).sum())]
        for k, s in enumerate(share)
    ]
    return images.take(np.sort(np.concatenate(kept)))


@pytest.fixture(scope="session")
def skewed() -> Task:
    """Label shift alone: both domains look the same, and the target has ten times as many a as
    c."""
    share = (1.0, 0.3, 0.1)
    test, target = few_of(rows(6000, 0, 3), share), few_of(rows(6000, 0, 2), share)
    training_data = TrainingData(
        source=rows(300, 0, 0),
        source_val=rows(3000, 0, 1),
        target=target.unlabeled(),
        test_images=test.unlabeled(),
        classes=("a", "b", "c"),
    )
    return Task("toy", training_data, TestLabels(test.y, None, ("a", "b", "c")))


def stored(folder: RunFolder) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder.path / "reweighted.json").read_text())
    return found


def logits(folder: RunFolder) -> dict[str, Tensor]:
    return {
        name: value.float()
        for name, value in read_tensors(folder.path / "outputs.safetensors")[0].items()
    }


# --- what a run stores ---


@pytest.mark.parametrize(
    "method", [SourceOnly(), DANN(), MCD(), BBSE(), PADA(), COAL()], ids=lambda m: m.id
)
def test_the_scores_are_those_of_the_stored_logits_reweighted(
    skewed: Task, make_run: Any, tmp_path: Path, method: Any
) -> None:
    folder = finish(make_run(method), skewed, tmp_path)
    record = stored(folder)
    prior, training_prior = np.array(record["target_shares"]), np.array(record["training_shares"])
    for share in (prior, training_prior):
        assert share.shape == (3,)
        assert share.min() >= 0
        assert share.sum() == pytest.approx(1, abs=1e-6)
    z = adjust_logits(logits(folder)["test"].numpy(), prior, training_prior)
    second, first = np.sort(z, axis=1)[:, -2:].T
    close = int(
        (first - second < 4 * HALF * np.abs(z).max()).sum()
    )  # these may fall to either side in fp16
    assert close < len(z) / 50
    want = score_test(skewed.test, z)["whole"]
    found = folder.scores(reweighted=True)["whole"]
    assert found == record["scores"]["whole"]
    assert found["images"] == want["images"]
    assert np.abs(np.array(found["confusion"]) - np.array(want["confusion"])).sum() <= 2 * close


def test_the_target_shares_are_those_of_the_stored_logits_and_near_the_true_one(
    skewed: Task, make_run: Any, tmp_path: Path
) -> None:
    folder = finish(make_run(rounds=10), skewed, tmp_path)
    z, training_data = logits(folder), skewed.training_data
    again = bbse_prior(z["source_val"], torch.from_numpy(training_data.source_val.y), z["target"])
    torch.testing.assert_close(
        torch.tensor(stored(folder)["target_shares"]), again, rtol=0, atol=0.02
    )
    true = np.bincount(skewed.test.y) / len(skewed.test.y)
    assert np.abs(again.numpy() - true).max() < 0.1


def test_reweighting_helps_where_the_class_mix_is_all_that_differs(
    skewed: Task, make_run: Any, tmp_path: Path
) -> None:
    folder = finish(make_run(rounds=10), skewed, tmp_path)
    plain, better = folder.scores()["whole"], folder.scores(reweighted=True)["whole"]
    assert better["overall"] > plain["overall"] + 1


def test_every_finished_run_has_them_a_pre_training_too(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(COAL())
    finish(run, task, tmp_path)
    for key in (run.key, run.before.key):
        record = stored(RunFolder(tmp_path / key))
        assert set(record) == {"target_shares", "training_shares", "unsure", "scores"}
        assert (
            set(record["scores"]) == set(RunFolder(tmp_path / key).scores()) == {"whole", "paper"}
        )
        assert sum(record["target_shares"]) == pytest.approx(1, abs=1e-6)


class Mute(SourceOnly):
    """Says the same of every image."""

    id = "mute"

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return torch.zeros_like(super().predict(net, x))


def test_an_estimate_that_cannot_be_trusted_is_noted_in_the_file_and_no_warning(
    task: Task, make_run: Any, tmp_path: Path
) -> None:
    record = stored(finish(make_run(Mute()), task, tmp_path))  # a warning would be an error here
    assert record["unsure"]
    assert sum(record["target_shares"]) == pytest.approx(1, abs=1e-6)
    assert not stored(finish(make_run(rounds=10), task, tmp_path))["unsure"]


# --- what the network has seen ---


def test_the_sampler_s_mix_is_what_most_methods_have_seen(
    skewed: Task, make_run: Any, tmp_path: Path
) -> None:
    task = replace(
        skewed,
        training_data=replace(
            skewed.training_data, source=few_of(skewed.training_data.source, (0.1, 0.4, 0.5))
        ),
    )
    balanced = make_run(DANN())
    assert stored(finish(balanced, task, tmp_path))["training_shares"] == pytest.approx([1 / 3] * 3)
    natural = replace(balanced, sampler="natural")
    assert stored(finish(natural, task, tmp_path))["training_shares"] == pytest.approx(
        [0.1, 0.4, 0.5]
    )


def correction(mix: list[float], seen: list[float]) -> float:
    """How much reweighting moves logits against each other."""
    shift = adjust_logits(np.zeros(3), np.array(mix), np.array(seen))
    return float(np.ptp(shift))


def test_what_bbse_weighed_already_is_not_weighed_again(
    skewed: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(BBSE(), rounds=10, pretrain=100)
    record = stored(finish(run, skewed, tmp_path))
    # its training prior is the one that the network before it estimated
    estimated = stored(RunFolder(tmp_path / run.before.key))["target_shares"]
    assert record["training_shares"] == pytest.approx(estimated, abs=1e-5)
    even = [1 / 3] * 3
    assert correction(record["target_shares"], even) > 1.5
    assert (
        correction(record["target_shares"], record["training_shares"])
        < correction(record["target_shares"], even) / 2
    )


def test_what_pada_weighed_already_is_not_weighed_again(
    skewed: Task, make_run: Any, tmp_path: Path
) -> None:
    run = make_run(PADA(), rounds=1, pretrain=100)
    record = stored(finish(run, skewed, tmp_path))
    # in its one round it counted classes by the mean prediction of the network before it
    gamma = logits(RunFolder(tmp_path / run.before.key))["target"].softmax(dim=-1).mean(dim=0)
    assert record["training_shares"] == pytest.approx((gamma / gamma.sum()).tolist(), abs=2e-3)
    assert (
        max(record["training_shares"]) - min(record["training_shares"]) > 0.1
    )  # the sampler gave a third of each


def test_bbse_is_trained_on_the_prior_that_the_source_only_network_estimated(
    cli: Command, tmp_path: Path
) -> None:
    longer = ("-t", "pretrain=20", "-t", "round=10")  # it has to know some classes
    answer = json.loads(cli("run", "mini/syn-uci", "-m", "bbse", *TINY, *longer, "--json").out)
    record = stored(RunFolder(tmp_path / answer["folder"]))
    plans = {
        p.parent: len(json.loads(p.read_text())["run"]["plan"])
        for p in (tmp_path / "runs").glob("*/run.json")
    }
    (before,) = [path for path, stages in plans.items() if stages == 2]
    assert record["training_shares"] == pytest.approx(
        stored(RunFolder(before))["target_shares"], abs=1e-5
    )
    assert max(record["training_shares"]) > 0.2  # far from the sampler's tenth each


# --- what the commands show ---

BENCH = (
    "bench",
    "mini",
    "--tasks",
    "syn-uci",
    "--methods",
    "source,dann",
    "--seeds",
    2,
    "--jobs",
    1,
    *TINY,
)


def test_both_rows_are_shown_on_request_and_nothing_is_trained_for_them(
    cli: Command, tmp_path: Path
) -> None:
    plain = json.loads(cli(*BENCH, "--json").out)
    printed = cli("table").out
    before = files(tmp_path)

    both = json.loads(cli(*BENCH, "--reweight", "--json").out)
    assert [(r["method"], r["reweighted"]) for r in both] == [
        ("source", False),
        ("source", True),
        ("dann", False),
        ("dann", True),
    ]
    assert both[::2] == plain
    for row in both[1::2]:
        assert (row["n"], row["seeds"]) == (2, [0, 1])
        assert row["whole"]["values"] == [
            stored(RunFolder(path))["scores"]["whole"]["per_class_mean"]
            for path in runs_of(tmp_path, row["method"])
        ]
    assert json.loads(cli("table", "--reweight", "--json").out) == both
    for ask in (("table", "--reweight"), (*BENCH, "--reweight")):
        text = cli(*ask).out
        for row in both:
            label = f"{row['method']}{' reweighted' if row['reweighted'] else ''}"
            assert re.search(
                rf"^ *mini/syn-uci +{label} +2 +{row['whole']['mean']:.2f} ", text, flags=re.M
            )

    # and without the flag all is as before
    assert json.loads(cli(*BENCH, "--json").out) == json.loads(cli("table", "--json").out) == plain
    assert cli("table").out == cli(*BENCH).out == printed
    assert "reweighted" not in printed
    assert files(tmp_path) == before


def runs_of(folder: Path, method: str) -> list[Path]:
    """A method's runs by their seeds, without pre-trainings."""
    found = {}
    for path in (folder / "runs").glob("*/run.json"):
        run = json.loads(path.read_text())["run"]
        if run["plan"][-1]["method"]["id"] == method and len(run["plan"]) == 2:
            found[run["seed"]] = path.parent
    return [found[seed] for seed in sorted(found)]


def test_a_run_shows_both_test_splits_twice_on_request(cli: Command, tmp_path: Path) -> None:
    ask = ("run", "mini/syn-uci", "-m", "source", *TINY)
    plain = json.loads(cli(*ask, "--json").out)
    before = files(tmp_path)
    both = json.loads(cli(*ask, "--reweight", "--json").out)
    record = stored(RunFolder(tmp_path / plain["folder"]))["scores"]
    assert both["scores"] == plain["scores"] | {
        f"{test}, reweighted": scores for test, scores in record.items()
    }
    text = cli(*ask, "--reweight").out
    for name in ("whole test split", "the paper's test split"):
        assert len(re.findall(rf"^ *{name} +\d", text, flags=re.M)) == 1
        assert len(re.findall(rf"^ *{name}, reweighted +\d", text, flags=re.M)) == 1
    assert "reweighted" not in cli(*ask).out
    assert json.loads(cli(*ask, "--json").out) == plain
    assert files(tmp_path) == before


def test_a_run_from_before_there_were_such_scores_is_named_in_a_sentence(
    cli: Command, tmp_path: Path
) -> None:
    result = json.loads(cli("run", "mini/syn-uci", "-m", "source", *TINY, "--json").out)
    (tmp_path / result["folder"] / "reweighted.json").unlink()
    RunFolder(tmp_path / result["folder"]).finish()
    assert cli("table").code == 0
    answer = cli("table", "--reweight")
    assert_refused(answer)
    assert result["key"] in answer.err
