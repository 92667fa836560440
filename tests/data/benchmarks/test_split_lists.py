"""Lists are read whatever their line ends, prefixes and slashes, and classes go by folder, not by
number."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated_trees import write_list

from askew.core.errors import UserError
from askew.data.benchmarks.split_lists import Entry, find_list, list_folders, numbering, read_list
from askew.data.paths import find_folder, plain


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    "prefix", ["Clipart/", "/anywhere/data/Office Home/Real World/", "", "D:\\sets\\Art\\"]
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_line_is_class_folder_file_and_label(
    tmp_path: Path, ends: str, prefix: str, mark: str
) -> None:
    lines = [f"{mark}{prefix}Alarm_Clock/00001.jpg 0", "", f"{prefix}TV\\00002.jpg\t63"]
    entries = read_list(write_list(tmp_path / "a.txt", lines, ends))
    assert entries == [Entry("Alarm_Clock", "00001.jpg", 0), Entry("TV", "00002.jpg", 63)]


@pytest.mark.parametrize(
    "line", ["Clipart/TV/00001.jpg", "00001.jpg 3", "Clipart/TV/1.jpg three", "Clipart// 3"]
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = write_list(tmp_path / "a.txt", ["Clipart/TV/00001.jpg 3", line])
    with pytest.raises(UserError, match=r"Line 2 of .*a\.txt"):
        read_list(path)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_an_empty_or_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.txt"):
        read_list(tmp_path / "a.txt")


def test_numbers_that_contradict_each_other_are_no_numbering() -> None:
    assert numbering([Entry("A", "1", 0), Entry("b", "1", 4), Entry("a", "2", 0)]) == {
        "a": 0,
        "b": 4,
    }
    assert numbering([Entry("A", "1", 0), Entry("A", "2", 1)]) is None, "one class, two numbers"
    assert numbering([Entry("A", "1", 0), Entry("B", "2", 0)]) is None, "one number, two classes"


def test_names_are_found_however_they_are_spelled(tmp_path: Path) -> None:
    (tmp_path / "Real World").mkdir()
    assert (
        find_folder(tmp_path, ["RealWorld"])
        == find_folder(tmp_path, ["real_world"])
        == tmp_path / "Real World"
    )
    assert find_folder(tmp_path, ["real"]) is None
    assert find_folder(tmp_path / "nowhere", ["real"]) is None
    assert plain("Real_World_RS") == plain("RealWorld_RS") != plain("RealWorld_UT")


def test_a_list_is_looked_for_where_the_user_says_then_beside_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASKEW_LISTS", raising=False)
    beside = write_list(tmp_path / "office_home/RealWorld_RS.txt", ["x/a/1.jpg 0"])
    root = tmp_path / "office_home"
    assert find_list(list_folders(tmp_path, root, "office_home"), ["Real World_RS"]) == beside
    own = write_list(tmp_path / "mine/office-home-RSUT/Real_World_RS.txt", ["x/a/1.jpg 0"])
    monkeypatch.setenv("ASKEW_LISTS", str(tmp_path / "mine"))
    assert find_list(list_folders(tmp_path, root, "office_home"), ["Real World_RS"]) == own
    assert find_list(list_folders(tmp_path, root, "office_home"), ["Real World_UT"]) is None
