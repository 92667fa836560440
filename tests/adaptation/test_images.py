"""`auto` on image files: below a frozen backbone, and with a fine-tuned one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from adaptations import CPU, LENGTH, finish, first_two, photographs, request_for
from safetensors.torch import save_file
from small_models import shallow_resnets
from torchvision import models

import askew
from askew import Predictor
from askew.adaptation import session
from askew.adaptation.api import adapt_steps
from askew.adaptation.artifacts import write_artifacts
from askew.adaptation.assessment import Adaptation
from askew.adaptation.request import GivenLabels
from askew.data.decode import decode
from askew.data.paths import cache_folder
from askew.data.row_cache import RowCache, content_hashes
from askew.inference import cached_embeddings
from askew.inference.predict_files import predict_sources
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_bfloat16

pytestmark = pytest.mark.usefixtures("small_maps")

ALIKE = 0.05 if fast_bfloat16(CPU) else 5e-3
"""How far probabilities may be apart: some processors predict in bfloat16, and kept outputs have
half precision."""
EMBEDDED = Embedding(backbone="resnet18", crop=32, pooling="gem", corners=True, statistics="both")
"""Its weights come from a file, and are left out."""
SMALL = {"pretrain": 3, "rounds": 1, "round": 6, "batch": 2, "crop": "32", "lr": 1e-3}
STEPS = {"reading", "statistics", "embeddings", "choice"}
"""Keys of steps that train nothing."""


class Adapted(NamedTuple):
    found: Adaptation
    out: Path
    expected: list[int]
    """The numbers of trainings that were heard of."""
    keys: set[str]
    """Of all steps."""

    def saved(self, name: str, folder: Path) -> tuple[Adaptation, Predictor]:
        """The adaptation as if that network had been requested, and its model, loaded."""
        assert self.found.request is not None
        found = finish(adapt_steps(replace(self.found.request, take=name), self.out, CPU))
        write_artifacts(found, folder, map_features=first_two)
        return found, askew.load(folder, "cpu")

    def probabilities(self, model: Predictor) -> np.ndarray:
        target, names = self.out.parent / "t", self.found.data.target.names
        return model.predict_proba([target / name for name in names])


@pytest.fixture(scope="module", autouse=True)
def shallow() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shallow_resnets(patch)
        yield


def adapt(folder: Path, **more: Any) -> Adapted:
    """Adapt sixteen images of two classes to six others, which a backbone sees at 32 pixels."""
    source = photographs(folder / "s", ("red", "green"), 8, 90)
    target = photographs(folder / "t", ("red",), 6, 0)
    save_file(models.resnet18().state_dict(), folder / "weights.safetensors")
    how = {"backbone": "resnet18", "weights": str(folder / "weights.safetensors"), **more}
    request = request_for(source, target, methods=("coal", "lda"), **how)
    heard, keys, out = list[int](), set[str](), folder / "out"
    work = adapt_steps(request, out, CPU, lambda now, later: heard.append(now))
    found = finish(work, lambda step: keys.add(step.key))
    return Adapted(found, out, heard, keys)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder = tmp_path_factory.mktemp("frozen")
    return adapt(folder, fine_tune=False, training=LENGTH | {"crop": "32"})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A fine-tuned backbone, and labels of two target images."""
    folder = tmp_path_factory.mktemp("tuned")
    labels = GivenLabels({"red 1.png": "red", "red 4.png": "red"})
    training = SMALL | {"precision": "float32"}
    return adapt(folder, fine_tune=True, training=training, labels=labels)


# --- below a frozen backbone ---


def test_below_a_frozen_backbone_rows_are_adapted(frozen: Adapted) -> None:
    assert [one.name for one in frozen.found.networks] == ["source", "coal", "lda", "student"]
    assert not frozen.found.failures
    assert frozen.found.networks[0].task.training_data.source.x.ndim == 2


@pytest.mark.parametrize(
    ("name", "head"), [("student", "centred"), ("coal", "mlp"), ("source", "mlp")]
)
def test_a_frozen_backbone_and_one_head_are_the_model(
    frozen: Adapted, tmp_path: Path, name: str, head: str
) -> None:
    found, model = frozen.saved(name, tmp_path / "out")
    assert model.card.net.name == f"resnet18+{head}"
    assert model.card.net.embedding is not None
    assert model.card.net.embedding.without_weights() == EMBEDDED
    np.testing.assert_allclose(frozen.probabilities(model), found.probabilities, atol=ALIKE)


def test_every_training_below_a_frozen_backbone_is_counted(frozen: Adapted) -> None:
    assert sum(frozen.expected) == len(frozen.keys - STEPS)


# --- a fine-tuned backbone ---


def test_a_guided_network_is_fine_tuned_after_networks_on_embeddings(tuned: Adapted) -> None:
    names = [(one.name, one.run.net.name) for one in tuned.found.networks]
    assert names == [
        ("source", "mlp"),
        ("coal", "mlp"),
        ("lda", "centred"),
        ("guided", "resnet18+bottleneck"),
        ("student", "centred"),
    ]
    assert not tuned.found.failures


@pytest.mark.parametrize(
    ("name", "net"), [("student", "resnet18+bottleneck-centred"), ("guided", "resnet18+bottleneck")]
)
def test_one_fine_tuned_network_is_the_model(
    tuned: Adapted, tmp_path: Path, name: str, net: str
) -> None:
    found, model = tuned.saved(name, tmp_path / "out")
    assert model.card.net.name == net
    np.testing.assert_allclose(tuned.probabilities(model), found.probabilities, atol=ALIKE)


def test_features_of_a_fine_tuned_network_are_computed_once(
    tuned: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise AssertionError("the features are kept")

    monkeypatch.setattr(session, "network_features", fail)
    found, _ = tuned.saved("student", tmp_path / "out")
    assert found.final.name == "student"


def test_a_guided_network_learns_soft_labels_of_the_embeddings(tuned: Adapted) -> None:
    soft = tuned.found.networks[-2].task.training_data.soft_labels
    assert soft is not None
    assert soft.shape == (6, 2)
    np.testing.assert_allclose(soft.sum(axis=1), 1, atol=1e-5)


def test_a_guided_network_is_trained_with_the_user_s_labels(tuned: Adapted) -> None:
    data = tuned.found.networks[-2].task.training_data
    rows = [tuned.found.data.target.names.index(f"red {i}.png") for i in (1, 4)]
    red = tuned.found.classes.index("red")
    assert data.soft_labels is not None
    assert data.soft_labels[rows].tolist() == np.eye(2)[[red, red]].tolist()
    own = len(tuned.found.inputs.task.training_data.source)
    assert data.source.y[own:].tolist() == [red, red]


def test_every_training_of_a_fine_tuned_adaptation_is_counted(tuned: Adapted) -> None:
    assert sum(tuned.expected) == len(tuned.keys - STEPS - {"features"})


def test_a_random_backbone_is_a_finding(tmp_path: Path) -> None:
    result = askew.adapt(
        photographs(tmp_path / "s", ("red", "green"), 4, 90),
        photographs(tmp_path / "t", ("red",), 4, 0),
        methods="source",
        backbone="resnet18",
        weights="none",
        fine_tune=False,
        training=LENGTH | {"crop": 32},
        device="cpu",
    )
    assert "A101" in {finding["code"] for finding in result.summary["findings"]}


# --- predicting again ---


def test_predict_takes_embeddings_from_the_cache(
    frozen: Adapted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = frozen.saved("student", tmp_path / "out")
    own = photographs(tmp_path / "own", ("blue",), 3, 7)
    (own / "broken.png").write_bytes(b"no picture")
    decoded: list[Any] = []

    def counted(*given: Any) -> Any:
        decoded.append(given)
        return decode(*given)

    monkeypatch.setattr(cached_embeddings, "decode", counted)
    expected = model.predict_proba(sorted(own.rglob("blue*.png")))

    def predicted(place: Path) -> tuple[list[str], np.ndarray]:
        batches = list(predict_sources(model, [place]))
        return batches[0].problems, np.concatenate([one.probabilities for one in batches])

    for times in (3, 0):
        decoded.clear()
        problems, p = predicted(own)
        sound = [not problem for problem in problems]
        assert sorted(sound) == [False, True, True, True]
        np.testing.assert_allclose(p[sound], expected, atol=ALIKE)
        assert len(decoded) - 1 <= times, "the broken one is tried again"
    decoded.clear()
    _, p = predicted(frozen.out.parent / "t")
    assert len(decoded) <= 1, "the target was embedded by adapt; one picture is a check"
    np.testing.assert_allclose(p, frozen.probabilities(model), atol=ALIKE)


def test_a_card_that_names_another_store_is_not_believed(frozen: Adapted, tmp_path: Path) -> None:
    _, model = frozen.saved("student", tmp_path / "out")
    about = dict(model.card.made[cached_embeddings.STORE])
    target = sorted((frozen.out.parent / "t").iterdir())
    store = RowCache(cache_folder() / "embeddings" / "0123456789abcdef")
    for found in content_hashes(target):
        width = model.classifier.net["features"][0](torch.zeros(1, 3, 256, 256).byte()).shape[1]
        store.add([(h, 0) for h in found], np.full((len(found), width), 7.0, np.float32))
    store.flush()
    made = {**model.card.made, cached_embeddings.STORE: about | {"store": "0123456789abcdef"}}
    stranger = Predictor(replace(model.card, made=made), model.weights, "cpu")
    p = np.concatenate([b.probabilities for b in predict_sources(stranger, target)])
    np.testing.assert_allclose(p, model.predict_proba(target), atol=ALIKE)
