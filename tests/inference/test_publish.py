"""Models on the Hub, which here is a stand-in on 127.0.0.1."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from hub_server import Hub, serve_hub

import askew
from askew.core.errors import UserError
from askew.data.benchmarks.download import fetch_images
from askew.inference.publish import model_card, push

pytest.importorskip("huggingface_hub", reason="the extra `hub` brings it")
pytestmark = pytest.mark.filterwarnings(
    "ignore:Use 'content=:DeprecationWarning"
)  # the client's, about its own library

GOLDEN = Path(__file__).parents[1] / "golden" / "adaptation"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The client's cache is in the test's folder, and large files go by LFS: Xet has a protocol of
    its own."""
    from huggingface_hub import _commit_api, constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    monkeypatch.setattr(_commit_api, "is_xet_available", lambda: False)
    monkeypatch.setenv("HF_TOKEN", "hf_a_token_of_nobody")
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished adaptation."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "out"))


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)


def test_a_pushed_model_predicts_as_the_one_at_home(hub: Hub, out: Path, cli: Command) -> None:
    answer = cli("push", out, "lab/trees", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out) == {
        "address": f"{hub.address}/lab/trees",
        "model": "hf://lab/trees",
    }
    assert hub.private == {"lab/trees": True}
    here, there = askew.load(out), askew.load("hf://lab/trees")
    assert there.classes == here.classes == ("ash", "birch", "cedar")
    np.testing.assert_array_equal(there.logits(rows()), here.logits(rows()))


def test_only_the_model_and_its_card_leave_the_machine(hub: Hub, out: Path) -> None:
    push(out, "lab/trees", public=True)
    files = hub.files["models/lab/trees"]
    (weights,) = (name for name in files if name.startswith("weights-"))
    assert set(files) == {".gitattributes", "README.md", "model.json", weights}
    assert hub.private == {"lab/trees": False}
    assert str(out).encode() not in b"".join(files.values())


def test_a_second_push_replaces_the_weights_of_the_first(hub: Hub, out: Path) -> None:
    push(out, "lab/trees")
    hub.files["models/lab/trees"] |= {
        "weights-0123456789abcdef.safetensors": b"older",
        "notes.md": b"mine",
    }
    push(out, "lab/trees")
    names = set(hub.files["models/lab/trees"])
    assert "weights-0123456789abcdef.safetensors" not in names
    assert "notes.md" in names
    assert len(hub.commits) == 2


def test_the_card_tells_data_distributions_verdict_and_limits(hub: Hub, out: Path) -> None:
    push(out, "lab/trees")
    card, summary = (
        hub.files["models/lab/trees"]["README.md"].decode(),
        json.loads((out / "summary.json").read_text()),
    )
    front, _, text = card.removeprefix("---\n").partition("---\n")
    assert 'library_name: "askew"' in front
    assert "| unlabelled target | 90 |" in text
    assert summary["sentence"] in text
    assert "## Audit" not in text
    assert "its accuracy on the target is not known" in text
    source = askew.load(out).card.source_prior
    assert source is not None
    assert f"| birch | {100 * source[1]:.1f} |" in text
    assert 'askew.load("hf://lab/trees")' in text


def test_the_card_reports_an_audit_where_labels_are_given(
    hub: Hub, out: Path, tmp_path: Path, cli: Command
) -> None:
    names = [line.split(",")[0] for line in (out / "predictions.csv").read_text().splitlines()[1:]]
    labels = tmp_path / "labels.csv"
    given = [f"{name},{('ash', 'birch', 'cedar')[i % 3]}\n" for i, name in enumerate(names)]
    labels.write_text("path,label\n" + "".join(given))
    assert cli("push", out, "lab/trees", "--audit", labels).code == 0
    text = hub.files["models/lab/trees"]["README.md"].decode()
    assert "## Audit" in text
    assert "90 of 90 target images are labelled" in text
    assert "is not known" not in text


def test_a_class_name_cannot_break_the_card(out: Path) -> None:
    import dataclasses

    model = askew.load(out)
    model.card = dataclasses.replace(model.card, classes=("a|b", "<script>", "c\n# d"))
    text = model_card("lab/trees", model, None)
    assert "| a\\|b |" in text
    assert "<script>" not in text
    assert "\n# d" not in text


@pytest.mark.parametrize(
    "content", ["", "{" * 10**5, '{"sentence": 1}', '{"sentence": "", "findings": [1]}']
)
def test_a_summary_that_is_none_is_refused_before_anything_is_sent(
    hub: Hub, out: Path, content: str
) -> None:
    (out / "summary.json").write_text(content)
    with pytest.raises(UserError, match="is not what askew wrote"):
        push(out, "lab/trees")
    assert not hub.files


def test_a_model_s_revision_may_be_named_and_a_path_too(
    hub: Hub, out: Path, tmp_path: Path, cli: Command
) -> None:
    push(out, "lab/trees")
    np.save(tmp_path / "rows.npy", rows())
    assert (
        cli("predict", "hf://lab/trees@main", tmp_path / "rows.npy", "-o", tmp_path / "p.csv").code
        == 0
    )
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 6


@pytest.mark.parametrize("name", ["trees", "lab/", "../x", "a b/c", "lab/trees/more"])
def test_a_wrong_name_is_refused_before_anything_is_sent(hub: Hub, out: Path, name: str) -> None:
    with pytest.raises(UserError, match="is not the name of a repository"):
        push(out, name)
    assert not hub.files


def test_what_the_hub_refuses_is_one_sentence(
    hub: Hub, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="shows no repository lab/none"):
        askew.load("hf://lab/none")
    with pytest.raises(UserError, match="no address of the Hub"):
        askew.load("hf://lab")
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
    with pytest.raises(UserError, match=r"(?s)hf auth login"):
        push(out, "lab/trees")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be reached"):
        askew.load("hf://lab/other")


# --- Office-Home ---

COUNTS = {"Art": 2, "Real World": 3}


def images(features: bool, bad: str = "") -> bytes:
    """A Parquet file as the Hub's library writes it: pictures as bytes, classes as numbers with
    their names beside."""
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from PIL import Image

    drawn = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(drawn, "JPEG")
    domains = [name for name, n in COUNTS.items() for _ in range(n)]
    image = [
        {"bytes": drawn.getvalue(), "path": f"{i:05}.jpg" if i else None}
        for i in range(len(domains))
    ]
    names = {"domain": list(COUNTS), "label": ["Alarm_Clock", bad or "Backpack"]}
    values = {
        "image": image,
        "domain": [names["domain"].index(d) for d in domains],
        "label": [0, 1, 0, 1, 1],
    }
    if not features:
        values |= {"domain": domains, "label": [names["label"][k] for k in values["label"]]}
    table = pa.table(values)
    if features:
        described = {c: {"names": n, "_type": "ClassLabel"} for c, n in names.items()} | {
            "image": {"_type": "Image"}
        }
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": described}})}
        )
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


@pytest.mark.parametrize("features", [True, False], ids=["numbers", "names"])
def test_a_data_set_of_the_hub_becomes_folders(hub: Hub, tmp_path: Path, features: bool) -> None:
    hub.files["datasets/lab/home"] = {
        "data/train-00000-of-00001.parquet": images(features),
        "README.md": b"",
    }
    assert fetch_images("lab/home", tmp_path / "data" / "home", COUNTS, lambda n: None) == COUNTS
    found = sorted(
        str(p.relative_to(tmp_path / "data" / "home")) for p in tmp_path.glob("data/home/*/*/*")
    )
    assert found == [
        "Art/Alarm_Clock/00001.jpg",
        "Art/Backpack/00001.jpg",
        "Real World/Alarm_Clock/00002.jpg",
        "Real World/Backpack/00003.jpg",
        "Real World/Backpack/00004.jpg",
    ]
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["home"]


@pytest.mark.parametrize(
    ("bad", "why"), [("", "were published"), ("../../up", "no name of a folder")]
)
def test_a_data_set_that_has_changed_leaves_nothing(
    hub: Hub, tmp_path: Path, bad: str, why: str
) -> None:
    hub.files["datasets/lab/home"] = {"data/train-00000-of-00001.parquet": images(True, bad)}
    with pytest.raises(UserError, match=why):
        fetch_images("lab/home", tmp_path / "data" / "home", COUNTS | {"Art": 3}, lambda n: None)
    assert list((tmp_path / "data").iterdir()) == []


def test_office_home_is_fetched_from_its_copy_and_compared_with_our_counts(
    hub: Hub, tmp_path: Path, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["datasets/flwrlabs/office-home"] = {"data/train-00000-of-00001.parquet": images(True)}
    answer = cli("data", "fetch", "office-home", "--data", tmp_path / "data")
    assert answer.code == 2
    assert "4,357 of Real World" in answer.err
    monkeypatch.setattr("askew.data.benchmarks.inventory.OFFICE_HOME_IMAGES", COUNTS)
    answer = cli("data", "fetch", "office-home", "--data", tmp_path / "data")
    assert answer.code == 0, answer.err
    assert "5 images of 2 domains" in answer.out
    assert (tmp_path / "data" / "office_home" / "Real World").is_dir()
    assert cli("data", "fetch", "office-home", "--data", tmp_path / "data").code == 2
