"""Lists and folders of images: no header is an image, no class is lost, no image counts twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from generated_trees import picture
from own_files import cache, flat, tree  # noqa: F401 -- cache is a fixture
from PIL import Image

from askew.core.errors import UserError
from askew.data.custom import load_custom_data
from askew.data.decode import SUFFIXES, decode
from askew.data.image_lists import Columns, find_pictures, read_folder, read_listing


def listing(folder: Path, head: str, suffix: str = ".csv") -> Path:
    tree(folder / "s")
    mark = "," if suffix == ".csv" else "\t" if suffix == ".tsv" else " "
    lines = [f"s/{name}/{i}.png{mark}{name}" for name in ("cat", "dog") for i in range(4)]
    file = folder / f"list{suffix}"
    file.write_text("\n".join([head, *lines]) + "\n")
    return file


@pytest.mark.parametrize(
    ("head", "suffix"),
    [
        ("Bild,Klasse", ".csv"),
        ("Bild\tKlasse", ".tsv"),
        ("Bild Klasse", ".txt"),
        ("photo,label", ".csv"),
    ],
)
def test_an_unknown_header_is_no_broken_image(tmp_path: Path, head: str, suffix: str) -> None:
    file, target = listing(tmp_path, head, suffix), flat(tmp_path / "t")
    with pytest.raises(UserError, match=r"Line 1 of .* it seems to be a header\.") as told:
        load_custom_data(file, target, skip_broken=True)
    assert "--path-column" in told.value.hint


def test_a_first_image_that_is_missing_is_a_broken_image(tmp_path: Path) -> None:
    file, target = listing(tmp_path, "s/cat/gone.png,cat"), flat(tmp_path / "t")
    found = load_custom_data(file, target, skip_broken=True)
    assert found.source.broken == ("s/cat/gone.png: No such file or directory",)


def test_more_than_two_columns_need_a_header(tmp_path: Path) -> None:
    flat(tmp_path / "s")
    file = tmp_path / "list.csv"
    file.write_text("s/0.png,17,cat\ns/1.png,18,dog\n")
    with pytest.raises(UserError, match=r"Line 1 of .* has 3 columns, and 2 are known\."):
        read_listing(file)
    file.write_text("s/0.png,cat,\ns/1.png,dog,,\n")
    assert read_listing(file).labels == ("cat", "dog")
    file.write_text("path,label\ns/0,1.png,cat\n")
    with pytest.raises(UserError, match=r"Line 2 of .* has 3 columns, and 2 are known\."):
        read_listing(file)


def test_a_header_that_names_a_column_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text("path,label,Label\na.png,cat,dog\n")
    with pytest.raises(UserError, match="two columns 'label'"):
        read_listing(file)
    file.write_text("id,path,label,id\n1,a.png,cat,2\n")
    assert read_listing(file).labels == ("cat",)


def test_quotes_after_a_space_are_quotes(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text('path, label\n"a, b.png", "cat, black"\n')
    found = read_listing(file)
    assert (found.paths, found.labels) == (("a, b.png",), ("cat, black",))


@pytest.mark.parametrize("mark", ["\r", "\n", "\x0b", "\x1c", "\x85", "\u2028"])
def test_a_quoted_path_keeps_every_character(tmp_path: Path, mark: str) -> None:
    file = tmp_path / "list.csv"
    file.write_bytes(f'path,label\r\n"a{mark}b.png",cat\r\n'.encode())
    assert read_listing(file).paths == (f"a{mark}b.png",)


def test_links_that_lead_to_each_other_s_folders_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        picture(tmp_path / "t" / name / "0.png")
    (tmp_path / "t" / "a" / "next").symlink_to(tmp_path / "t" / "b")
    assert len(find_pictures(tmp_path / "t")) == 3
    (tmp_path / "t" / "b" / "next").symlink_to(tmp_path / "t" / "a")
    with pytest.raises(UserError, match="leads back to a folder that it lies in"):
        find_pictures(tmp_path / "t")


@pytest.mark.parametrize("suffix", [".jfif", ".jpe", ".avif"])
def test_a_class_in_a_less_usual_format_is_read(tmp_path: Path, suffix: str) -> None:
    tree(tmp_path / "s")
    (tmp_path / "s" / "emu").mkdir()
    kind = "AVIF" if suffix == ".avif" else "JPEG"
    if kind not in Image.registered_extensions().values():
        pytest.skip("this Pillow has no AVIF")
    Image.new("RGB", (9, 9), "red").save(tmp_path / "s" / "emu" / f"0{suffix}", kind)
    assert "emu" in set(read_folder(tmp_path / "s").labels or ())
    assert decode(tmp_path / "s" / "emu" / f"0{suffix}").shape == (3, 256, 256)


def test_a_heic_image_says_what_reads_it(tmp_path: Path) -> None:
    if "HEIF" in Image.registered_extensions().values():
        pytest.skip("pillow-heif is installed")
    tree(tmp_path / "s")
    (tmp_path / "s" / "emu").mkdir()
    (tmp_path / "s" / "emu" / "0.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    with pytest.raises(UserError, match=r"1 of the 13 pictures .* pip install pillow-heif"):
        load_custom_data(tmp_path / "s", flat(tmp_path / "t"))


@pytest.mark.parametrize("suffix", [".cr2", ".jxl", ".svg", ".psd", ".JP2"])
def test_a_class_of_unread_formats_does_not_vanish(tmp_path: Path, suffix: str) -> None:
    tree(tmp_path / "s")
    (tmp_path / "s" / "notes").mkdir()
    (tmp_path / "s" / "notes" / "a.md").write_text("fine")
    assert len(read_folder(tmp_path / "s").paths) == 12
    (tmp_path / "s" / "emu").mkdir()
    (tmp_path / "s" / "emu" / f"0{suffix}").write_bytes(b"?")
    with pytest.raises(UserError, match=re.escape(f"emu holds images such as 0{suffix}, and none")):
        read_folder(tmp_path / "s")


def test_columns_named_by_the_user_are_still_a_header(tmp_path: Path) -> None:
    file = listing(tmp_path, "Bild,Klasse")
    assert read_listing(file, Columns("bild", "klasse")).labels == ("cat",) * 4 + ("dog",) * 4
    assert {".heic", ".jfif"} <= SUFFIXES
