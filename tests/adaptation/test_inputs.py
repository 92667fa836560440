"""What an adaptation starts from: the network that suits the data, and how images are embedded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from adaptations import CPU, LENGTH, adapted, finish, photographs, request_for
from safetensors.torch import save_file
from torchvision import models

import askew
from askew import UserError
from askew.adaptation import inputs as reading
from askew.adaptation.api import adapt_steps
from askew.adaptation.inputs import read_domains
from askew.adaptation.request import AdaptRequest
from askew.data.objects import as_domain
from askew.inference import embeddings
from askew.inference.embeddings import embed_task, embedders, frozen_backbone
from askew.nets.embedding import Embedding
from askew.nets.network import build
from askew.nets.spec import parse_network

pytestmark = pytest.mark.usefixtures("small_maps")

RESNET: dict[str, Any] = {"backbone": "resnet18", "weights": "none"}


@pytest.fixture(autouse=True)
def small_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks see 32 pixels in place of 224, which is forty times faster."""
    usual = reading._embedding
    monkeypatch.setattr(
        reading, "_embedding", lambda images, count: replace(usual(images, count), crop=32)
    )


def two_folders(folder: Path, n: int = 4) -> tuple[Path, Path]:
    return (
        photographs(folder / "s", ("red", "green"), n, 90),
        photographs(folder / "t", ("red",), 2 * n, 0),
    )


def inputs_of(folder: Path, **changes: Any) -> reading.Inputs:
    request = request_for(*two_folders(folder), **(RESNET | changes))
    return finish(reading.read_inputs(request, folder / "out", CPU))


# --- which network ---


def test_images_on_a_cpu_are_embedded_by_a_frozen_backbone(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path)
    assert inputs.description == "mlp on embeddings of a frozen resnet18, 4 views"
    assert (inputs.kind, inputs.pixels, inputs.fine_tune) == ("images", None, False)
    assert inputs.rows is not None
    assert inputs.rows.task.training_data.source.x.shape[1:] == (512,)


def test_fine_tuning_trains_both_the_backbone_and_rows_of_it(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    save_file(models.resnet18().state_dict(), weights)
    inputs = inputs_of(tmp_path, fine_tune=True, weights=str(weights), quick=True)
    assert inputs.fine_tune
    assert inputs.pixels is not None
    assert inputs.pixels.network == "resnet18+bottleneck"


def test_one_method_that_is_fine_tuned_needs_no_embeddings(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, fine_tune=True, methods=("coal",))
    assert inputs.rows is None
    assert inputs.description == "resnet18+bottleneck, all of it trained"


def test_a_backbone_without_weights_is_trained_with_joint_statistics(tmp_path: Path) -> None:
    inputs = inputs_of(tmp_path, fine_tune=True)
    assert inputs.rows is None
    assert inputs.pixels is not None
    assert inputs.pixels.training["norm"] == "joint"


def test_small_images_train_a_small_network_whole(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 255, (24, 3, 32, 32)).astype(np.uint8)
    result = askew.adapt(
        (x, [0, 1] * 12), x[::-1][:10], methods="source", training=LENGTH, device="cpu"
    )
    assert result.summary["network"] == "mini, all of it trained"
    assert result.model.predict(x[:10]).shape == (10,)
    assert "A104" in {finding["code"] for finding in result.summary["findings"]}


def test_small_images_are_adapted_by_a_guided_network(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 90, (40, 3, 32, 32)).astype(np.uint8)
    y = np.arange(40) % 2
    x[y == 1, 0] += 120
    short = {"pretrain": 4, "rounds": 1, "round": 4, "batch": 4}
    result = askew.adapt((x, y), 255 - x[:20], training=short, device="cpu")
    names = [method["name"] for method in result.summary["methods"]]
    assert names == ["source", "fixmatch", "teacher", "guided"]
    assert result.summary["saved"] in ("guided", "source")
    assert result.model.card.net.name == "mini"


def test_rows_take_no_image_network(tmp_path: Path) -> None:
    rows = np.zeros((20, 4), np.float32)
    with pytest.raises(UserError, match="rows of numbers, which resnet18 does not take"):
        askew.adapt((rows, [0, 1] * 10), rows, backbone="resnet18")


# --- how images are embedded ---


def test_a_quick_look_takes_some_images_and_no_corners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "QUICK_IMAGES", 6)
    inputs = inputs_of(tmp_path, quick=True, training={"batch": 4, "round": 5})
    data = inputs.task.training_data
    assert (len(data.source) + len(data.source_val), len(data.target)) == (6, 6)
    assert inputs.rows is not None
    assert inputs.rows.training == {**reading.QUICK, "batch": 4, "round": 5}
    assert inputs.embedders is not None
    embedding = inputs.embedders.target.embedding
    assert (embedding.corners, embedding.statistics, embedding.pooling) == (False, "both", "gem")


@pytest.mark.parametrize(
    ("most", "method", "corners", "statistics"),
    [(6, "coal", True, "both"), (5, "coal", False, "both"), (6, "source", True, "original")],
)
@pytest.mark.parametrize("arrays", [True, False])
def test_few_images_have_corners_and_adapted_ones_their_own_statistics(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    method: str,
    corners: bool,
    statistics: str,
    arrays: bool,
) -> None:
    monkeypatch.setattr(reading, "FEW_IMAGES", most)
    source, target = tmp_path / "s.npz", tmp_path / "t.npz"
    x = np.random.default_rng(0).integers(0, 255, (4, 40, 40, 3)).astype(np.uint8)
    np.savez(source, x=x, y=[0, 1] * 2)
    np.savez(target, x=x[:2])
    if not arrays:
        source = photographs(tmp_path / "s", ("red", "green"), 2, 90)
        target = photographs(tmp_path / "t", ("red",), 2, 0)
    request = request_for(source, target, methods=(method,), **RESNET)
    embedders = finish(reading.read_inputs(request, tmp_path / "out", CPU)).embedders
    assert embedders is not None
    embedding = embedders.target.embedding
    assert (embedding.corners, embedding.statistics) == (corners, statistics)


def test_embeddings_are_what_the_network_computes_for_each_image(tmp_path: Path) -> None:
    data = reading.load_custom_data(*two_folders(tmp_path))
    spec = Embedding(backbone="resnet18", crop=32)
    task = finish(embed_task(data.task, embedders(spec, (3, 256, 256), CPU)))
    with torch.no_grad():
        network = frozen_backbone(spec, (3, 256, 256))
        for view in ("source", "source_val", "target"):
            images, rows = (getattr(t.training_data, view).x for t in (data.task, task))
            for i in range(len(rows)):
                alone = network(torch.from_numpy(np.asarray(images[i : i + 1])))[0].numpy()
                # It may be in bfloat16.
                assert np.linalg.norm(rows[i] - alone) <= 0.02 * np.linalg.norm(alone)
    assert task.training_data.source.y.tolist() == data.task.training_data.source.y.tolist()


def test_images_that_were_embedded_are_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs_of(tmp_path)
    monkeypatch.setattr(embeddings, "decode", lambda *args: pytest.fail("it was embedded"))
    request = request_for(tmp_path / "s", tmp_path / "t", **RESNET)
    assert finish(reading.read_inputs(request, tmp_path / "another", CPU)).rows is not None


def test_embedding_that_was_stopped_continues_with_the_next_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = photographs(tmp_path / "s", ("red", "green"), 5, 90)
    target = photographs(tmp_path / "t", ("red",), 4, 0)
    request = request_for(source, target, methods=("source",), **RESNET)
    monkeypatch.setattr("askew.inference.embeddings._BATCH", 4)
    monkeypatch.setattr("askew.data.row_cache.FILE_ROWS", 4)
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "cache"))
    work = adapt_steps(request, tmp_path / "out", CPU)
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
    again = list[int]()
    adapted(
        request,
        tmp_path / "out",
        lambda step: again.append(step.step) if step.key == "embeddings" else None,
    )
    assert (again[0], max(again)) == (4, 14), "the sound file is read; the target comes last"
    assert all(files()[p] == stamp for p, stamp in kept.items() if p != first)


# --- weights ---


def test_weights_that_cannot_be_fetched_are_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **more: Any) -> Any:
        raise URLError(OSError("no route to host"))

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(UserError, match="weights of resnet50 could not be fetched") as caught:
        inputs_of(tmp_path, backbone="", weights="hub")
    assert "--weights FILE" in caught.value.hint


def test_weights_in_a_file_that_does_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The weights file no\.safetensors does not exist"):
        inputs_of(tmp_path, weights="no.safetensors")


def test_what_stands_on_a_backbone_is_a_network_of_rows() -> None:
    parts, width = build(parse_network("resnet18+mlp", crop=0), (3, 32, 32), 2, 0)
    assert width == 256
    assert parts["features"].eval()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 256)
    with pytest.raises(UserError, match=r"There is no network 'resnet18\+mini'") as caught:
        build(parse_network("resnet18+mini"), (3, 32, 32), 2, 0)
    assert caught.value.hint == (
        "after a +: mlp, bottleneck, bare, centred, shifted, mlp-centred or bottleneck-centred."
    )


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_quick_look_takes_a_sample_of_arrays_too(tmp_path: Path, in_memory: bool) -> None:
    rng = np.random.default_rng(0)
    xs, xt = rng.normal(size=(900, 4)), rng.normal(size=(700, 4))
    ys = np.repeat(["a", "b", "c"], [600, 298, 2])
    source, target = tmp_path / "s.npz", tmp_path / "t.npz"
    np.savez(source, x=xs, y=ys)
    np.savez(target, x=xt)
    given = (as_domain((xs, ys), "source"), as_domain(xt, "target"))
    both = given if in_memory else (source, target)
    quick = read_domains(AdaptRequest(source=both[0], target=both[1], quick=True))
    whole = read_domains(AdaptRequest(source=both[0], target=both[1]))
    sizes = [sum(d.source_sizes) for d in (quick, whole)]
    assert 195 <= sizes[0] <= 205
    assert sizes[1] == 900
    assert quick.source_sizes[2] == 2, "no class is lost"
    assert len(quick.target.names) == 200
    rows = np.array(quick.target.names, dtype=int)
    np.testing.assert_array_equal(quick.target.x, xt[rows].astype(np.float32))
