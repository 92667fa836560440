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
    """torch's exporters warn about their own parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def session_of(file: Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def logits_of(session: Any, x: np.ndarray) -> np.ndarray:
    (logits,) = session.run(None, {"x": x})
    return np.asarray(logits)


def test_onnx_takes_raw_pixels_in_batches_of_any_size(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = predictor("mini", (3, 32, 32))
    assert export(model, tmp_path / "m.onnx", "target") <= 1e-4
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
    session = session_of(tmp_path / "m.onnx")
    for n in (1, 7):
        x = images(n, 3, 32, 32)
        wanted = model.predict_proba(x, "target")
        assert softmax(logits_of(session, x)) == pytest.approx(wanted, abs=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["askew"])
    assert about["classes"] == list(CLASSES)
    assert about["input"]["dtype"] == "uint8"
    assert about["input"]["shape"] == ["n", 3, 32, 32]
    assert about["shares"] == pytest.approx(TARGET)


def test_centre_crop_and_scaling_are_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    shallow_resnets(monkeypatch)  # an exporter reads it layer by layer
    model = predictor("resnet18+mlp", (3, 40, 40))
    assert export(model, tmp_path / "m.onnx", "training") <= 1e-4
    assert model.card.net.crop == 32
    session = session_of(tmp_path / "m.onnx")
    x = images(3, 3, 5, 5).repeat(8, axis=2).repeat(8, axis=3)
    logits = logits_of(session, x)
    assert np.ptp(logits, axis=0).max() > 0.01, "it tells these images apart"
    exact = (
        model.classifier(torch.from_numpy(x)).detach().numpy()
    )  # `logits` may compute in bfloat16
    assert logits == pytest.approx(exact, abs=1e-3, rel=1e-4)
    edge = x.copy()
    edge[:, :, :4], edge[:, :, 36:], edge[..., :4], edge[..., 36:] = 0, 0, 0, 0
    assert (logits_of(session, edge) == logits).all(), "what the crop leaves out does not matter"
    edge[:, :, 4:8] = 0
    assert np.abs(logits_of(session, edge) - logits).max() > 1e-3, "what it leaves in does"
    about = json.loads(session.get_modelmeta().custom_metadata_map["askew"])
    assert "all scaling and cropping is inside" in about["input"]["form"]


@pytest.mark.parametrize("corners", [True, False])
def test_corners_and_domain_statistics_are_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corners: bool
) -> None:
    pytest.importorskip("onnxruntime")
    shallow_resnets(monkeypatch)  # an exporter reads it layer by layer
    model = predictor("resnet18+mlp", (3, 40, 40), corners=corners, **EMBEDDED)
    norms = domain_norms(model.classifier)
    assert norms is not None
    norms.estimate([torch.from_numpy(images(8, 3, 40, 40))])
    model = Predictor(model.card, model.classifier.net.state_dict(), "cpu")
    x = images(3, 3, 40, 40)
    exact = model.classifier(torch.from_numpy(x)).detach().numpy()
    file = tmp_path / "m.onnx"
    assert export(model, file, "training") <= 1e-4
    assert logits_of(session_of(file), x) == pytest.approx(exact, abs=1e-3, rel=1e-4)


def test_onnx_takes_rows_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = predictor()
    before = model.logits(rows())
    assert export(model, tmp_path / "m.onnx") <= 1e-4
    assert (model.logits(rows()) == before).all()
    session = session_of(tmp_path / "m.onnx")
    for n in (1, 7):
        wanted = model.predict_proba(rows(n))
        assert softmax(logits_of(session, rows(n))) == pytest.approx(wanted, abs=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["askew"])
    assert about["input"]["dtype"] == "float32"


@pytest.mark.parametrize("off", [1e-2, np.nan])
def test_a_file_that_gives_other_logits_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    def wrong(graph: torch.nn.Module, card: Any, file: Path, about: str) -> Any:
        file.write_text(about)
        return lambda x: graph(x).detach().numpy() + off

    monkeypatch.setattr(module, "_write_onnx", wrong)
    assert "gives other logits than the model" in refused(
        lambda: export(predictor(), tmp_path / "m.onnx")
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("library", ["onnxruntime", "onnxscript"])
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert f"needs {library}, which is not installed" in refused(
        lambda: export(predictor(), tmp_path / "m.onnx")
    )
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused_before_any_work(tmp_path: Path) -> None:
    for name in ("m.pt", "m.pt2", "M.PT"):
        assert "askew exports no " in refused(
            lambda name=name: export(predictor(), tmp_path / name)
        )
    assert "Cannot write" in refused(lambda: export(predictor(), tmp_path / "no" / "m"))
    assert "Cannot write" in refused(lambda: export(predictor(), tmp_path))
    wrong: Any = "sauce"
    assert "no label distribution" in refused(lambda: export(predictor(), tmp_path / "m", wrong))
    assert not list(tmp_path.iterdir())
