"""`askew.adapt` and its neighbours in Python, and that the command gives the same."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adaptations import LENGTH
from conftest import Command
from own_files import flat, tree
from PIL import Image
from torch import Tensor, nn

import askew
from askew import UserError
from askew.methods import COAL
from askew.nets import modules

pytestmark = pytest.mark.usefixtures("small_maps")

NAMES = np.array(["cat", "dog", "owl"])


def clouds(n: int, shares: tuple[float, ...], offset: float, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.choice(3, n, p=shares)
    return (3 * np.eye(3, 6)[y] + rng.normal(size=(n, 6)) + offset).astype(np.float32), NAMES[y]


XS, YS = clouds(120, (0.5, 0.3, 0.2), 0.0, 0)
XT, YT = clouds(80, (0.2, 0.3, 0.5), 0.4, 1)


@pytest.fixture(scope="module")
def result() -> askew.AdaptationResult:
    return askew.adapt((XS, YS), XT, methods=COAL(alpha=0.2), training=LENGTH, device="cpu")


def test_a_result_has_predictions_a_model_a_report_and_a_summary(
    result: askew.AdaptationResult,
) -> None:
    pytest.importorskip("pandas", reason="predictions are a DataFrame")
    table = result.predictions
    assert table.columns.tolist() == [
        "path",
        "class",
        "probability",
        "p_cat",
        "p_dog",
        "p_owl",
        "unknown",
    ]
    assert table["class"].tolist() == result.model.predict(XT).tolist()
    assert (table["class"] == YT).mean() > 0.8
    assert result.report.read_text().startswith("<!doctype html>")
    written = json.loads((result.folder / "summary.json").read_text())
    assert written.pop("files")
    assert written == json.loads(json.dumps(result.summary))
    assert result.summary["saved"] == "coal"
    assert len(repr(result).splitlines()) == 1
    assert "<script" not in result._repr_html_()
    assert "<th>method</th>" in result._repr_html_()


def test_without_a_folder_the_files_last_as_long_as_the_result() -> None:
    x, y = XS[:30], YS[:30]
    found = askew.adapt((x, y), XT[:20], methods="source", training=LENGTH, device="cpu")
    folder = found.folder
    assert (folder / "predictions.csv").exists()
    del found
    gc.collect()
    assert not folder.exists()


def test_a_method_object_brings_its_hyper_parameters(result: askew.AdaptationResult) -> None:
    assert result.adaptation.final.run.method == COAL(alpha=0.2)


def test_the_command_gives_the_same_as_the_function(
    result: askew.AdaptationResult, cli: Command, tmp_path: Path
) -> None:
    np.savez(tmp_path / "s.npz", x=XS, y=YS)
    np.save(tmp_path / "t.npy", XT)
    training = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
    alpha = [f"--param={name}={value}" for name, value in vars(COAL(alpha=0.2)).items()]
    answer = cli(
        "adapt",
        "s.npz",
        "t.npy",
        "-o",
        "out",
        "-m",
        "coal",
        *alpha,
        *training,
        "--device",
        "cpu",
        "--json",
    )
    assert answer.code == 0, answer.err
    printed = json.loads(answer.out)
    assert [method["run"] for method in printed["methods"]] == [
        method["run"] for method in result.summary["methods"]
    ]
    assert printed["methods"] == json.loads(json.dumps(result.summary["methods"]))
    probabilities = askew.load(tmp_path / "out", "cpu").predict_proba(XT)
    assert (probabilities == result.model.predict_proba(XT)).all()


def test_a_data_frame_s_index_is_that_of_the_predictions() -> None:
    pandas = pytest.importorskip("pandas", reason="DataFrames are pandas'")
    columns = [f"f{i}" for i in range(6)]
    source = pandas.DataFrame(XS, columns=columns).assign(kind=YS)
    target = pandas.DataFrame(XT, columns=columns, index=[f"row {i}" for i in range(len(XT))])
    found = askew.adapt(
        source, target, label="kind", methods="source", training=LENGTH, device="cpu"
    )
    assert found.predictions.index.tolist() == target.index.tolist()
    assert found.predictions["path"].tolist() == target.index.tolist()


def test_columns_of_two_lists_are_found_by_the_names_that_are_given(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    files = sorted(source.rglob("*.png"))
    (tmp_path / "s.csv").write_text(
        "photo,kind\n" + "".join(f"{file},{file.parent.name}\n" for file in files)
    )
    (tmp_path / "t.csv").write_text(
        "photo\n" + "".join(f"{file}\n" for file in sorted(target.iterdir()))
    )
    lists = (tmp_path / "s.csv", str(tmp_path / "t.csv"))
    how = {
        "backbone": nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()),
        "training": LENGTH,
        "device": "cpu",
    }
    found = askew.diagnose(*lists, image="photo", label="kind", **how)
    assert found.summary["classes"] == sorted(folder.name for folder in source.iterdir())
    with pytest.raises(UserError, match="has no column 'picture'"):
        askew.adapt(*lists, image="picture", label="kind", methods="source", **how)


def test_labels_from_python_evaluate_every_method(result: askew.AdaptationResult) -> None:
    some = [str(label) if row < 30 else None for row, label in enumerate(YT)]
    found = askew.audit(result, some)
    assert found.labelled == 30
    assert (
        askew.audit(result, {row: label for row, label in enumerate(some) if label}).as_dict()
        == found.as_dict()
    )
    with pytest.raises(UserError, match="There are 3 labels and 80 target images"):
        askew.audit(result, some[:3])


def test_a_diagnosis_names_what_differs() -> None:
    joint = LENGTH | {"norm": "joint"}  # with statistics of each domain, so few rows show no shift
    model = askew.adapt((XS, YS), XT, methods=COAL(alpha=0.2), training=joint, device="cpu")
    found = askew.diagnose((XS, YS), XT, model=model)
    assert found.kind in ("label", "feature", "both")
    assert found.summary["classes"] == NAMES.tolist()
    assert found.sentence in repr(found)
    assert (
        found.shares.loc["owl", "low"]
        <= found.shares.loc["owl", "target"]
        <= found.shares.loc["owl", "high"]
    )
    assert "<td>owl</td>" in found._repr_html_()


class Colours(nn.Module):
    """Means of the channels, and a hidden layer that `view`s."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        f = self.layers(x)
        return f.view(len(f), 8, -1).mean(dim=2)


def painted(n: int, seed: int) -> tuple[Any, list[str]]:
    """Small pictures whose colour is their class."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = rng.integers(0, 90, (n, 3, 12, 12)) + 150 * np.eye(3, dtype=int)[y][:, :, None, None]
    return x.astype(np.uint8), NAMES[y].tolist()


@pytest.mark.parametrize("fine_tune", [False, True])
def test_any_module_is_a_backbone(fine_tune: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Colours()
    x, y = painted(60, 0)
    options: Any = {
        "methods": "source",
        "fine_tune": fine_tune,
        "training": LENGTH | {"lr": 0.05},
        "device": "cpu",
    }
    found = askew.adapt((x, y), painted(30, 1)[0], tmp_path / "out", backbone=module, **options)
    assert (found.predictions["class"] == painted(30, 1)[1]).mean() > 0.6
    assert not [r for r in found.summary["findings"] if r["code"] == "A101"], (
        "it is not called randomly initialised"
    )
    again = askew.load(tmp_path / "out", "cpu", backbone=module)
    assert (again.predict_proba(x) == found.model.predict_proba(x)).all()


BACKBONE = """
from torch import nn


def colours():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
"""


class Drawn(torch.utils.data.Dataset[Any]):
    """Pictures of Pillow's, by row."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> Image.Image:
        return Image.open(self.files[row])


def test_data_sets_of_pictures_give_what_the_command_gives_on_their_folders(
    cli: Command, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets", reason="data sets of Hugging Face's library")
    for part, n in (("source", 24), ("target", 12)):
        for i, (x, y) in enumerate(zip(*painted(n, len(part)), strict=True)):
            place = tmp_path / part / (f"{y}/{i:02}.png" if part == "source" else f"{i:02}.png")
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x.transpose(1, 2, 0)).save(place)
    (tmp_path / "mine.py").write_text(BACKBONE)
    training = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
    how = ("-m", "coal", "--backbone", "mine.py:colours", "--frozen", "--device", "cpu", *training)
    answer = cli("adapt", "source", "target", "-o", "out", *how, "--json")
    assert answer.code == 0, answer.err
    files = sorted((tmp_path / "source").rglob("*.png"))
    kinds = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=sorted(NAMES))}
    )
    columns = {
        "image": [str(file) for file in files],
        "label": [file.parent.name for file in files],
    }
    source = datasets.Dataset.from_dict(columns, features=kinds)
    found = askew.adapt(
        source,
        Drawn(sorted((tmp_path / "target").glob("*.png"))),
        methods="coal",
        backbone="mine.py:colours",
        fine_tune=False,
        training=LENGTH,
        device="cpu",
    )
    assert json.loads(answer.out)["methods"] == json.loads(json.dumps(found.summary["methods"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "_KNOWN", {})  # as in another process
        assert "--backbone" in cli("predict", "out", "target").err, "it asks for the code"
    answer = cli("predict", "out", "target", "--backbone", "mine.py:colours", "--device", "cpu")
    assert answer.code == 0, answer.err
    assert [line.split(",")[1] for line in answer.out.splitlines()[1:]] == found.predictions[
        "class"
    ].tolist()
    again = askew.load("out", "cpu", backbone="mine.py:colours")
    assert (
        again.predict_proba(Drawn(files).files) == found.model.predict_proba(Drawn(files).files)
    ).all()


def test_embeddings_are_in_the_order_of_the_images() -> None:
    x, _ = painted(6, 0)
    rows = askew.embed(x, nn.Flatten(), device="cpu")
    assert rows == pytest.approx(x.reshape(6, -1) / 255, abs=1e-6)
    one = askew.embed(
        [Image.fromarray(x[2].transpose(1, 2, 0))], nn.AdaptiveAvgPool2d(1), device="cpu"
    )
    assert one.shape == (1, 3)


def test_a_result_predicts_audits_and_has_all_models(result: askew.AdaptationResult) -> None:
    assert result.predict(XT).tolist() == result.model.predict(XT).tolist()
    audited = result.audit(YT)
    assert audited.labelled == len(XT)
    assert list(result.models) == [one.name for one in audited.methods]
    for number, (name, model) in enumerate(result.models.items()):
        assert isinstance(model, askew.Predictor)
        expected = result.adaptation.networks[number].predicted
        same = model.predict(XT) == np.array(model.classes)[expected]
        assert same.mean() > 0.95, name
    for shown in (repr(result), repr(audited), repr(result.adaptation), repr(result.model)):
        assert len(shown) < 400
        assert "\n" not in shown
