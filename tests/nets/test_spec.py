"""Names of networks are read once and printed once; descriptions are read as they were written."""

from __future__ import annotations

from typing import Any

import pytest

from askew.core.errors import UserError
from askew.nets.embedding import Embedding
from askew.nets.network import check
from askew.nets.small import OWN
from askew.nets.spec import LAYERS, NetworkSpec, parse_network, read_network

NAMES = ("mlp", "digits-28", "resnet50", "resnet50.v1+bottleneck", "timm:vit_tiny+mlp", "own:A@1")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_printed_as_it_was_read(name: str) -> None:
    spec = parse_network(name, head="cosine", crop=64)
    assert spec.name == name
    assert spec.on_backbone == ("+" in name)
    assert (spec.embedding is None) == (name in LAYERS)
    assert spec.crop == (64 if spec.embedding else 0)


@pytest.mark.parametrize("name", ["resnet18+", "resnet18+mini", "+mlp", "resnet18+mlp+mlp"])
def test_only_layers_for_vectors_can_follow_a_backbone(name: str) -> None:
    with pytest.raises(UserError, match="There is no network"):
        parse_network(name)


@pytest.mark.parametrize("name", ["mlp|mlp", "resnet18+mlp||resnet18+mlp", "corners:resnet18"])
def test_a_name_says_nothing_but_backbone_and_layers(name: str) -> None:
    with pytest.raises(UserError, match="There is no network"):
        check(parse_network(name), (3, 32, 32))


def test_layers_alone_have_no_weights_to_start_from() -> None:
    with pytest.raises(UserError, match="The network mlp has no starting weights to load"):
        parse_network("mlp", weights="hub")


def test_names_of_layers_are_those_that_can_be_built() -> None:
    assert set(LAYERS) == OWN.keys()


@pytest.mark.parametrize(
    "spec",
    [
        NetworkSpec(layers="mlp", head="cosine", temperature=0.5, norm="split"),
        NetworkSpec(embedding=Embedding(backbone="resnet18", crop=0), last_dropout=False),
        NetworkSpec(
            layers="centred",
            embedding=Embedding(
                backbone="timm:a", pooling="gem", corners=True, statistics="domain"
            ),
        ),
    ],
)
def test_a_description_is_read_as_it_was_written(spec: NetworkSpec) -> None:
    assert read_network(spec.describe()) == spec


def test_a_weights_file_is_described_by_its_hash_and_not_read_back() -> None:
    below = Embedding(backbone="resnet18", weights="/home/me/w.pth", weights_hash="f00")
    described = NetworkSpec(embedding=below).describe()
    assert described["embedding"]["weights"] == "file"
    assert read_network(described).weights == "none"


@pytest.mark.parametrize(
    ("how", "views"),
    [
        ({}, 1),
        ({"pooling": "gem"}, 1),
        ({"statistics": "domain"}, 1),
        ({"statistics": "both"}, 2),
        ({"corners": True}, 3),
        ({"corners": True, "statistics": "both"}, 4),
    ],
)
def test_an_embedding_counts_its_views(how: dict[str, Any], views: int) -> None:
    embedding = Embedding(backbone="resnet18", **how)
    assert embedding.views == views
    assert embedding.label == ("resnet18" if views == 1 else f"resnet18, {views} views")
    assert embedding.uses_domain == ("statistics" in how)
