"""Adapting to pictures of one's own: what a frozen backbone embeds, what is trained whole, and what
the model holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from adaptations import CPU, LENGTH, finish
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from small_models import shallow_resnets
from torchvision import models

from askew.adaptation import members, pipeline
from askew.adaptation import setup as adapting
from askew.adaptation.artifacts import predictor
from askew.adaptation.candidates import (
    AUTO,
    FROZEN_SHARE,
    GUIDED,
    GUIDED_BY_ALL,
    MCC,
    SOURCE_ONLY,
    TEACHER_OF_VIEWS,
    choose_members,
)
from askew.adaptation.candidates import FROZEN as ON_EMBEDDINGS
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.members import ensemble_of, train_guided
from askew.adaptation.pipeline import adapt
from askew.adaptation.setup import AdaptRequest, Setup, set_up
from askew.core.errors import UserError
from askew.evaluation.logits import softmax
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.validators import score_another, score_networks
from askew.inference import embeddings
from askew.inference.embeddings import embedded, embedders, frozen
from askew.inference.predictor import load
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_bfloat16
from askew.nets.network import build
from askew.nets.spec import parse_network
from askew.runs.execute import Progress

FROZEN = "resnet18"
ALIKE = 0.05 if fast_bfloat16(CPU) else 5e-3
"""How far probabilities may be apart: some processors predict in bfloat16, and kept outputs have
half precision."""


def photographs(folder: Path, classes: tuple[str, ...], n: int, dark: int) -> Path:
    """Blobs of a colour a class, on a ground of its own."""
    for k, name in enumerate(classes):
        for i in range(n):
            rng = np.random.default_rng([k, i, dark])
            pixels = np.full((24, 24, 3), dark, np.uint8)
            pixels[6:18, 6:18, k % 3] = rng.integers(150, 255, (12, 12))
            place = folder / name / f"{name} {i}.png" if dark else folder / f"{name} {i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place)
    return folder


@pytest.fixture
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks see 32 pixels in place of 224, which is forty times faster."""
    monkeypatch.setitem(Embedding.__init__.__kwdefaults__, "crop", 32)


@pytest.mark.parametrize(
    "method", ["coal", "teacher"]
)  # the second keeps batch statistics of each domain
def test_pictures_on_a_cpu_are_embedded_once_and_the_model_holds_the_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_backbone: None, method: str
) -> None:
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 6, 90),
        photographs(tmp_path / "t", ("red", "green"), 4, 0),
    )
    request = AdaptRequest(source, target, method, "resnet18", "none", training=LENGTH)
    out = tmp_path / "out"
    found = finish(adapt(request, out, CPU))
    assert found.setup.description == "mlp on embeddings of a frozen resnet18, corners too"
    assert found.setup.task.training_data.source.x.shape[1:] == (512,)
    assert "A101" in {r.code for r in adaptation_findings(found)}, (
        "a backbone without weights is weak, which is reported"
    )
    predictor(found).save(out / "model")
    model = load(out, "cpu")
    assert model.card.net.name == "resnet18+mlp"
    probabilities = model.predict_proba([target / name for name in found.setup.data.target.names])
    np.testing.assert_allclose(probabilities, found.probabilities, atol=5e-3)
    monkeypatch.setattr(embeddings, "decode", lambda *args: pytest.fail("it was embedded already"))
    finish(set_up(request, tmp_path / "another folder", CPU))


def test_embedding_that_was_stopped_goes_on_with_the_next_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_backbone: None
) -> None:
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 5, 90),
        photographs(tmp_path / "t", ("red",), 4, 0),
    )
    request = AdaptRequest(source, target, "source", "resnet18", "none", training=LENGTH)
    monkeypatch.setattr("askew.inference.embeddings._BATCH", 4)
    monkeypatch.setattr("askew.data.row_cache.FILE_ROWS", 4)
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "cache"))
    work = adapt(request, tmp_path / "out", CPU)
    steps = (step for step in work if step.key == "embeddings")
    assert [next(steps).step for _ in range(3)] == [0, 4, 8]
    work.close()

    def files() -> dict[Path, int]:
        found = (tmp_path / "cache" / "embeddings").glob("*/*.safetensors")
        return {p: p.stat().st_mtime_ns for p in found if not p.parent.name.endswith("-norms")}

    kept = files()
    assert len(kept) == 2
    first = min(kept)
    first.write_bytes(first.read_bytes()[:-1])  # damaged since: computed anew
    again = [
        step.step for step in adapt(request, tmp_path / "out", CPU) if step.key == "embeddings"
    ]
    assert again[0] == 4, "those of the sound file are there"
    assert max(again) == 14, "the target's come after the source's"
    assert all(files()[p] == stamp for p, stamp in kept.items() if p != first)


def test_a_fine_tuned_backbone_is_part_of_the_model_and_several_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow_resnets(monkeypatch)
    monkeypatch.setattr(
        members, "choose_members", lambda candidates, networks: [(1, 1.0), (2, 1.0)]
    )
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 3, 90),
        photographs(tmp_path / "t", ("red",), 4, 0),
    )
    training = {
        "pretrain": 3,
        "rounds": 1,
        "round": 6,
        "batch": 2,
        "crop": 32,
        "precision": "float32",
    }
    training |= {"lr": 1e-3, "features_lr": 1e-4}  # for weights from nothing
    request = AdaptRequest(
        source, target, "source", "resnet18", "none", tuned=True, training=training
    )
    found = finish(adapt(request, tmp_path / "out", CPU))
    assert found.setup.description == "resnet18+bottleneck, all of it trained"
    assert not (tmp_path / "out" / "embeddings").exists()
    model = predictor(found)
    assert model.card.net.name == "resnet18+bottleneck"
    probabilities = model.predict_proba([target / name for name in found.setup.data.target.names])
    np.testing.assert_allclose(probabilities, found.probabilities, atol=ALIKE)
    alike, networks = [found.trained[0]] * 3, score_networks([found.trained[0].outputs] * 3)
    ((ensemble,), _) = finish(ensemble_of(alike, networks, None, request, tmp_path / "out", CPU))
    scored = score_another(networks, ensemble.outputs)
    together = dataclasses.replace(
        found, trained=(*alike, ensemble), chosen=3, temperature=scored.temperature
    )
    model = predictor(together)
    assert model.card.net.name == "resnet18+bottleneck||resnet18+bottleneck"
    again = model.predict_proba([target / name for name in found.setup.data.target.names])
    np.testing.assert_allclose(again, softmax(scored.outputs.target_uniform), atol=ALIKE)


CHOSEN = {
    3: [(1, 1.0), (2, 1.0)],
    4: [(1, 1.0), (2, 0.5), (3, 0.5)],
    5: [(1, 1.0), (2, 2.0), (3, 0.5), (4, 0.5)],
}
"""Members, by how many candidates there are: on embeddings, fine-tuned with those beside, and once
more guided."""


def test_beside_fine_tuned_networks_others_learn_from_the_backbone_as_it_was_and_all_become_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow_resnets(monkeypatch)
    source_only, coal = ON_EMBEDDINGS[:2]
    frozen = (source_only, next(one for one in ON_EMBEDDINGS if one.method == "lda"), coal)
    for module in (members, pipeline):
        monkeypatch.setattr(module, "FROZEN", frozen)
    monkeypatch.setattr(
        members, "choose_members", lambda candidates, networks: CHOSEN[len(candidates)]
    )
    monkeypatch.setattr(members, "refit_joins", lambda outputs, task: True)
    seen = []

    def guided(setup: Setup, answers: NDArray[np.float32]) -> Setup:
        seen.append(answers)
        return add_answers(setup, answers)

    add_answers = Setup.guided
    monkeypatch.setattr(Setup, "guided", guided)
    again = dataclasses.replace(GUIDED_BY_ALL, name="guided again", guided_by=("guided",))
    monkeypatch.setitem(AUTO, "guided pictures", (SOURCE_ONLY, GUIDED, again))
    weights = tmp_path / "weights.safetensors"
    save_file(models.resnet18().state_dict(), weights)
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 8, 90),
        photographs(tmp_path / "t", ("red",), 6, 0),
    )
    training = {
        "pretrain": 3,
        "rounds": 1,
        "round": 6,
        "batch": 2,
        "crop": "32",
        "precision": "float32",
        "lr": 1e-3,
    }
    request = AdaptRequest(
        source, target, "auto", "resnet18", str(weights), tuned=True, training=training
    )
    out, expected, keys = tmp_path / "out", list[tuple[int, int]](), set[str]()
    steps = adapt(request, out, CPU, lambda trainings, later: expected.append((trainings, later)))
    found = finish(steps, lambda step: keys.add(step.key))
    assert not found.failed
    assert expected == [(6, 3), (7, 0)], (
        "source, coal and what they continue, lda and a refit; the same fine-tuned"
    )
    assert len(keys - {"reading", "statistics", "embeddings", "choice"}) == 13, (
        "all of them were counted"
    )
    *_, refit, ensemble = found.trained
    assert [t.candidate.name for t in found.trained] == [
        "source",
        "guided",
        "guided again",
        "lda, frozen",
        "coal, balanced target, frozen",
        "lda, from their answers",
        "ensemble",
    ]
    answers, more_answers = seen
    assert answers.shape == more_answers.shape == (6, 2)
    np.testing.assert_allclose(answers.sum(axis=1), 1, atol=1e-5)
    assert not np.array_equal(answers, more_answers), (
        "the fine-tuned network has a say in the second"
    )
    assert found.setup.task.training_data.answers is answers
    assert [t.answers is one for t, one in zip(found.trained[1:3], seen, strict=True)] == [
        True,
        True,
    ]
    assert found.trained[1].run.before == found.trained[2].run.before, (
        "answers come after pre-training"
    )
    assert [one.candidate.weight for one in ensemble.members] == [1, 2, 0.5, 0.5, 4], (
        "as much as all together"
    )
    assert [one.embedders is not None for one in ensemble.members] == [
        False,
        False,
        True,
        True,
        True,
    ]
    networks = score_networks([t.outputs for t in found.trained[:-2]])
    names = {
        refit.candidate.name: f"{FROZEN}+centred",
        ensemble.candidate.name: f"resnet18+bottleneck||resnet18+bottleneck||{FROZEN}+centred|mlp.unit|centred",
        "coal, balanced target, frozen": f"{FROZEN}+mlp",
    }
    for number, one in enumerate(found.trained):
        if one.candidate.name in names:
            scored = score_another(networks, one.outputs)
            chosen = dataclasses.replace(found, chosen=number, temperature=scored.temperature)
            predictor(chosen).save(out / "model")
            model = load(out, "cpu")
            assert model.card.net.name == names[one.candidate.name]
            probabilities = model.predict_proba(
                [target / name for name in found.setup.data.target.names]
            )
            np.testing.assert_allclose(
                probabilities, softmax(scored.outputs.target_uniform), atol=5e-3
            )


def test_nothing_is_guided_by_a_network_that_failed_or_has_no_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = np.full((3, 2), 0.5, dtype=np.float32)

    def answers(*_: Any) -> Generator[Progress, None, tuple[NDArray[np.float32], dict[str, str]]]:
        return first.copy(), {}
        yield

    monkeypatch.setattr(members, "answer_together", answers)
    setup: Any = SimpleNamespace(task=SimpleNamespace(training_data=SimpleNamespace(answers=first)))
    nothing: Any = None
    for known in (("teacher", "guided"), ("teacher",), ()):
        trained: Any = [
            SimpleNamespace(candidate=SimpleNamespace(name=name)) for name in ("source", *known)
        ]
        steps = train_guided([GUIDED_BY_ALL], trained, [], setup, nothing, nothing, nothing, CPU)
        more, failed = finish(steps)
        assert not more
        missing = [name for name in ("teacher", "guided") if name not in known]
        sentence = f"{' and '.join(missing)}, whose answers it begins with, failed."
        assert failed == ({GUIDED_BY_ALL.name: sentence} if missing else {})


def test_a_guided_teacher_that_is_asked_for_begins_with_answers_of_networks_that_are_no_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow_resnets(monkeypatch)
    lda = next(one for one in ON_EMBEDDINGS if one.method == "lda")
    for module in (members, pipeline):
        monkeypatch.setattr(module, "FROZEN", (ON_EMBEDDINGS[0], lda))
    weights = tmp_path / "weights.safetensors"
    save_file(models.resnet18().state_dict(), weights)
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 8, 90),
        photographs(tmp_path / "t", ("red",), 6, 0),
    )
    training = {
        "pretrain": 3,
        "rounds": 1,
        "round": 3,
        "batch": 2,
        "crop": 32,
        "precision": "float32",
        "lr": 1e-3,
    }
    request = AdaptRequest(
        source, target, "guided", "resnet18", str(weights), tuned=True, training=training
    )
    found = finish(adapt(request, tmp_path / "out", CPU))
    assert [t.candidate.name for t in found.trained] == ["source", "guided"]
    assert found.winner.candidate.name == "guided"
    answers = found.setup.task.training_data.answers
    assert answers is not None
    assert answers.shape == (6, 2)
    assert found.winner.run.net.norm == "kept"
    predictor(found).save(tmp_path / "model")
    probabilities = load(tmp_path / "model", "cpu").predict_proba(
        [target / n for n in found.setup.data.target.names]
    )
    np.testing.assert_allclose(probabilities, found.probabilities, atol=5e-3)


def test_frozen_candidates_count_their_share_of_fine_tuned_ones_and_each_kind_is_chosen_by_itself() -> (
    None
):
    rng = np.random.default_rng(0)

    def network(right: float) -> DomainOutputs:
        y = rng.integers(3, size=300)
        z = rng.normal(size=(300, 3)) + right * np.eye(3)[y]
        return DomainOutputs.of(z[:100], y[:100], z[100:], np.full(3, 1 / 3))

    kinds = (SOURCE_ONLY, MCC, TEACHER_OF_VIEWS, *ON_EMBEDDINGS[1:5])
    outputs = [network(0.5), *(network(4) for _ in kinds[1:])]
    chosen = dict(choose_members(kinds, score_networks(outputs)))
    assert chosen[1] < chosen[2]
    tuned, frozen = (sum(chosen.get(i, 0) for i in kind) for kind in ((1, 2), range(3, 7)))
    assert frozen == pytest.approx(FROZEN_SHARE * tuned)
    alone = dict(choose_members(kinds[:3], score_networks(outputs[:3])))
    assert set(alone.items()) <= {(1, 1.0), (2, 2.0)}, (
        "without others, each counts as much as it says"
    )
    assert not choose_members(kinds[:2], score_networks([network(5), network(0)])), (
        "source-only is preferred"
    )


def test_a_quick_look_takes_some_pictures_and_one_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_backbone: None
) -> None:
    source = photographs(tmp_path / "s", ("red", "green"), 8, 90)
    target = photographs(tmp_path / "t", ("red", "green"), 8, 0)
    monkeypatch.setattr(adapting, "QUICK_IMAGES", 6)
    request = AdaptRequest(
        source, target, "auto", "resnet18", "none", quick=True, training={"batch": 4, "round": 5}
    )
    assert [c.name for c in request.candidates("images")] == ["source", "teacher"]
    setup = finish(set_up(request, tmp_path / "out", CPU))
    training_data = setup.data.task.training_data
    assert (
        len(training_data.source) + len(training_data.source_val),
        len(training_data.target),
    ) == (6, 6)
    assert setup.training == {**adapting.QUICK, "batch": 4, "round": 5}, (
        "what was asked for goes before what is quick"
    )
    wanted = Embedding(backbone="resnet18", crop=32, pooling="gem", statistics="both")
    assert setup.backbone == wanted, "nobody waits for corners"


@pytest.mark.parametrize(
    ("most", "method", "corners", "statistics"),
    [(6, "coal", True, "both"), (5, "coal", False, "both"), (6, "source", True, "original")],
)
def test_corners_are_seen_where_images_are_few_and_statistics_are_the_domains_where_it_is_adapted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_backbone: None,
    most: int,
    method: str,
    corners: bool,
    statistics: str,
) -> None:
    monkeypatch.setattr(adapting, "FEW_IMAGES", most)
    x = np.random.default_rng(0).integers(0, 255, (4, 40, 40, 3)).astype(np.uint8)
    np.savez(tmp_path / "s.npz", x=x, y=[0, 1] * 2)
    np.savez(tmp_path / "t.npz", x=x[:2])
    arrays = AdaptRequest(tmp_path / "s.npz", tmp_path / "t.npz", method, "resnet18", "none")
    pictures = AdaptRequest(
        photographs(tmp_path / "s", ("red", "green"), 2, 90),
        photographs(tmp_path / "t", ("red",), 2, 0),
        method,
        "resnet18",
        "none",
    )
    for number, request in enumerate((arrays, pictures)):
        backbone = finish(set_up(request, tmp_path / f"out {number}", CPU)).backbone
        assert backbone is not None
        found = (backbone.backbone, backbone.pooling, backbone.corners, backbone.statistics)
        assert found == ("resnet18", "gem", corners, statistics)


def test_embeddings_are_what_the_network_says_of_each_picture(
    tmp_path: Path, small_backbone: None
) -> None:
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 5, 90),
        photographs(tmp_path / "t", ("red",), 4, 0),
    )
    data = adapting.load_custom_data(source, target)
    embedding = Embedding(backbone="resnet18", crop=32)
    task = finish(embedded(data.task, embedders(embedding, (3, 256, 256), CPU)))
    with torch.no_grad():
        network = frozen(embedding, (3, 256, 256))
        for view in ("source", "source_val", "target"):
            images, rows = (getattr(t.training_data, view).x for t in (data.task, task))
            for i in range(len(rows)):
                alone = network(torch.from_numpy(np.asarray(images[i : i + 1])))[0].numpy()
                assert np.linalg.norm(rows[i] - alone) <= 0.02 * np.linalg.norm(
                    alone
                )  # it may be in bfloat16
    assert task.training_data.source.y.tolist() == data.task.training_data.source.y.tolist()


def test_small_images_in_an_array_train_a_small_network_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (24, 32, 32, 3)).astype(np.uint8)
    np.savez(tmp_path / "s.npz", x=x, y=[0, 1] * 12)
    np.savez(tmp_path / "t.npz", x=x[::-1][:10])
    request = AdaptRequest(tmp_path / "s.npz", tmp_path / "t.npz", "source", training=LENGTH)
    found = finish(adapt(request, tmp_path / "out", CPU))
    assert (found.setup.network, found.setup.backbone) == ("mini", None)
    assert found.sentence.startswith("The network was trained on the source alone")
    assert predictor(found).predict(x[::-1][:10]).shape == (10,)
    assert "A104" in {r.code for r in adaptation_findings(found)}


def test_what_stands_on_a_backbone_is_a_network_of_rows() -> None:
    parts, width = build(parse_network("resnet18+mlp", crop=0), (3, 32, 32), 2, 0)
    assert width == 256
    assert parts["features"].eval()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 256)
    with pytest.raises(UserError, match=r"There is no network 'resnet18\+mini'") as caught:
        build(parse_network("resnet18+mini"), (3, 32, 32), 2, 0)
    assert caught.value.hint == "after a +: mlp, bottleneck, bare or centred."


def test_weights_that_cannot_be_had_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = (
        photographs(tmp_path / "s", ("red", "green"), 3, 90),
        photographs(tmp_path / "t", ("red",), 2, 0),
    )

    def offline(*args: Any, **more: Any) -> Any:
        raise URLError(OSError("no route to host"))

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(
        UserError, match="The weights of resnet50 could not be fetched: no route to host"
    ) as caught:
        finish(set_up(AdaptRequest(source, target), tmp_path / "out", CPU))
    assert "--weights FILE" in caught.value.hint
    with pytest.raises(UserError, match=r"The weights file no\.safetensors does not exist"):
        finish(
            set_up(AdaptRequest(source, target, weights="no.safetensors"), tmp_path / "out", CPU)
        )
