"""Office-Home and PACS from folders of pictures: the rule's counts, published lists, and a run from
end to end."""

from __future__ import annotations

import json
import os
import shutil
from itertools import permutations
from pathlib import Path

import generated_trees
import numpy as np
import pytest
from conftest import TINY, Command
from generated_trees import CLASSES, picture, write_list

from askew.core.errors import UserError
from askew.data import label_shift
from askew.data.benchmarks import load_task, task_infos
from askew.data.benchmarks.image_trees import SAME_IMAGES, class_files
from askew.data.benchmarks.office_home import OFFICE_HOME
from askew.data.benchmarks.split_lists import find_list, list_folders, read_list
from askew.data.decode import decode
from askew.data.domains import RowSubset
from askew.data.image_lists import in_order
from askew.data.task import Task

SIZES = np.array([12, 14, 16, 18, 20])
TAIL = label_shift.long_tail(5, 100, 1, 5)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    generated_trees.own_cache(tmp_path, monkeypatch)
    return generated_trees.office_home(tmp_path / "data")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_trees.office_home(tmp_path_factory.mktemp("office-home") / "data")


@pytest.fixture
def unspoilt(kept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same for tests that change nothing in it; decoded once for all of them."""
    generated_trees.own_cache(kept.parent, monkeypatch)
    return kept


def lists(
    data: Path, source: str = "Real World", target: str = "Clipart", first: int = 0
) -> tuple[list[str], ...]:
    """Lists of the first pictures of each class, RS three times as many of the last class as of the
    first."""
    names = {"RS": (source, (4, 5, 6, 8, 12)), "UT": (target, (12, 8, 6, 5, 4))}
    made = []
    for side, (domain, counts) in names.items():
        lines = [
            f"{domain.replace(' ', '_')}/{name}/{i:05}.jpg {k + first}"
            for k, (name, n) in enumerate(zip(CLASSES, counts, strict=True))
            for i in range(n)
        ]
        write_list(data / "office_home" / f"{domain.replace(' ', '')}_{side}.txt", lines, "\r\n")
        made.append(lines)
    return tuple(made)


def test_the_tasks_are_the_paper_s() -> None:
    roles = {n: i.role for n, i in task_infos().items() if n.startswith("office-home/")}
    names = [f"office-home/{s}-{t}" for s, t in permutations(("rw", "pr", "cl", "ar"), 2)]
    assert list(roles) == names
    reported = [name for name in names if roles[name] == "reported"]
    assert reported == [f"office-home/{s}-{t}" for s, t in permutations(("rw", "pr", "cl"), 2)]
    assert {roles[name] for name in names if "ar" in name.partition("/")[2].split("-")} == {
        "development"
    }
    assert len([name for name in task_infos() if name.startswith("pacs/")]) == 12
    assert {
        i.network for n, i in task_infos().items() if n.startswith(("office-home", "pacs"))
    } == {"resnet50"}


def test_the_rule_draws_source_and_target_in_the_order_of_names_whatever_their_case(
    unspoilt: Path,
) -> None:
    task = load_task("office-home/rw-cl", data=unspoilt)
    training_data = task.training_data
    assert training_data.classes == CLASSES
    expected = label_shift.rs_counts(SIZES, TAIL)
    whole = training_data.source.sizes(5) + np.bincount(training_data.source_val.y, minlength=5)
    assert (training_data.source.sizes(5) <= expected).all()
    assert (whole >= expected).all()
    assert task.test.target_sizes is not None
    assert task.test.target_sizes.tolist() == label_shift.ut_counts(SIZES, TAIL).tolist()
    assert any("drawn by the rule" in note for note in task.notes)
    assert any("5 classes were found where office-home has 65" in note for note in task.notes)


def test_the_paper_s_exam_is_what_was_adapted_on_and_the_whole_is_the_domain(
    unspoilt: Path,
) -> None:
    task = load_task("office-home/pr-rw", data=unspoilt)
    assert task.test.paper is not None
    assert len(task.test.y) == SIZES.sum()
    examined = [np.asarray(task.training_data.test_images.x[i]).tobytes() for i in task.test.paper]
    assert examined == [x.tobytes() for x in task.training_data.target.x]
    assert SAME_IMAGES in task.notes


def test_training_data_hold_row_numbers_of_a_memory_map_and_no_pictures(unspoilt: Path) -> None:
    training_data = load_task("office-home/rw-pr", data=unspoilt).training_data
    for view in (
        training_data.source,
        training_data.source_val,
        training_data.target,
        training_data.test_images,
    ):
        assert isinstance(view.x, RowSubset)
        assert isinstance(view.x.base, np.memmap)


def test_an_image_s_row_says_nothing_of_its_class(unspoilt: Path) -> None:
    y = load_task("office-home/rw-cl", data=unspoilt).test.y
    turns = np.count_nonzero(np.diff(y))
    assert turns > len(y) / 2, "sorted by class there would be four"


def seen(task: Task, which: str) -> set[bytes]:
    return {np.asarray(x).tobytes() for x in getattr(task.training_data, which).x}


def listed(data: Path, domain: str, lines: list[str]) -> set[bytes]:
    """The pixels of a list's pictures."""
    paths = (line.split()[0].split("/", 1)[1] for line in lines)
    return {decode(data / "office_home" / domain / path).tobytes() for path in paths}


def test_published_lists_are_draw_0_and_other_draws_are_ours(data: Path) -> None:
    source, target = lists(data)
    task = load_task("office-home/rw-cl", data=data)
    wanted = listed(data, "Clipart", target)
    assert seen(task, "target") == wanted
    assert (
        seen(task, "source")
        <= listed(data, "Real World", source)
        <= seen(task, "source") | seen(task, "source_val")
    )
    assert task.test.paper is not None
    assert len(task.test.paper) == len(target)
    assert "images of the published lists" in task.notes
    assert not any("label numbers" in note for note in task.notes)
    other = load_task("office-home/rw-cl", draw=1, data=data)
    assert seen(other, "target") != wanted
    assert "images of the published lists" not in other.notes


def test_other_label_numbers_are_said_and_change_nothing(data: Path) -> None:
    lists(data)
    first = load_task("office-home/rw-cl", data=data)
    lists(data, first=7)
    load_task.cache_clear()
    second = load_task("office-home/rw-cl", data=data)
    assert second.origin == first.origin
    assert any("label numbers of the lists differ" in note for note in second.notes)


def test_a_picture_that_a_list_names_and_is_missing_is_named(data: Path) -> None:
    lists(data)
    (data / "office_home/Clipart/TV/00000.jpg").unlink()
    with pytest.raises(
        UserError,
        match=r"1 of the 35 pictures in .*Clipart_UT\.txt are missing, the first is TV/00000",
    ):
        load_task("office-home/rw-cl", data=data)


def test_a_broken_picture_stops_the_task_until_it_may_be_skipped(cli: Command, data: Path) -> None:
    lists(data)
    (data / "office_home/Clipart/TV/00000.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"TV/00000\.jpg"):
        load_task("office-home/rw-cl", data=data)
    answer = cli("data", "check", "office-home", "--data", data, "--skip-broken")
    assert "office-home: 1 broken image, left out." in answer.out
    assert "Clipart/TV/00000.jpg: cannot identify" in answer.out
    task = load_task("office-home/rw-cl", data=data)
    assert len(task.training_data.target) == 34
    assert "1 broken picture of Clipart left out" in task.notes


def test_a_missing_domain_or_class_is_named(data: Path) -> None:
    shutil.rmtree(data / "office_home/Product/TV")
    with pytest.raises(
        UserError, match=r"The class TV has pictures in .*Clipart and none in .*Product"
    ):
        load_task("office-home/cl-pr", data=data)
    shutil.rmtree(data / "office_home/Product")
    with pytest.raises(UserError, match=r"office_home/Product are missing") as caught:
        load_task("office-home/cl-pr", data=data)
    assert "askew data fetch office-home" in caught.value.hint


def test_files_that_are_no_pictures_are_passed_over(tmp_path: Path) -> None:
    picture(tmp_path / "A/1.JPG")
    for name in ("A/Thumbs.db", "A/.1.jpg", ".hidden/1.jpg", "readme.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert class_files(tmp_path) == {"A": ["1.JPG"]}


def test_an_archive_s_own_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated_trees.own_cache(tmp_path, monkeypatch)
    for domain in ("photo", "art_painting"):
        for name in ("dog", "horse"):
            for i in range(9):
                picture(tmp_path / "PACS/kfold" / domain / name / f"{i}.jpg")
    task = load_task("pacs/photo-art_painting", "natural", data=tmp_path)
    assert (len(task.training_data.target), task.test.paper) == (18, None)
    assert len(task.training_data.source) == 16, "a tenth is for validation: nothing else is left"
    assert not any("published lists" in note for note in task.notes)


def test_a_run_goes_from_folders_of_pictures_to_scores(
    cli: Command, unspoilt: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "own.toml"
    settings.write_text("[train]\nbatch = 2\n")
    quick = ("-t", "net=shufflenet_v2_x0_5", "-t", "pretrain=0")
    short = ("-t", "rounds=1", "-t", "round=2", "-t", "batch=4", "--settings", settings)
    answer = cli("run", "office-home/rw-cl", "--data", unspoilt, *TINY, *quick, *short, "--json")
    assert answer.code == 0, answer.err
    scores = json.loads(answer.out)["scores"]
    assert scores["whole"]["images"] == SIZES.sum()
    assert scores["paper"]["images"] == label_shift.ut_counts(SIZES, TAIL).sum()


# The published lists, where they are: ASKEW_LISTS names a folder with `office_home/<Domain>_RS.txt`
# and so on.

published = pytest.mark.skipif(
    not os.environ.get("ASKEW_LISTS"), reason="needs published lists: set ASKEW_LISTS"
)
LISTS = Path(os.environ.get("ASKEW_LISTS", "."))


@published
@pytest.mark.parametrize(
    ("domain", "rs", "ut"), [("rw", 1253, 1253), ("pr", 1984, 1985), ("cl", 1017, 1017)]
)
def test_the_published_lists_follow_the_rule_s_order(domain: str, rs: int, ut: int) -> None:
    for side, n in (("RS", rs), ("UT", ut)):
        names = [f"{name}_{side}" for name in OFFICE_HOME.domains[domain]]
        path = find_list(list_folders(LISTS, None, "office_home"), names)
        assert path is not None
        entries = read_list(path)
        classes = in_order(list({entry.folder for entry in entries}))
        assert (len(entries), len(classes)) == (n, 65)
        assert all(classes.index(entry.folder) == entry.label for entry in entries)
        counts = np.bincount([entry.label for entry in entries], minlength=65)
        assert (np.diff(counts if side == "RS" else counts[::-1]) >= 0).mean() > 0.9, (
            "four classes run out"
        )
