"""Custom data: what is understood, and what just works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from generated_trees import picture
from own_files import CLASSES, cache, flat, npz, rows, tree  # noqa: F401 -- cache is a fixture
from PIL import Image

from askew.core.errors import UserError
from askew.data.array_files import read_array
from askew.data.custom import CustomData, load_custom_data, read_domain
from askew.data.image_lists import Columns, Listing, find_pictures, read_listing

ODD = 'it\'s "odd" <script>alert(1)</script> 🦉 & more'


# --- what is understood ---


def test_folders_lists_and_arrays_give_the_same_task(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    lines = [f"s/{c}/{i}.png" for c in CLASSES for i in range(4)]
    (tmp_path / "s.csv").write_text(
        "label,path\n" + "".join(f"{p.split('/')[1]},{p}\n" for p in lines)
    )
    (tmp_path / "semicolons.csv").write_text(
        "path;label\n" + "".join(f"{p};{p.split('/')[1]}\n" for p in lines)
    )
    (tmp_path / "s.txt").write_text("".join(f"{p} {p.split('/')[1]}\n" for p in lines))
    (tmp_path / "s.tsv").write_text("".join(f"{p}\t{p.split('/')[1]}\n" for p in lines))
    (tmp_path / "t.txt").write_text("".join(f"t/{i}.png\n" for i in range(4)))
    whole = load_custom_data(source, target)
    pixels = np.concatenate(
        [
            np.asarray(v.x)
            for v in (whole.task.training_data.source, whole.task.training_data.source_val)
        ]
    )
    assert pixels.shape == (12, 3, 256, 256)
    for name in ("s.csv", "semicolons.csv", "s.txt", "s.tsv"):
        assert (
            load_custom_data(tmp_path / name, tmp_path / "t.txt").task.origin == whole.task.origin
        ), name
    assert whole.task.training_data.classes == CLASSES
    assert whole.task.test is None
    assert whole.kind == "images"


def test_lists_with_other_column_names_and_semicolons_are_read_as_they_say(tmp_path: Path) -> None:
    source, target = tree(tmp_path / "s"), flat(tmp_path / "t")
    whole = load_custom_data(source, target)
    lines = [f"7;{name};s/{name}/{i}.png" for name in CLASSES for i in range(4)]
    (tmp_path / "s.csv").write_text("no, of photo;Species;Photo\n" + "\n".join(lines))
    (tmp_path / "t.csv").write_text("id;photo\n" + "\n".join(f"1;t/{i}.png" for i in range(4)))
    named = load_custom_data(
        tmp_path / "s.csv", tmp_path / "t.csv", columns=Columns("photo", "species")
    )
    assert named.task.origin == whole.task.origin
    (tmp_path / "l.csv").write_text("Photo,Species\ns/cat/0.png,cat")
    assert read_listing(tmp_path / "l.csv", Columns(label="species")) == Listing(
        tmp_path, ("s/cat/0.png",), ("cat",)
    )
    with pytest.raises(
        UserError, match=r"l\.csv has no column 'picture': its first line is Photo, Species\."
    ):
        read_listing(tmp_path / "l.csv", Columns("picture"))


@pytest.mark.parametrize("columns", [Columns("photo"), Columns("photo", "spices")])
def test_a_source_whose_list_has_no_column_of_labels_is_told_its_first_line(
    tmp_path: Path, columns: Columns
) -> None:
    flat(tmp_path / "t")
    (tmp_path / "l.csv").write_text("Photo,Species\nt/0.png,cat\nt/1.png,dog")
    with pytest.raises(
        UserError, match=r"l\.csv has no labels: its first line is 'Photo,Species'\."
    ) as told:
        load_custom_data(tmp_path / "l.csv", flat(tmp_path / "other"), columns=columns)
    assert "--label-column" in told.value.hint


def test_a_tenth_of_each_class_rounded_up_is_held_out_and_nothing_is_lost(tmp_path: Path) -> None:
    x, y = rows(61), ["a"] * 40 + ["b"] * 12 + ["c"] * 8 + ["d"]
    found = load_custom_data(
        npz(tmp_path / "s.npz", x, y), npz(tmp_path / "t.npz", rows(7, seed=1))
    )
    training_data = found.task.training_data
    assert training_data.source_val.sizes(4).tolist() == [4, 2, 1, 0]
    together = np.concatenate([training_data.source.x, training_data.source_val.x])
    assert sorted(map(tuple, together.tolist())) == sorted(map(tuple, x.tolist()))
    by_row = {tuple(row): label for row, label in zip(x.tolist(), y, strict=True)}
    for view in (training_data.source, training_data.source_val):
        assert [by_row[tuple(row)] for row in np.asarray(view.x).tolist()] == [
            training_data.classes[k] for k in view.y
        ]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 8, 9), (1, 8, 9)),
        ((6, 8, 9, 3), (3, 8, 9)),
        ((6, 3, 8, 9), (3, 8, 9)),
        ((6, 8, 9, 1), (1, 8, 9)),
    ],
)
def test_images_in_an_array_come_in_any_usual_order(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    np.save(tmp_path / "x.npy", x)
    found = read_array(tmp_path / "x.npy").x
    assert found.shape[1:] == expected
    last = shape[-1] in (1, 3)
    assert found[2, 0, 4, 5] == (
        x[2, 4, 5, 0] if last else x[2, 4, 5] if x.ndim == 3 else x[2, 0, 4, 5]
    )


def test_grey_images_beside_coloured_ones_get_three_channels(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 255, (6, 8, 8)).astype(np.uint8)
    colour = np.random.default_rng(1).integers(0, 255, (6, 8, 8, 3)).astype(np.uint8)
    training_data = load_custom_data(
        npz(tmp_path / "s.npz", grey, [0, 1] * 3), npz(tmp_path / "t.npz", colour)
    ).task.training_data
    assert training_data.source.x.shape[1:] == training_data.target.x.shape[1:] == (3, 8, 8)
    assert (
        np.asarray(training_data.source.x)[:, 0] == np.asarray(training_data.source.x)[:, 2]
    ).all()


def test_a_parquet_file_holds_lists_or_columns(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    x = rows(6, 3)
    columns = {f"f{i}": x[:, i] for i in range(3)}
    parquet.write_table(
        arrow.table({"x": x.tolist(), "label": list("ababab")}), tmp_path / "lists.parquet"
    )
    parquet.write_table(
        arrow.table({**columns, "label": list("ababab")}), tmp_path / "columns.parquet"
    )
    for name in ("lists", "columns"):
        side = read_domain(tmp_path / f"{name}.parquet", "source")
        np.testing.assert_allclose(side.x, x)
        assert side.labels == tuple("ababab")


def test_numbers_as_labels_are_put_in_their_own_order(tmp_path: Path) -> None:
    source = npz(tmp_path / "s.npz", rows(6), [10, 2, 1, 10, 2, 1])
    assert load_custom_data(
        source, npz(tmp_path / "t.npz", rows(4, seed=1))
    ).task.training_data.classes == ("1", "2", "10")


def test_target_labels_change_nothing_but_a_note(tmp_path: Path) -> None:
    source = npz(tmp_path / "s.npz", rows(), ["a", "b"] * 6)
    plain = load_custom_data(source, npz(tmp_path / "t.npz", rows(8, seed=1)))
    marked = load_custom_data(source, npz(tmp_path / "u.npz", rows(8, seed=1), [-1] * 8))
    assert plain.task.origin == marked.task.origin
    flat_target, sorted_target = flat(tmp_path / "flat", 6), tmp_path / "sorted"
    for i in range(6):
        place = sorted_target / ("zebra" if i % 2 else "cat") / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((flat_target / f"{i}.png").read_bytes())
    pictures = tree(tmp_path / "s")
    first, second = (
        load_custom_data(pictures, flat_target),
        load_custom_data(pictures, sorted_target),
    )
    assert (first.unknown, second.unknown) == ((), ("zebra",))
    assert [d.target.labels_ignored for d in (plain, marked, first, second)] == [
        False,
        True,
        False,
        True,
    ]
    sorted_target.joinpath("cat").rename(sorted_target / "monday")
    assert load_custom_data(pictures, sorted_target).unknown == (), (
        "folders of which none is a class name no classes"
    )
    images = [
        sorted(np.asarray(d.task.training_data.target.x).sum(axis=(1, 2, 3)).tolist())
        for d in (first, second)
    ]
    assert images[0] == images[1]


def test_rows_that_both_sides_share_are_counted(tmp_path: Path) -> None:
    x = rows(10)
    found = load_custom_data(
        npz(tmp_path / "s.npz", x, ["a", "b"] * 5),
        npz(tmp_path / "t.npz", np.concatenate([x[:3], rows(4, seed=5)])),
    )
    assert found.shared == 3
    tree(tmp_path / "s", 2)
    (flat(tmp_path / "t") / "copy.png").write_bytes((tmp_path / "s" / "cat" / "0.png").read_bytes())
    assert load_custom_data(tmp_path / "s", tmp_path / "t").shared == 1


def test_a_quick_look_takes_some_of_every_class(tmp_path: Path) -> None:
    source = tree(tmp_path / "s", 12)
    picture(source / "rare" / "0.png")
    picture(source / "rare" / "1.png")
    found = load_custom_data(source, flat(tmp_path / "t", 9), most=6)
    training_data = found.task.training_data
    sizes = training_data.source.sizes(4) + training_data.source_val.sizes(4)
    assert sizes.tolist() == [2, 2, 2, 2]
    assert len(training_data.target) == 6


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
    found = load_custom_data(source, tmp_path / "t")
    assert found.task.training_data.target.x.shape == (n, 3, 256, 256)
    assert ODD.replace("/", "") in found.task.training_data.classes


def test_links_are_followed_where_they_lead_somewhere_else(tmp_path: Path) -> None:
    flat(tmp_path / "elsewhere")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "cat").symlink_to(tmp_path / "elsewhere")
    assert find_pictures(tmp_path / "s") == [f"cat/{i}.png" for i in range(4)]


def test_a_name_with_spaces_in_a_text_list_needs_no_label(tmp_path: Path) -> None:
    picture(tmp_path / "my cat.png")
    (tmp_path / "list.txt").write_text("my cat.png\n")
    assert read_listing(tmp_path / "list.txt").paths == ("my cat.png",)
    (tmp_path / "list.txt").write_text("my cat.png cat\n")
    assert read_listing(tmp_path / "list.txt").labels == ("cat",)


def test_the_data_is_the_same_twice(tmp_path: Path) -> None:
    def load() -> CustomData:
        return load_custom_data(tree(tmp_path / "s"), flat(tmp_path / "t"))

    assert load().task.origin == load().task.origin
