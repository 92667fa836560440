"""Embeddings: found by content wherever pictures lie, views among them, and nothing of the pictures
is kept."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from adaptations import CPU, finish
from commands import assert_refused
from conftest import Command
from PIL import Image

from askew.core.errors import UserError
from askew.inference.embeddings import Embedder, embed_pictures, embedders, picture_shape
from askew.nets.adabn import domain_norms
from askew.nets.augment import Views
from askew.nets.embedding import Embedding
from askew.runs.execute import Progress
from askew.runs.journal import Journal
from askew.runs.root import open_root

EMBEDDING = Embedding(backbone="shufflenet_v2_x0_5", crop=32)
SHAPE = (3, 64, 64)
VIEWS = Views(views="picture")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for k, name in enumerate(("a", "b")):
        (tmp_path / "own" / name).mkdir(parents=True)
        for i in range(3):
            pixels = np.random.default_rng([k, i]).integers(0, 255, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{i}.png")
    return tmp_path / "own"


def fails(*_: object) -> None:
    pytest.fail("it is known already")


def test_a_picture_is_embedded_once_wherever_it_lies(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Embedder(EMBEDDING, SHAPE, CPU)
    domain = finish(embed_pictures(folder, first))
    assert domain.labels == ("a",) * 3 + ("b",) * 3
    assert [p.name for p in own_cache.iterdir()] == ["embeddings"], "no decoded picture is kept"
    moved = shutil.copytree(folder / "b", folder.parent / "moved")
    monkeypatch.setattr("askew.inference.embeddings.decode", fails)
    second = Embedder(EMBEDDING, SHAPE, CPU)
    again = finish(embed_pictures(moved, second))
    np.testing.assert_array_equal(second.rows(again.x), first.rows(domain.x)[3:])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")
def test_processes_that_decode_change_no_embedding(
    folder: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "b" / "broken.png").write_bytes(b"not a picture")
    found = []
    for processes in (0, 2):
        monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / f"cache-{processes}"))
        monkeypatch.setattr("askew.inference.embeddings.processes_for", lambda *_, n=processes: n)
        embedder = Embedder(EMBEDDING, SHAPE, CPU)
        found.append(embedder.rows(finish(embed_pictures(folder, embedder, skip_broken=True)).x))
    assert len(found[0]) == 6
    np.testing.assert_array_equal(found[0], found[1])


def test_statistics_are_those_of_the_domain_and_estimated_once(
    folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedding = dataclasses.replace(EMBEDDING, statistics="both")
    both = embedders(embedding, SHAPE, CPU)
    whole, half = (
        finish(embed_pictures(place, one))
        for place, one in zip((folder, folder / "a"), both, strict=True)
    )
    assert both.source.statistics is not None
    assert both.target.statistics is not None
    assert not np.allclose(both.source.statistics, both.target.statistics)
    assert not np.allclose(both.source.rows(whole.x)[:3], both.target.rows(half.x)), (
        "the same pictures, seen otherwise"
    )
    norms = domain_norms(both.target.network)
    assert norms is not None
    assert norms.statistics.numpy() == pytest.approx(both.target.statistics)
    monkeypatch.setattr("askew.inference.embeddings.decode", fails)
    again = Embedder(embedding, SHAPE, CPU)
    assert (
        again.rows(finish(embed_pictures(folder / "a", again)).x) == both.target.rows(half.x)
    ).all()
    later = domain_norms(again.network)
    assert later is not None
    assert later.statistics.equal(norms.statistics), "a network that is made later has them too"
    one = embedders(EMBEDDING, SHAPE, CPU)
    assert one.source is one.target, "without statistics of a domain, one serves both"


def test_views_of_a_picture_are_its_own_and_more_of_them_add_to_those_that_are_known(
    folder: Path, own_cache: Path
) -> None:
    two = Embedder(EMBEDDING, SHAPE, CPU, VIEWS, 2)
    domain = finish(embed_pictures(folder, two))
    rows, views = two.rows(domain.x), two.views(domain.x)
    assert views.shape == (6, 2, rows.shape[1])
    assert all(np.linalg.norm(views[:, v] - rows) > 0 for v in range(2))
    assert np.linalg.norm(views[:, 0] - views[:, 1]) > 0
    three = Embedder(EMBEDDING, SHAPE, CPU, VIEWS, 3)
    finish(embed_pictures(folder, three))
    np.testing.assert_array_equal(three.views(domain.x)[:, :2], views)
    calm = Embedder(EMBEDDING, SHAPE, CPU, Views(views="picture", style=0.0), 2)
    finish(embed_pictures(folder, calm))
    assert np.linalg.norm(calm.views(domain.x) - views) > 0, "other views have other embeddings"
    np.testing.assert_array_equal(calm.rows(domain.x), rows)


def test_broken_and_missing_pictures_are_told_and_left_out_if_allowed(
    folder: Path, own_cache: Path
) -> None:
    (folder / "a" / "broken.png").write_bytes(b"not a picture")
    listing = folder / "list.csv"
    listing.write_text("path,label\na/0.png,a\na/broken.png,a\nb/gone.png,b\nb/1.png,b\n")
    with pytest.raises(
        UserError,
        match=r"2 of the 4 pictures .* cannot be read: a/broken\.png: .*b/gone\.png: No such",
    ):
        finish(embed_pictures(listing, Embedder(EMBEDDING, SHAPE, CPU)))
    embedder = Embedder(EMBEDDING, SHAPE, CPU)
    domain = finish(embed_pictures(listing, embedder, skip_broken=True))
    assert (domain.names, domain.labels) == (("a/0.png", "b/1.png"), ("a", "b"))
    assert len(embedder.rows(domain.x)) == len(domain.x[:]) == 2


def test_a_network_that_takes_a_size_of_its_own_gets_pictures_decoded_for_it() -> None:
    pytest.importorskip("timm", reason="timm is an extra")
    assert picture_shape(Embedding(backbone="resnet18")) == (3, 256, 256)
    assert picture_shape(Embedding(backbone="timm:swinv2_cr_tiny_384")) == (3, 438, 438)


def test_the_embed_command_writes_what_adapt_reads_and_does_nothing_twice(
    cli: Command, folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--backbone", "shufflenet_v2_x0_5", "--weights", "none", "--views", 1)
    made = cli("embed", folder, "-o", "rows.npz", *options, "--json")
    assert (made.code, json.loads(made.out)["images"]) == (0, 6)
    with np.load("rows.npz") as arrays:
        assert {name: arrays[name].shape for name in arrays} == {
            "x": (6, 1024),
            "names": (6,),
            "y": (6,),
            "views": (6, 1, 1024),
        }
    monkeypatch.setattr("askew.inference.embeddings.decode", fails)
    assert "embeddings of 6 images in the cache" in cli("embed", folder, *options).err
    assert (
        "Embeddings are written to a .npz file"
        in cli("embed", folder, "-o", "rows.csv", *options).err
    )
    assert cli("embed", folder, "--backbone", "mini").code == 2


def test_the_embed_command_takes_pooling_corners_and_statistics(
    cli: Command, folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Embedding.__init__.__kwdefaults__, "crop", 32)
    plain = ("embed", folder, "--backbone", "shufflenet_v2_x0_5", "--weights", "none")
    answer = cli(*plain, "--pooling", "gem", "--corners", "--statistics", "both")
    assert answer.code == 0, answer.err
    assert "by shufflenet_v2_x0_5, 4 views" in answer.err
    assert_refused(cli(*plain[:3], "corners:resnet18"))


def test_what_cannot_be_embedded_is_refused_before_weights_are_fetched(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("askew.inference.embeddings.picture_embedder", fails)
    (tmp_path / "rows.npy").write_bytes(b"")
    for name, why in (
        ("nowhere", "does not exist."),
        ("rows.npy", "is neither a folder nor a list of pictures."),
    ):
        answer = cli("embed", name)
        assert_refused(answer)
        assert why in answer.err


def test_a_journal_has_a_line_per_stage_and_knows_what_is_left(tmp_path: Path) -> None:
    journal, lefts = Journal(tmp_path, trainings=2), []

    def work() -> Generator[Progress, None, None]:
        yield Progress(
            key="embeddings", label="embeddings by a network", step=0, steps=2, losses={}
        )
        open_root(tmp_path / "runs")
        yield Progress(
            key="embeddings", label="embeddings by a network", step=2, steps=2, losses={}
        )
        yield Progress(key="1", label="source", step=0, steps=10, losses={})
        yield Progress(key="1", label="source", step=10, steps=10, losses={})
        yield Progress(key="2", label="coal", step=5, steps=10, losses={})
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        for _ in journal.watch(work()):
            lefts.append(journal.left())
    lines = [line.split("  ", 1)[1] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert [line.partition(" in ")[0] for line in lines] == [
        "start",
        "embeddings by a network: 2 of 2",
        "source: 10 of 10",
        "coal: 5 of 10",
    ]
    assert lines[-1].endswith(", then stopped")
    assert lefts[0] > lefts[-1] >= 0
