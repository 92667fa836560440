"""Custom data that are wrong: each input is answered with what was found and a hint."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from generated_trees import picture
from own_files import cache, flat, npz, rows, tree  # noqa: F401 -- cache is a fixture
from PIL import Image

from askew.core.errors import UserError
from askew.data import image_cache
from askew.data.custom import load_custom_data

Case = Callable[[Path], tuple[Path, Path]]


def _broken(content: bytes) -> Case:
    def make(at: Path) -> tuple[Path, Path]:
        (flat(at / "t") / "bad.jpg").write_bytes(content)
        return tree(at / "s"), at / "t"

    return make


def _jpeg(at: Path) -> bytes:
    Image.new("RGB", (64, 64), "red").save(at / "whole.jpg")
    return (at / "whole.jpg").read_bytes()


def _truncated(at: Path) -> tuple[Path, Path]:
    return _broken(_jpeg(at)[:300])(at)


def _loop(at: Path) -> tuple[Path, Path]:
    (flat(at / "t") / "again").symlink_to(at / "t")
    return tree(at / "s"), at / "t"


def _self_link(at: Path) -> tuple[Path, Path]:
    (flat(at / "t") / "self.png").symlink_to(at / "t" / "self.png")
    return tree(at / "s"), at / "t"


def _listed(text: str) -> Case:
    def make(at: Path) -> tuple[Path, Path]:
        flat(at / "t")
        (at / "s.csv").write_text(text)
        return at / "s.csv", at / "t"

    return make


def _arrays(xs: np.ndarray, ys: object, xt: np.ndarray) -> Case:
    return lambda at: (npz(at / "s.npz", xs, ys), npz(at / "t.npz", xt))


def _made(
    source: Callable[[Path], Path], target: Callable[[Path], Path] = lambda at: flat(at / "t")
) -> Case:
    return lambda at: (source(at), target(at))


def _folder(at: Path) -> Path:
    (at / "empty").mkdir()
    return at / "empty"


def _mixed(at: Path) -> Path:
    picture(tree(at / "s") / "stray.png")
    return at / "s"


def _pickled(at: Path) -> Path:
    np.save(at / "s.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return at / "s.npy"


def _text(name: str) -> Callable[[Path], Path]:
    def make(at: Path) -> Path:
        (at / name).write_text("hello")
        return at / name

    return make


def _nan() -> np.ndarray:
    x = rows(8, seed=1)
    x[3, 2] = np.nan
    return x


AB = ["a", "b"] * 6
WRONG: dict[str, tuple[Case, str, str]] = {
    "nothing there": (
        _made(lambda at: at / "no"),
        r"The source .*/no does not exist\.",
        "a folder with",
    ),
    "an empty folder": (
        _made(_folder),
        r"The folder .*/empty holds no picture\.",
        "pictures end in",
    ),
    "an empty target": (
        _made(lambda at: tree(at / "s"), _folder),
        r"The folder .*/empty holds no picture\.",
        "pictures end in",
    ),
    "one class": (
        _made(lambda at: tree(at / "s", 3, ("cat",))),
        r"The source .*/s has one class, cat\.",
        "add another",
    ),
    "a source without classes": (
        _made(lambda at: flat(at / "s")),
        r"The source .*/s has no labels\.",
        "sub-folder",
    ),
    "a stray picture": (
        _made(_mixed),
        r"1 of the 13 pictures in .*/s lie outside its class folders\.",
        "sub-folder",
    ),
    "the same folder twice": (
        lambda at: (tree(at / "s"), at / "s" / ".." / "s"),
        r"Source and target are the same: .*/s\.",
        "two different",
    ),
    "one folder inside the other": (
        lambda at: (tree(at / "s"), at / "s" / "cat"),
        r"The folder .*/cat lies inside .*/s\.",
        "read twice",
    ),
    "a truncated JPEG": (
        _truncated,
        r"1 of the 5 pictures of .*/t cannot be read: bad\.jpg: .*\.",
        "--skip-broken",
    ),
    "a text file named .jpg": (
        _broken(b"hello"),
        r"1 of the 5 pictures of .*/t cannot be read: bad\.jpg: .*\.",
        "--skip-broken",
    ),
    "a file of no bytes": (
        _broken(b""),
        r"1 of the 5 pictures of .*/t cannot be read: bad\.jpg: .*\.",
        "--skip-broken",
    ),
    "a link to the folder that it lies in": (
        _loop,
        r"The link .*/t/again leads back to a folder.*\.",
        "remove the link",
    ),
    "a link to itself": (
        _self_link,
        r"1 of the 5 pictures of .*/t cannot be read: self\.png: Too many levels.*\.",
        "--skip-broken",
    ),
    "a list of nothing": (_listed("\n"), r"The list .*/s\.csv is empty\.", "a line has a path"),
    "a listed picture that is missing": (
        _listed("t/0.png,a\nt/9.png,b\n"),
        r"1 of the 2 pictures of .*/s\.csv cannot be read: t/9\.png: No such file or directory\.",
        "paths are relative to",
    ),
    "a path listed twice": (
        _listed("t/0.png,a\nt/1.png,b\nt/0.png,b\n"),
        r"Line 3 of .*/s\.csv names t/0\.png, which line 1 has named already\.",
        "once",
    ),
    "a line without a label": (
        _listed("t/0.png,a\nt/1.png\n"),
        r"Line 2 of .*/s\.csv has no label, and others have one\.",
        "a line has",
    ),
    "arrays of different width": (
        _arrays(rows(), AB, rows(4, 6)),
        r"The source is rows of 5 numbers and the target rows of 6 numbers\.",
        "same way",
    ),
    "images beside rows": (
        _arrays(rows(), AB, np.zeros((3, 4, 4), np.uint8)),
        r"The source is rows of 5 numbers and the target images of 1 x 4 x 4\.",
        "same way",
    ),
    "NaN in an array": (
        _arrays(rows(), AB, _nan()),
        r"1 of the 8 rows in .*/t\.npz hold NaN or infinity\.",
        "impute",
    ),
    "a label below zero": (
        _arrays(rows(3), [0, -1, 1], rows(4)),
        r"The label of row 1 in .*/s\.npz is -1, which is out of range\.",
        "whole numbers from 0",
    ),
    "a label between two classes": (
        _arrays(rows(3), [0, 1, 0.5], rows(4)),
        r"The label of row 2 in .*/s\.npz is 0\.5, which is out of range\.",
        "whole numbers from 0",
    ),
    "a target of one": (
        _arrays(rows(), AB, rows(1)),
        r"The target .*/t\.npz holds one image, which is too few to adapt to\.",
        "askew predict",
    ),
    "one image per class": (
        _arrays(rows(3), [0, 1, 2], rows(4)),
        r"No class of the source .*/s\.npz has two images, so none can be held out\.",
        "label a few more",
    ),
    "fewer labels than rows": (
        _arrays(rows(3), [0, 1], rows(4)),
        r".*/s\.npz holds 3 rows and labels of shape \(2,\)\.",
        "one label per row",
    ),
    "an array of objects": (
        _made(_pickled),
        r"The array file .*/s\.npy is no array of NumPy's, or holds Python objects.*\.",
        "uint8 images",
    ),
    "an array file that is none": (
        _made(_text("s.npz")),
        r"The array file .*/s\.npz is no array of NumPy's.*\.",
        "uint8",
    ),
    "floats in the form of images": (
        _arrays(np.zeros((3, 4, 4), np.float32), [0, 1, 0], rows(4)),
        r"The array in .*/s\.npz is float32 of shape \(3, 4, 4\)\.",
        "uint8 images",
    ),
    "a file of another kind": (
        _made(_text("s.docx")),
        r"The source .*/s\.docx is neither a folder nor.*\.",
        "a folder with",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_answered_with_what_was_found_and_a_hint(tmp_path: Path, name: str) -> None:
    make, sentence, hint = WRONG[name]
    source, target = make(tmp_path)
    with pytest.raises(UserError) as caught:
        load_custom_data(source, target)
    assert re.fullmatch(sentence, caught.value.sentence), caught.value.sentence
    assert hint in caught.value.hint
    assert "\n" not in caught.value.sentence + caught.value.hint


def test_a_file_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    decode = image_cache.decode

    def forbidden(
        path: Path,
    ) -> np.ndarray:  # a superuser may read anything, so permissions prove nothing
        if path == target / "0.png":
            raise PermissionError(13, "Permission denied", str(path))
        return decode(path)

    monkeypatch.setattr(image_cache, "decode", forbidden)
    with pytest.raises(UserError, match=r"cannot be read: 0\.png: .*Permission denied"):
        load_custom_data(source, target)


def test_broken_pictures_are_left_out_where_that_was_asked_for(tmp_path: Path) -> None:
    source, target = _broken(b"hello")(tmp_path)
    found = load_custom_data(source, target, skip_broken=True)
    assert len(found.task.training_data.target) == 4
    assert [text.partition(":")[0] for text in found.target.broken] == ["bad.jpg"]
    assert found.target.names == ("0.png", "1.png", "2.png", "3.png")


def test_a_listed_picture_that_is_missing_is_left_out_like_a_broken_one(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    (tmp_path / "t.txt").write_text("".join(f"t/{i}.png\n" for i in range(5)))
    (target / "1.png").write_bytes(b"no picture")
    found = load_custom_data(source, tmp_path / "t.txt", skip_broken=True)
    assert [text.partition(":")[0] for text in found.target.broken] == ["t/1.png", "t/4.png"]
    picture(target / "4.png")
    assert len(load_custom_data(source, tmp_path / "t.txt", skip_broken=True).target.names) == 4, (
        "it is there now"
    )


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")

    def full(file: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_cache, "_reserve", full)
    with pytest.raises(UserError, match="There is no room left on the disk") as caught:
        load_custom_data(source, target)
    assert "192 KiB" in caught.value.hint
