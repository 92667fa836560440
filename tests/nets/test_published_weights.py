"""Published weights: their hash is checked in the cache too, and nothing in them is ever run."""

from __future__ import annotations

import hashlib
import pickle
from email.message import Message
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
import torch
from torchvision import models

from askew.core.errors import UserError
from askew.nets.backbones import build_backbone, first_weights
from askew.nets.embedding import Embedding
from askew.nets.spec import parse_network

HUB = parse_network("resnet18", weights="hub")
SHAPE = (3, 64, 64)


class Evil:
    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of torch's."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def publish(content: bytes, checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of resnet18 in the cache, whose name has their hash."""
    name = f"resnet18-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    weights = models.ResNet18_Weights.IMAGENET1K_V1.value
    monkeypatch.setattr(weights, "url", f"https://127.0.0.1:9/{name}")
    (checkpoints / name).write_bytes(content)
    return checkpoints / name


def saved(tmp_path: Path) -> bytes:
    torch.save(models.resnet18().state_dict(), tmp_path / "weights.pth")
    return (tmp_path / "weights.pth").read_bytes()


def test_weights_in_the_cache_are_loaded_if_their_hash_is_the_published_one(
    tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = publish(saved(tmp_path), checkpoints, monkeypatch)
    assert build_backbone(HUB.embedding, SHAPE)[1] == 512
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="are not those that were published") as caught:
        build_backbone(HUB.embedding, SHAPE)
    assert "delete the file" in caught.value.hint


def test_weights_that_hold_code_are_refused_even_with_the_right_hash(
    tmp_path: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(Evil(tmp_path / "ran"), tmp_path / "evil.pth")
    for content in (
        (tmp_path / "evil.pth").read_bytes(),
        pickle.dumps(Evil(tmp_path / "ran")),
        b"",
        b"PK\x03\x04",
    ):
        publish(content, checkpoints, monkeypatch)
        with pytest.raises(UserError, match="cannot be loaded"):
            build_backbone(HUB.embedding, SHAPE)
        assert not (tmp_path / "ran").exists()


def test_a_network_starts_from_the_weights_that_were_published_first(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def get_model(name: str, weights: object) -> models.ResNet:
        asked.append(weights)
        return models.resnet18()

    monkeypatch.setattr(models, "get_model", get_model)
    (checkpoints / "resnet50-0676ba61.pth").write_bytes(
        b"cut off"
    )  # the first; the default has another name
    with pytest.raises(UserError, match="are not those that were published"):
        build_backbone(Embedding(backbone="resnet50", weights="hub"), SHAPE)
    (checkpoints / "resnet50-0676ba61.pth").unlink()
    build_backbone(Embedding(backbone="resnet50", weights="hub"), SHAPE)
    assert asked == [models.ResNet50_Weights.IMAGENET1K_V1]
    for name in models.list_models(module=models):
        published = models.get_model_weights(name)
        assert (
            first_weights(name).name == "IMAGENET1K_V1"
            or "IMAGENET1K_V1" not in published.__members__
        )


NO_NETWORK = [
    URLError(ConnectionRefusedError(111, "Connection refused")),
    HTTPError("https://127.0.0.1:9/x", 503, "Service Unavailable", Message(), None),
    TimeoutError("timed out"),
    OSError(28, "No space left on device"),
    RemoteDisconnected("Remote end closed connection"),
]


@pytest.mark.parametrize("error", NO_NETWORK, ids=lambda error: type(error).__name__)
def test_weights_that_cannot_be_downloaded_are_one_sentence(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def offline(*args: object, **more: object) -> None:
        raise error

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(
        UserError, match=r"^The weights of resnet18 could not be fetched: [^<>]+\.\n"
    ) as caught:
        build_backbone(HUB.embedding, SHAPE)
    assert "-t weights=FILE" in caught.value.hint


@pytest.mark.parametrize("kind", ["LocalEntryNotFoundError", "ConnectError"])
def test_weights_of_timm_s_that_cannot_be_downloaded_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pytest.importorskip("timm", reason="needs timm")
    errors = pytest.importorskip("huggingface_hub.errors" if kind.startswith("Local") else "httpx")

    def offline(*args: object, **more: object) -> None:
        raise getattr(errors, kind)("there is no network")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", offline)
    with pytest.raises(
        UserError,
        match=r"^The weights of timm:resnet18 could not be fetched: there is no network\.",
    ):
        build_backbone(Embedding(backbone="timm:resnet18", weights="hub"), SHAPE)


def test_a_damaged_file_in_the_cache_of_hugging_face_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm", reason="needs timm")
    blob = tmp_path / "blobs" / hashlib.sha256(b"whole").hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(b"damaged")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(link))
    with pytest.raises(UserError, match="are not those that were published"):
        build_backbone(Embedding(backbone="timm:resnet18", weights="hub"), SHAPE)
