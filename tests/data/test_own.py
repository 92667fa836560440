"""Data of one's own: what is understood, what just works, and what each wrong input is answered with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from generated_trees import own_cache, picture
from PIL import Image

from askew.data import picture_cache
from askew.data.arrays import read_array
from askew.data.listing import find_pictures, read_listing
from askew.data.own import OwnData, own_data, read_side
from askew.errors import UserError

CLASSES = ("cat", "dog", "owl")
ODD = 'it\'s "odd" <script>alert(1)</script> 🦉 & more'


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


def tree(folder: Path, n: int = 4, classes: tuple[str, ...] = CLASSES) -> Path:
    for name in classes:
        for i in range(n):
            picture(folder / name / f"{i}.png", 8)
    return folder


def flat(folder: Path, n: int = 4) -> Path:
    for i in range(n):
        picture(folder / f"{i}.png", 9)
    return folder


def npz(file: Path, x: np.ndarray, y: object = None) -> Path:
    np.savez(file, **({"x": x} if y is None else {"x": x, "y": np.array(y)}))
    return file


def rows(n: int = 12, width: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, width)).astype(np.float32)


# --- what is understood ---


def test_folders_lists_and_arrays_give_the_same_study(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    lines = [f"s/{c}/{i}.png" for c in CLASSES for i in range(4)]
    (tmp_path / "s.csv").write_text("label,path\n" + "".join(f"{p.split('/')[1]},{p}\n" for p in lines))
    (tmp_path / "s.txt").write_text("".join(f"{p} {p.split('/')[1]}\n" for p in lines))
    (tmp_path / "s.tsv").write_text("".join(f"{p}\t{p.split('/')[1]}\n" for p in lines))
    (tmp_path / "t.txt").write_text("".join(f"t/{i}.png\n" for i in range(4)))
    whole = own_data(source, target)
    pixels = np.concatenate([np.asarray(v.x) for v in (whole.task.study.source, whole.task.study.source_val)])
    assert pixels.shape == (12, 3, 256, 256)
    for name in ("s.csv", "s.txt", "s.tsv"):
        assert own_data(tmp_path / name, tmp_path / "t.txt").task.origin == whole.task.origin, name
    assert whole.task.study.classes == CLASSES
    assert whole.task.exam is None
    assert whole.kind == "pictures"


def test_a_tenth_of_each_class_is_held_out_and_nothing_is_lost(tmp_path: Path) -> None:
    x, y = rows(61), ["a"] * 40 + ["b"] * 20 + ["c"]
    found = own_data(npz(tmp_path / "s.npz", x, y), npz(tmp_path / "t.npz", rows(7, seed=1)))
    study = found.task.study
    assert study.source_val.sizes(3).tolist() == [4, 2, 0]
    together = np.concatenate([study.source.x, study.source_val.x])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, x.tolist()))
    by_row = {tuple(row): label for row, label in zip(x.tolist(), y, strict=True)}
    for view in (study.source, study.source_val):
        assert [by_row[tuple(row)] for row in np.asarray(view.x).tolist()] == [study.classes[k] for k in view.y]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 8, 9), (1, 8, 9)), ((6, 8, 9, 3), (3, 8, 9)), ((6, 3, 8, 9), (3, 8, 9)), ((6, 8, 9, 1), (1, 8, 9))],
)
def test_images_in_an_array_come_in_any_usual_order(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    np.save(tmp_path / "x.npy", x)
    found = read_array(tmp_path / "x.npy").x
    assert found.shape[1:] == expected
    last = shape[-1] in (1, 3)
    assert found[2, 0, 4, 5] == (x[2, 4, 5, 0] if last else x[2, 4, 5] if x.ndim == 3 else x[2, 0, 4, 5])


def test_grey_images_beside_coloured_ones_get_three_channels(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (6, 8, 8)).astype(np.uint8)
    colour = np.random.default_rng(1).integers(0, 255, (6, 8, 8, 3)).astype(np.uint8)
    study = own_data(npz(tmp_path / "s.npz", grey, [0, 1] * 3), npz(tmp_path / "t.npz", colour)).task.study
    assert study.source.x.shape[1:] == study.target.x.shape[1:] == (3, 8, 8)
    assert (np.asarray(study.source.x)[:, 0] == np.asarray(study.source.x)[:, 2]).all()


def test_a_parquet_file_holds_lists_or_columns(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    x = rows(6, 3)
    columns = {f"f{i}": x[:, i] for i in range(3)}
    parquet.write_table(arrow.table({"x": x.tolist(), "label": list("ababab")}), tmp_path / "lists.parquet")
    parquet.write_table(arrow.table({**columns, "label": list("ababab")}), tmp_path / "columns.parquet")
    for name in ("lists", "columns"):
        side = read_side(tmp_path / f"{name}.parquet", "source")
        np.testing.assert_allclose(side.x, x)
        assert side.labels == tuple("ababab")


def test_numbers_as_labels_are_put_in_their_own_order(tmp_path: Path) -> None:
    source = npz(tmp_path / "s.npz", rows(6), [10, 2, 1, 10, 2, 1])
    assert own_data(source, npz(tmp_path / "t.npz", rows(4, seed=1))).task.study.classes == ("1", "2", "10")


def test_target_labels_change_nothing_but_a_remark(tmp_path: Path) -> None:
    source = npz(tmp_path / "s.npz", rows(), ["a", "b"] * 6)
    plain = own_data(source, npz(tmp_path / "t.npz", rows(8, seed=1)))
    marked = own_data(source, npz(tmp_path / "u.npz", rows(8, seed=1), [-1] * 8))
    assert plain.task.origin == marked.task.origin
    flat_target, sorted_target = flat(tmp_path / "flat", 6), tmp_path / "sorted"
    for i in range(6):
        place = sorted_target / ("zebra" if i % 2 else "cat") / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((flat_target / f"{i}.png").read_bytes())
    pictures = tree(tmp_path / "s")
    first, second = own_data(pictures, flat_target), own_data(pictures, sorted_target)
    assert (first.unknown, second.unknown) == ((), ("zebra",))
    assert [d.target.unread for d in (plain, marked, first, second)] == [False, True, False, True]
    sorted_target.joinpath("cat").rename(sorted_target / "monday")
    assert own_data(pictures, sorted_target).unknown == (), "folders of which none is a class name no classes"
    images = [sorted(np.asarray(d.task.study.target.x).sum(axis=(1, 2, 3)).tolist()) for d in (first, second)]
    assert images[0] == images[1]


def test_rows_that_both_sides_share_are_counted(tmp_path: Path) -> None:
    x = rows(10)
    found = own_data(
        npz(tmp_path / "s.npz", x, ["a", "b"] * 5), npz(tmp_path / "t.npz", np.concatenate([x[:3], rows(4, seed=5)]))
    )
    assert found.shared == 3
    tree(tmp_path / "s", 2)
    (flat(tmp_path / "t") / "copy.png").write_bytes((tmp_path / "s" / "cat" / "0.png").read_bytes())
    assert own_data(tmp_path / "s", tmp_path / "t").shared == 1


def test_a_quick_look_takes_some_of_every_class(tmp_path: Path) -> None:
    source = tree(tmp_path / "s", 12)
    picture(source / "rare" / "0.png")
    picture(source / "rare" / "1.png")
    found = own_data(source, flat(tmp_path / "t", 9), most=6)
    study = found.task.study
    sizes = study.source.sizes(4) + study.source_val.sizes(4)
    assert sizes.tolist() == [2, 2, 2, 2]
    assert len(study.target) == 6


# --- what just works ---


def odd_pictures(folder: Path) -> int:
    """One picture of every kind that is not plain RGB; how many."""
    folder.mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 255, (9, 7, 3)).astype(np.uint8)
    rgb = Image.fromarray(noise)
    rgb.convert("L").save(folder / "grey.png")
    rgb.convert("RGBA").save(folder / "rgba.png")
    rgb.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(folder / "sixteen.png")
    rgb.save(folder / "moving.gif", save_all=True, append_images=[rgb.rotate(90, expand=True)])
    rgb.resize((300, 20)).save(folder / "wide.PNG")
    rgb.save(folder / f"{ODD.replace('/', '')}.png")
    rgb.convert("P").save(folder / "palette.png")
    return 8


def test_pictures_of_any_kind_size_and_name_just_work(tmp_path: Path) -> None:
    source = tree(tmp_path / "s", 2, ("plain", ODD.replace("/", "")))
    n = odd_pictures(tmp_path / "t")
    (tmp_path / "t" / "notes.md").write_text("not a picture")
    (tmp_path / "t" / ".hidden.png").write_text("not one either")
    found = own_data(source, tmp_path / "t")
    assert found.task.study.target.x.shape == (n, 3, 256, 256)
    assert ODD.replace("/", "") in found.task.study.classes


def test_links_are_followed_where_they_lead_somewhere_else(tmp_path: Path) -> None:
    flat(tmp_path / "elsewhere")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "cat").symlink_to(tmp_path / "elsewhere")
    assert find_pictures(tmp_path / "s") == [f"cat/{i}.png" for i in range(4)]


# --- what is refused, with a sentence and a hint ---

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


def _made(source: Callable[[Path], Path], target: Callable[[Path], Path] = lambda at: flat(at / "t")) -> Case:
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
    "nothing there": (_made(lambda at: at / "no"), r"The source .*/no does not exist\.", "a folder with"),
    "an empty folder": (_made(_folder), r"The folder .*/empty holds no picture\.", "pictures end in"),
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
    "a source without classes": (_made(lambda at: flat(at / "s")), r"The source .*/s has no labels\.", "sub-folder"),
    "a stray picture": (_made(_mixed), r"1 of the 13 pictures in .*/s lie outside its class folders\.", "sub-folder"),
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
    "a truncated JPEG": (_truncated, r"1 of the 5 pictures of .*/t cannot be decoded: bad\.jpg: .*\.", "--skip-broken"),
    "a text file named .jpg": (
        _broken(b"hello"),
        r"1 of the 5 pictures of .*/t cannot be decoded: bad\.jpg: .*\.",
        "--skip-broken",
    ),
    "a file of no bytes": (
        _broken(b""),
        r"1 of the 5 pictures of .*/t cannot be decoded: bad\.jpg: .*\.",
        "--skip-broken",
    ),
    "a link to the folder that it lies in": (
        _loop,
        r"The link .*/t/again leads back to a folder.*\.",
        "remove the link",
    ),
    "a link to itself": (_self_link, r"The picture .*/self\.png cannot be read: Too many levels.*\.", "mend or remove"),
    "a list of nothing": (_listed("\n"), r"The list .*/s\.csv is empty\.", "a line holds a path"),
    "a listed picture that is missing": (
        _listed("t/0.png,a\nt/9.png,b\n"),
        r"1 of the 2 pictures in .*/s\.csv do not exist, the first is t/9\.png \(line 2\)\.",
        "relative to",
    ),
    "a path listed twice": (
        _listed("t/0.png,a\nt/1.png,b\nt/0.png,b\n"),
        r"Line 3 of .*/s\.csv names t/0\.png, which line 1 has named already\.",
        "once",
    ),
    "a line without a label": (
        _listed("t/0.png,a\nt/1.png\n"),
        r"Line 2 of .*/s\.csv has no label, and others have one\.",
        "a line holds",
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
    "NaN in an array": (_arrays(rows(), AB, _nan()), r"1 of the 8 rows in .*/t\.npz hold NaN or infinity\.", "impute"),
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
    "one image a class": (
        _arrays(rows(3), [0, 1, 2], rows(4)),
        r"No class of the source .*/s\.npz has two images, so none can be held out\.",
        "label a few more",
    ),
    "fewer labels than rows": (
        _arrays(rows(3), [0, 1], rows(4)),
        r".*/s\.npz holds 3 rows and labels of shape \(2,\)\.",
        "one label a row",
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
        own_data(source, target)
    assert re.fullmatch(sentence, caught.value.sentence), caught.value.sentence
    assert hint in caught.value.hint
    assert "\n" not in caught.value.sentence + caught.value.hint


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    decode = picture_cache.decode

    def forbidden(path: Path) -> np.ndarray:  # a superuser may read anything, so permissions prove nothing
        if path == target / "0.png":
            raise PermissionError(13, "Permission denied", str(path))
        return decode(path)

    monkeypatch.setattr(picture_cache, "decode", forbidden)
    with pytest.raises(UserError, match=r"cannot be decoded: 0\.png: .*Permission denied"):
        own_data(source, target)


def test_broken_pictures_are_left_out_where_that_was_asked_for(tmp_path: Path) -> None:
    source, target = _broken(b"hello")(tmp_path)
    found = own_data(source, target, skip_broken=True)
    assert len(found.task.study.target) == 4
    assert [text.partition(":")[0] for text in found.target.broken] == ["bad.jpg"]
    assert found.target.names == ("0.png", "1.png", "2.png", "3.png")


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")

    def full(file: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(picture_cache, "_reserve", full)
    with pytest.raises(UserError, match="There is no room left on the disk") as caught:
        own_data(source, target)
    assert "192 KiB" in caught.value.hint


def test_a_name_with_spaces_in_a_text_list_needs_no_label(tmp_path: Path) -> None:
    picture(tmp_path / "my cat.png")
    (tmp_path / "list.txt").write_text("my cat.png\n")
    assert read_listing(tmp_path / "list.txt").paths == ("my cat.png",)
    (tmp_path / "list.txt").write_text("my cat.png cat\n")
    assert read_listing(tmp_path / "list.txt").labels == ("cat",)


def test_the_data_is_the_same_twice(tmp_path: Path) -> None:
    def load() -> OwnData:
        return own_data(tree(tmp_path / "s"), flat(tmp_path / "t"))

    assert load().task.origin == load().task.origin
