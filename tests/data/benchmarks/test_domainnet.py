"""DomainNet from its folders and lists: both parts, natural shift, and a run from end to end."""

from __future__ import annotations

import json
import os
from itertools import permutations
from pathlib import Path

import generated_trees
import numpy as np
import pytest
from conftest import TINY, Command
from generated_trees import write_list

from askew.core.errors import UserError
from askew.data.benchmarks import load_task, task_infos
from askew.data.benchmarks.domainnet import DOMAINNET, find_part
from askew.data.benchmarks.split_lists import numbering, read_list
from askew.data.domains import RowSubset


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    generated_trees.own_cache(tmp_path, monkeypatch)
    return generated_trees.domainnet(tmp_path / "data")


def relabel(path: Path, numbers: dict[str, int]) -> None:
    lines = [f"{e.folder}/{e.file} {numbers[e.folder]}" for e in read_list(path)]
    write_list(path, lines, "\r\n")


def test_the_tasks_are_the_paper_s_and_their_shift_is_natural() -> None:
    infos = {name: info for name, info in task_infos().items() if name.startswith("domainnet/")}
    assert list(infos) == [f"domainnet/{s}-{t}" for s, t in permutations("rcps", 2)]
    assert {info.shift for info in infos.values()} == {"natural"}


def test_a_task_is_the_lists_as_they_are(data: Path) -> None:
    task = load_task("domainnet/r-s", data=data)
    training_data = task.training_data
    assert training_data.classes == ("bee", "airplane", "cat"), (
        "in the order of the lists' numbers, without what none names"
    )
    assert training_data.source.sizes(3).tolist() == [8, 10, 12]
    assert (len(training_data.target), len(training_data.test_images)) == (24, 12)
    assert len(training_data.source_val) > 0
    assert task.test.paper is None
    assert task.test.target_sizes is not None
    assert task.test.target_sizes.tolist() == [8, 8, 8]
    assert task.notes == ("3 classes were found where domainnet has 40",)


def test_no_picture_is_adapted_on_and_scored_on_nor_trained_on_and_validated_on(data: Path) -> None:
    training_data = load_task("domainnet/r-s", data=data).training_data
    rows = {}
    for name in ("source", "source_val", "target", "test_images"):
        x = getattr(training_data, name).x
        assert isinstance(x, RowSubset)
        assert isinstance(x.base, np.memmap)
        rows[name] = set(x.rows.tolist())
    assert not rows["source"] & rows["source_val"]
    assert not rows["target"] & rows["test_images"]


def test_label_numbers_that_disagree_are_said_and_classes_go_by_folder(data: Path) -> None:
    before = load_task("domainnet/r-s", data=data)
    relabel(data / "domainnet/sketch_train_mini.txt", {"bee": 2, "airplane": 0, "cat": 1})
    load_task.cache_clear()
    after = load_task("domainnet/r-s", data=data)
    assert any("label numbers of the lists disagree" in note for note in after.notes)
    assert after.training_data.classes == ("airplane", "bee", "cat")

    def by_name(task: object) -> dict[str, int]:
        # type: ignore[attr-defined]
        return dict(zip(task.training_data.classes, task.test.target_sizes.tolist(), strict=True))

    assert by_name(before) == by_name(after)


def test_a_picture_that_is_in_both_parts_is_refused(data: Path) -> None:
    root = data / "domainnet"
    lines = (root / "sketch_test_mini.txt").read_text() + (
        root / "sketch_train_mini.txt"
    ).read_text().splitlines()[0]
    (root / "sketch_test_mini.txt").write_text(lines)
    with pytest.raises(UserError, match="is in both"):
        load_task("domainnet/r-s", data=data)


def test_a_missing_list_or_picture_is_named(data: Path) -> None:
    with pytest.raises(UserError, match=r"clipart_train_mini\.txt is missing"):
        load_task("domainnet/r-c", data=data)
    (data / "domainnet/sketch/cat/sketch_test_000001.jpg").unlink()
    with pytest.raises(UserError, match="1 of the 12 pictures"):
        load_task("domainnet/r-s", data=data)


def test_a_target_mix_can_be_drawn(data: Path) -> None:
    drawn = load_task("domainnet/s-r", "dirichlet:0.5", draw=3, data=data)
    assert len(drawn.training_data.target) < 30
    assert drawn.test.paper is not None


def test_a_shift_that_domainnet_does_not_have_is_refused(cli: Command, data: Path) -> None:
    answer = cli("data", "show", "domainnet/r-s", "--data", data, "--shift", "rs-ut")
    assert answer.code == 2
    assert "--shift natural" in answer.err


def test_a_run_goes_from_lists_and_pictures_to_scores(
    cli: Command, data: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "own.toml"
    settings.write_text("[train]\n")
    own = ("--shift", "natural", "--settings", settings, "--data", data, "--json")
    quick = (
        "-t",
        "net=shufflenet_v2_x0_5",
        "-t",
        "pretrain=0",
        "-t",
        "rounds=1",
        "-t",
        "round=2",
        "-t",
        "batch=4",
    )
    answer = cli("run", "domainnet/r-s", *own, *TINY, *quick)
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["scores"]["whole"]["images"] == 12


# The published lists, where they are: ASKEW_LISTS names a folder with
# `domainnet/<domain>_train_mini.txt`.

published = pytest.mark.skipif(
    not os.environ.get("ASKEW_LISTS"), reason="needs published lists: set ASKEW_LISTS"
)


@published
def test_the_published_lists_have_the_paper_s_sizes_and_one_numbering() -> None:
    folder = Path(os.environ["ASKEW_LISTS"])
    entries = {
        (d, p): read_list(find_part(folder, d, p))
        for d in DOMAINNET.domains
        for p in ("train", "test")
    }
    assert [len(entries[d, "train"]) for d in "rpcs"] == [16_141, 6_727, 3_707, 5_537]
    assert [len(entries[d, "test"]) for d in "rpcs"] == [6_943, 2_909, 1_616, 2_399]
    numbers = numbering(entry for own in entries.values() for entry in own)
    assert numbers is not None
    assert sorted(numbers.values()) == list(range(40))
