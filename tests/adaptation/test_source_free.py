"""A model adapted again without its source: it follows the target, whatever its label distribution,
or stays."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from adaptations import CPU, NAMES, drawn, finish
from commands import assert_refused
from conftest import Command
from small_models import card, predictor
from small_models import images as small_images

import askew
from askew import Predictor, UserError
from askew.adaptation import source_free
from askew.adaptation.source_free import adapt_again, prototype_labels
from askew.data.custom import CustomDomain, read_domain
from askew.methods.base import Method
from askew.nets.adabn import domain_norms
from askew.nets.spec import NetworkSpec

pytestmark = pytest.mark.usefixtures("small_maps")

LONG = [
    word
    for name, value in {"pretrain": 150, "rounds": 1, "round": 1}.items()
    for word in ("-t", f"{name}={value}")
]


def test_prototypes_label_by_the_nearest_mean_and_never_a_class_without_images() -> None:
    f = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.1, 1.0], [-0.1, 1.0], [0.9, 0.4]])
    p = torch.tensor(
        [[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.2, 0.8, 0.0], [0.1, 0.9, 0.0], [0.4, 0.6, 0.0]]
    )
    assert prototype_labels(f, p).tolist() == [0, 0, 1, 1, 0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a source that is gone, and a target that has moved and is mostly of one class."""
    folder = tmp_path_factory.mktemp("again")
    xs, ys = drawn(240, [0.4, 0.3, 0.3], 0.0, 0)
    xt, _ = drawn(200, [0.2, 0.3, 0.5], 0.0, 1)
    xt[:, 0] += 2.5  # towards the first class
    np.savez(folder / "source.npz", x=2 * xs, y=NAMES[ys])
    np.savez(folder / "target.npz", x=2 * xt)
    training = {"pretrain": 150, "rounds": 1, "round": 1}
    result = askew.adapt(
        folder / "source.npz",
        folder / "target.npz",
        folder / "made",
        methods="source",
        training=training,
        device="cpu",
    )
    Predictor.of_run(result.adaptation.final.folder, "cpu").save(folder / "out")
    (folder / "source.npz").unlink()
    return folder


TRUTH = drawn(200, [0.2, 0.3, 0.5], 0.0, 1)[1]


def test_a_model_is_adapted_again_without_its_source_and_gains(
    cli: Command, place: Path, tmp_path: Path
) -> None:
    answer = cli(
        "adapt", "--model", place / "out", place / "target.npz", "-o", "again", "-t", "rounds=4"
    )
    assert answer.code == 0, answer.err
    assert "The model was adapted without its source" in answer.out
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == [
        "model",
        "predictions.csv",
        "runs",
        "summary.json",
        "target.json",
    ]
    before, after = (askew.load(folder, "cpu") for folder in (place / "out", tmp_path / "again"))
    x = np.load(place / "target.npz")["x"]
    accuracy = [np.mean(model.predict(x) == NAMES[TRUTH]) for model in (before, after)]
    assert accuracy[1] > accuracy[0] + 0.1
    for name, value in before.weights.items():
        if name.startswith("head."):
            assert torch.equal(value, after.weights[name]), "the head is fixed"
    told = json.loads((tmp_path / "again" / "summary.json").read_text())
    assert np.argmax(told["target_shares"]["shares"]) == 2, "the prior is estimated"
    assert 0 < told["changed"] < 1


def test_a_model_that_would_collapse_is_kept_as_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_free, "_collapsed", lambda *_: True)
    domain = read_domain(place / "target.npz", "target")
    found = finish(adapt_again(place / "out", domain, {"rounds": 1, "round": 5}, 0, CPU))
    assert found.changed == 0
    assert "kept as it was" in found.sentence
    assert all(
        torch.equal(v, askew.load(place / "out", "cpu").weights[n])
        for n, v in found.predictor.weights.items()
    )


def test_predictions_of_one_class_far_from_all_that_is_plausible_are_a_collapse() -> None:
    even = np.eye(4)[np.arange(40) % 4]
    assert source_free._collapsed(even, np.eye(4)[[0] * 40])
    assert not source_free._collapsed(even, even[::-1])
    assert not source_free._collapsed(np.eye(4)[[0] * 40], np.eye(4)[[0] * 40]), "as before"


def images(file: Path, x: np.ndarray) -> CustomDomain:
    np.savez(file, x=x)
    return read_domain(file, "target")


def test_a_frozen_backbone_stays_as_it_is_and_the_layers_above_it_adapt(tmp_path: Path) -> None:
    model = predictor("resnet18+mlp", (3, 32, 32))
    model.save(tmp_path / "model")
    domain = images(tmp_path / "t.npz", small_images(6, 3, 32, 32))
    found = finish(
        adapt_again(tmp_path / "model", domain, {"rounds": 1, "round": 2, "batch": 4}, 0, CPU)
    )
    same = {
        name: torch.equal(value, found.predictor.weights[name])
        for name, value in model.weights.items()
    }
    assert all(kept for name, kept in same.items() if name.startswith(("features.0.", "head.")))
    assert not all(same.values())


def test_statistics_of_the_domain_become_those_of_the_new_one(tmp_path: Path) -> None:
    model = predictor("resnet18+mlp", (3, 32, 32), statistics="both")
    model.save(tmp_path / "model")
    x = small_images(6, 3, 32, 32)
    work = adapt_again(
        tmp_path / "model",
        images(tmp_path / "t.npz", x),
        {"rounds": 1, "round": 2, "batch": 4},
        0,
        CPU,
    )
    before, after = (domain_norms(one.classifier) for one in (model, finish(work).predictor))
    assert before is not None
    assert after is not None
    assert (before.statistics - after.statistics).abs().max() > 0.01
    before.estimate([torch.from_numpy(x)])
    torch.testing.assert_close(before.statistics, after.statistics, rtol=1e-3, atol=1e-4)


def test_prototypes_on_bare_rows_move_and_a_linear_layer_has_nothing_to_adapt(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    centres = np.eye(3, 8) + 0.5 * np.eye(8)[3]
    domain = images(
        tmp_path / "t.npz",
        (centres[np.arange(300) % 3] + 0.05 * rng.normal(size=(300, 8))).astype("f4"),
    )
    spec = NetworkSpec(layers="bare", head="cosine", temperature=0.1)
    of = dataclasses.replace(card("bare", rule=Method(), training_prior=(1 / 3,) * 3), net=spec)
    Predictor(of, {"head.prototypes.weight": torch.eye(3, 8)}, "cpu").save(tmp_path / "model")
    found = finish(adapt_again(tmp_path / "model", domain, {}, 0, CPU))
    moved_to = found.predictor.weights["head.prototypes.weight"]
    near = torch.nn.functional.cosine_similarity(
        moved_to, torch.tensor(centres, dtype=torch.float32)
    )
    assert (
        near > torch.nn.functional.cosine_similarity(torch.eye(3, 8), torch.tensor(centres).float())
    ).all()
    predictor("bare").save(tmp_path / "linear")
    with pytest.raises(UserError, match="no features to adapt"):
        finish(adapt_again(tmp_path / "linear", domain, {}, 0, CPU))


def test_one_domain_without_a_model_and_two_with_one_are_refused(
    cli: Command, place: Path, tmp_path: Path
) -> None:
    for words, why in (
        (("target.npz",), "target.npz alone."),
        (("--model", "out", "target.npz", "target.npz"), "found all three."),
        (("--model", "out", "target.npz", "--search", "3"), "no source to choose or train with"),
        (("--model", "nowhere", "target.npz"), "There is no model nowhere."),
        (("--model", "out", "target.npz", "-t", "pretrain=3"), "'pretrain'"),
    ):
        answer = cli(
            "adapt", *(place / w if w in ("out", "target.npz") else w for w in words), "-o", "no"
        )
        assert_refused(answer)
        assert why in answer.err, answer.err
        assert not (tmp_path / "no").exists()
