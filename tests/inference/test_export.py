"""A model in other forms gives the same, from raw input on, and says what goes in and what comes
out."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import (
    CLASSES,
    EMBEDDED,
    TARGET,
    images,
    predictor,
    refused,
    rows,
    shallow_resnets,
    softmax,
)

from askew.inference import export as module
from askew.inference.export import export
from askew.inference.predictor import Predictor
from askew.nets.adabn import domain_norms


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """torch warns that its own TorchScript is old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_onnx_takes_raw_pixels_in_batches_of_any_size_and_tells_its_form(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = predictor("mini", (3, 32, 32))
    assert export(model, tmp_path / "m.onnx", "onnx", "target") <= 1e-4
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    session = onnxruntime.InferenceSession(
        str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"]
    )
    for n in (1, 7):
        x = images(n, 3, 32, 32)
        (logits,) = session.run(None, {"x": x})
        assert softmax(logits) == pytest.approx(model.predict_proba(x, "target"), abs=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["askew"])
    assert about["classes"] == list(CLASSES)
    assert about["input"]["dtype"] == "uint8"
    assert about["input"]["shape"] == ["n", 3, 32, 32]
    assert about["prior"] == pytest.approx(TARGET)


def test_torchscript_has_the_centre_crop_and_the_scaling_inside(tmp_path: Path) -> None:
    model = predictor("resnet18+mlp", (3, 40, 40))
    assert export(model, tmp_path / "m.pt", "torchscript", "seen") <= 1e-4
    assert model.card.net.crop == 32
    about: dict[str, Any] = {"askew.json": ""}
    loaded = torch.jit.load(tmp_path / "m.pt", _extra_files=about)
    x = images(3, 3, 5, 5).repeat(8, axis=2).repeat(8, axis=3)
    logits = loaded(torch.from_numpy(x)).detach().numpy()
    assert np.ptp(logits, axis=0).max() > 0.01, "it tells these images apart"
    exact = (
        model.classifier(torch.from_numpy(x)).detach().numpy()
    )  # `logits` may compute in bfloat16
    assert logits == pytest.approx(exact, abs=1e-3, rel=1e-4)
    edge = x.copy()
    edge[:, :, :4], edge[:, :, 36:], edge[..., :4], edge[..., 36:] = 0, 0, 0, 0
    assert (loaded(torch.from_numpy(edge)).detach().numpy() == logits).all(), (
        "what the crop leaves out does not matter"
    )
    edge[:, :, 4:8] = 0
    assert np.abs(loaded(torch.from_numpy(edge)).detach().numpy() - logits).max() > 1e-3, (
        "what it leaves in does"
    )
    assert "all scaling and cropping is inside" in json.loads(about["askew.json"])["input"]["form"]


@pytest.mark.parametrize(("form", "corners"), [("torchscript", True), ("program", False)])
def test_corners_of_an_image_and_statistics_of_its_domain_are_inside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, corners: bool
) -> None:
    shallow_resnets(monkeypatch)  # an exporter reads it layer by layer
    model = predictor("resnet18+mlp", (3, 40, 40), corners=corners, **EMBEDDED)
    norms = domain_norms(model.classifier)
    assert norms is not None
    norms.estimate([torch.from_numpy(images(8, 3, 40, 40))])
    model = Predictor(model.card, model.classifier.net.state_dict(), "cpu")
    x = torch.from_numpy(images(3, 3, 40, 40))
    exact = model.classifier(x).detach().numpy()
    file = tmp_path / "model"
    assert export(model, file, form, "seen") <= 1e-4
    loaded = torch.jit.load(file) if form == "torchscript" else torch.export.load(file).module()
    assert loaded(x).detach().numpy() == pytest.approx(exact, abs=1e-3, rel=1e-4)


def test_a_program_takes_rows_in_batches_of_any_size(tmp_path: Path) -> None:
    model = predictor()
    assert export(model, tmp_path / "m.pt2", "program") <= 1e-4
    about = {"askew.json": ""}
    loaded = torch.export.load(tmp_path / "m.pt2", extra_files=about).module()
    for n in (1, 7):
        logits = loaded(torch.from_numpy(rows(n))).detach().numpy()
        assert softmax(logits) == pytest.approx(model.predict_proba(rows(n)), abs=1e-4)
    assert json.loads(about["askew.json"])["input"]["dtype"] == "float32"


def test_exporting_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = predictor()
    before = model.logits(rows())
    export(model, tmp_path / "m.pt", "torchscript")
    assert (model.logits(rows()) == before).all()


@pytest.mark.parametrize("off", [1e-2, np.nan])
def test_a_file_that_gives_other_logits_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    def wrong(graph: torch.nn.Module, card: Any, file: Path, about: str) -> Any:
        file.write_text(about)
        return lambda x: graph(x).detach().numpy() + off

    monkeypatch.setitem(module.WRITERS, "onnx", wrong)
    assert "gives other logits than the model" in refused(
        lambda: export(predictor(), tmp_path / "m.onnx", "onnx")
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["onnxruntime", "onnxscript"])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert f"needs {library}, which is not installed" in refused(
        lambda: export(predictor(), tmp_path / "m.onnx", "onnx")
    )
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_before_any_work(tmp_path: Path) -> None:
    assert "no form 'tflite'" in refused(lambda: export(predictor(), tmp_path / "m", "tflite"))
    assert "Cannot write" in refused(lambda: export(predictor(), tmp_path / "no" / "m", "onnx"))
    assert "Cannot write" in refused(lambda: export(predictor(), tmp_path, "program"))
    # type: ignore[arg-type]
    assert "no prior" in refused(lambda: export(predictor(), tmp_path / "m", "program", "sauce"))
    assert not list(tmp_path.iterdir())
