"""`askew predict` and `askew export`, from files to a table."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from commands import assert_refused
from conftest import Command
from PIL import Image
from small_models import CLASSES, TARGET, images, predictor, rows

import askew
from askew.inference.predict_files import predict_sources
from askew.runs.root import finished_runs

HEAD = ["path", "class", "probability", "problem", *(f"p_{name}" for name in CLASSES)]


@pytest.fixture(scope="module")
def image_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes images."""
    folder = tmp_path_factory.mktemp("models") / "image_model"
    predictor("mini", (3, 32, 32)).save(folder)
    return folder


@pytest.fixture(scope="module")
def row_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes rows."""
    folder = tmp_path_factory.mktemp("models") / "row_model"
    predictor().save(folder)
    return folder


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many kinds in folders, good ones and broken ones."""
    folder = tmp_path_factory.mktemp("pictures") / "album"
    (folder / "z").mkdir(parents=True)
    (folder / "a b").mkdir()
    x = images(6, 40, 30, 3)
    Image.fromarray(x[0]).save(folder / "z" / "1.png")
    Image.fromarray(x[1]).save(folder / "a b" / "<script>,\"'.jpg")
    Image.fromarray(x[2]).convert("L").save(folder / "grey 😀.png")
    Image.fromarray(x[3]).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(x[4]).convert("RGBA").save(folder / "clear.webp")
    whole = io.BytesIO()
    Image.fromarray(x[5]).save(whole, "jpeg")
    (folder / "cut.jpg").write_bytes(whole.getvalue()[:400])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpg").write_text("not a picture")
    (folder / "notes.md").write_text("not meant as one")
    return folder


SOUND = ["a b/<script>,\"'.jpg", "clear.webp", "cmyk.jpg", "grey 😀.png", "z/1.png"]
BROKEN = ["cut.jpg", "empty.png", "text.jpg"]


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_command_predicts_with_a_run_s_model(
    mini_runs: Path, album: Path, cli: Command, tmp_path: Path
) -> None:
    answer = cli(
        "predict", finished_runs(mini_runs)[0], album, "-o", "answers.csv", "--device", "cpu"
    )
    assert answer.code == 0, answer.err
    assert answer.out == ""
    found = table((tmp_path / "answers.csv").read_text())
    assert len(found) == len(SOUND) + len(BROKEN)
    assert "predictions for 8 images in answers.csv, 3 of them broken" in answer.err
    assert "predicted label distribution: " in answer.err


def test_a_folder_gives_one_row_per_picture_in_a_stable_order(
    cli: Command, image_model: Path, album: Path
) -> None:
    answer = cli("predict", image_model, album)
    assert answer.code == 0, answer.err
    found = table(answer.out)
    assert list(found[0]) == HEAD
    assert [row["path"] for row in found] == [str(album / name) for name in sorted(SOUND + BROKEN)]
    model = askew.load(image_model, "cpu")
    p = model.predict_proba([album / name for name in SOUND])
    for row, wanted in zip([row for row in found if not row["problem"]], p, strict=True):
        assert [float(row[f"p_{name}"]) for name in CLASSES] == pytest.approx(wanted, abs=1e-5)
        assert row["class"] == CLASSES[wanted.argmax()]
        assert float(row["probability"]) == pytest.approx(wanted.max(), abs=1e-5)
    assert cli("predict", image_model, album, "--batch", 2).out == answer.out


def test_broken_pictures_are_named_in_the_table_and_on_stderr(
    cli: Command, image_model: Path, album: Path
) -> None:
    answer = cli("predict", image_model, album)
    broken = [row for row in table(answer.out) if row["problem"]]
    assert [Path(row["path"]).name for row in broken] == BROKEN
    assert all(not row["class"] and not row["probability"] and not row[HEAD[-1]] for row in broken)
    for name in BROKEN:
        assert f"cannot read {album / name}: " in answer.err


def test_json_without_a_file_prints_the_predictions_themselves(
    cli: Command, image_model: Path, album: Path
) -> None:
    told = json.loads(cli("predict", image_model, album, "--json").out)
    by_table = table(cli("predict", image_model, album).out)
    assert [row["path"] for row in told["predictions"]] == [row["path"] for row in by_table]
    assert [row["class"] or "" for row in told["predictions"]] == [row["class"] for row in by_table]
    assert (told["images"], told["broken"]) == (len(SOUND) + len(BROKEN), len(BROKEN))
    for row in told["predictions"]:
        assert (
            (row["problem"] is None) == ("probabilities" in row) == (row["probability"] is not None)
        )
        assert row["problem"] or sum(row["probabilities"].values()) == pytest.approx(1)


def test_a_list_may_call_its_column_of_paths_as_it_likes(
    cli: Command, image_model: Path, album: Path, tmp_path: Path
) -> None:
    (tmp_path / "list.csv").write_text(f"id;photo\n1;{album / 'cmyk.jpg'}\n2;{album / 'z/1.png'}\n")
    told = json.loads(
        cli("predict", image_model, tmp_path / "list.csv", "--path-column", "photo", "--json").out
    )
    assert [Path(row["path"]).name for row in told["predictions"]] == ["cmyk.jpg", "1.png"]
    answer = cli("predict", image_model, tmp_path / "list.csv", "--path-column", "picture")
    assert_refused(answer)
    assert "has no column 'picture': its first line is id, photo." in answer.err


def test_the_summary_as_json_has_the_predicted_distribution(
    cli: Command, image_model: Path, album: Path
) -> None:
    answer = cli("predict", image_model, album, "-o", "out.csv", "--json")
    message = json.loads(answer.out)
    found = [row["class"] for row in table(Path("out.csv").read_text()) if row["class"]]
    assert message == {
        "file": "out.csv",
        "images": 8,
        "broken": 3,
        "shares": {name: pytest.approx(found.count(name) / 5) for name in CLASSES},
    }


def test_parquet_holds_the_same_as_csv(cli: Command, image_model: Path, album: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert cli("predict", image_model, album, "-o", "out.parquet").code == 0
    read = parquet.read_table("out.parquet").to_pylist()
    wanted = table(cli("predict", image_model, album).out)
    assert list(read[0]) == HEAD
    for row, like in zip(read, wanted, strict=True):
        assert {k: row[k] or "" for k in ("path", "class", "problem")} == {
            k: like[k] for k in ("path", "class", "problem")
        }
        for name in ("probability", *HEAD[4:]):
            assert (
                row[name] is None
                if not like[name]
                else row[name] == pytest.approx(float(like[name]), abs=1e-5)
            )


def test_lists_files_and_folders_can_be_mixed(cli: Command, image_model: Path, album: Path) -> None:
    Path("list.csv").write_text(
        f"path,label\n{album / 'cmyk.jpg'},cat\n{album / 'clear.webp'},dog\n"
    )
    np.save("some.npy", images(2, 32, 32, 3))
    answer = cli("predict", image_model, "list.csv", album / "z", "some.npy", album / "text.jpg")
    names = [
        album / "cmyk.jpg",
        album / "clear.webp",
        album / "z/1.png",
        "some.npy:0",
        "some.npy:1",
        album / "text.jpg",
    ]
    assert [row["path"] for row in table(answer.out)] == [str(name) for name in names]


@pytest.mark.parametrize("kind", ["npy", "npz", "parquet"])
def test_arrays_of_rows_are_predicted(cli: Command, row_model: Path, kind: str) -> None:
    file = Path(f"rows.{kind}")
    if kind == "npy":
        np.save(file, rows(7))
    elif kind == "npz":
        np.savez(file, x=rows(7))
    else:
        arrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(arrow.table({"x": rows(7).tolist()}), file)
    found = table(cli("predict", row_model, file, "--shares", "target").out)
    p = askew.load(row_model, "cpu").predict_proba(rows(7), TARGET)
    assert np.array([[float(r[c]) for c in HEAD[4:]] for r in found]) == pytest.approx(p, abs=1e-5)
    assert [row["path"] for row in found] == [f"rows.{kind}:{i}" for i in range(7)]


def test_a_row_with_nan_is_named_and_the_others_are_predicted(
    cli: Command, row_model: Path
) -> None:
    x = rows(3)
    x[1, 2] = np.nan
    np.save("rows.npy", x)
    found = table(cli("predict", row_model, "rows.npy").out)
    assert ["NaN" in row["problem"] for row in found] == [False, True, False]


def test_shares_on_the_command_line_are_used(cli: Command, row_model: Path) -> None:
    np.save("rows.npy", rows(4))
    found = table(cli("predict", row_model, "rows.npy", "--shares", "0,0,1").out)
    p = askew.load(row_model, "cpu").predict_proba(rows(4), [0, 0, 1])
    assert [float(row["probability"]) for row in found] == pytest.approx(p.max(axis=1), abs=1e-5)


def test_shares_are_read_from_a_file_by_class(cli: Command, row_model: Path) -> None:
    np.save("rows.npy", rows(4))
    names = askew.load(row_model, "cpu").classes
    Path("shares.csv").write_text(
        "".join(f"{name},{int(k == 2)}\n" for k, name in enumerate(names))
    )
    by_file, by_list = (
        cli("predict", row_model, "rows.npy", "--shares", shares).out
        for shares in ("shares.csv", "0,0,1")
    )
    assert by_file == by_list
    Path("shares.csv").write_text("nobody,1\n")
    assert "nobody" in wrong(cli, "predict", row_model, "rows.npy", "--shares", "shares.csv")


def test_memory_does_not_grow_with_the_number_of_pictures(tmp_path: Path) -> None:
    model = predictor("mini", (3, 32, 32))
    Image.fromarray(images(1, 32, 32, 3)[0]).save(tmp_path / "one.png")

    def peak(n: int) -> int:
        tracemalloc.start()
        assert (
            sum(len(p.names) for p in predict_sources(model, [tmp_path / "one.png"] * n, batch=16))
            == n
        )
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(32)  # what is made once
    held = 3 * 32 * 32
    assert peak(640) - peak(64) < 200 * held, "576 more pictures would take 576 times as much"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")
def test_processes_that_decode_change_no_prediction(
    album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = predictor("mini", (3, 32, 32)), []

    def two(pictures: int, device: str) -> int:
        asked.append((pictures, device))
        return 2

    expected = list(predict_sources(model, [album] * 9, batch=4))
    monkeypatch.setattr("askew.inference.predict_files.processes_for", two)
    found = list(predict_sources(model, [album] * 9, batch=4))
    assert asked == [(72, "cpu")]
    for one, other in zip(found, expected, strict=True):
        assert (one.names, one.problems) == (other.names, other.problems)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)


def test_rows_of_arrays_are_left_to_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "askew.inference.predict_files.processes_for", lambda *_: pytest.fail("processes")
    )
    np.save(tmp_path / "rows.npy", rows(3))
    assert len(list(predict_sources(predictor(), [tmp_path / "rows.npy"]))) == 1


def test_a_model_moves_from_run_to_safetensors_to_onnx(
    cli: Command, mini_runs: Path, album: Path
) -> None:
    run = finished_runs(mini_runs)[0]
    assert cli("export", run, "-o", "model", "--to", "safetensors").code == 0
    assert cli("predict", "model", album).out == cli("predict", run, album).out
    pytest.importorskip("onnxruntime")
    message = json.loads(cli("export", "model", "-o", "m.onnx", "--json").out)
    assert message["form"] == "onnx"
    assert message["difference"] <= 1e-4
    assert Path("m.onnx").is_file()


@pytest.mark.parametrize("form", ["onnx", "safetensors"])
@pytest.mark.parametrize("name", ["m.pt", "m.pt2"])
def test_files_that_only_pytorch_writes_are_refused(
    cli: Command, row_model: Path, name: str, form: str
) -> None:
    sentence = wrong(cli, "export", row_model, "-o", name, "--to", form)
    assert sentence == f"askew exports no {Path(name).suffix} file, found '{name}'."
    assert not Path(name).exists()


# --- errors ---


def wrong(cli: Command, *args: object) -> str:
    answer = cli(*args)
    assert answer.code == 2, answer.err
    assert answer.out == ""
    sentence, hint = answer.err.strip().split("\n\n")
    assert hint.startswith("hint: ")
    return sentence


def beside(*things: Path) -> None:
    """Put them into this folder, by their names."""
    for thing in things:
        Path(thing.name).symlink_to(thing)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("none", "album"), "There is no model none."),
        (("album", "album"), "holds no model.json"),
        (("image_model", "nowhere"), "There is no nowhere."),
        (("image_model", "void"), "The folder void holds no picture."),
        (("image_model", "album/text.jpg", "-o", "out.csv"), "None of the pictures can be read"),
        (("row_model", "album"), "takes rows of 8 numbers, and not pictures"),
        (("row_model", "wide.npy"), "takes rows of 8 numbers, found float32 1 x 9"),
        (("image_model", "large.npy"), "takes uint8 3 x 32 x 32 images"),
        (("row_model", "zero.npy"), "is empty"),
        (("row_model", "objects.npy"), "holds Python objects"),
        (("row_model", "garbage.npy"), "The array file garbage.npy"),
        (("row_model", "garbage.npz"), "The array file garbage.npz"),
        (("image_model", "list.txt", "-o", "out.csv"), "None of the pictures can be read"),
        (("image_model", "album", "--shares", "sauce"), "There is no label distribution 'sauce'."),
        (("image_model", "album", "--shares", "1,2"), "each of the 3 classes, found 2 numbers"),
        (("image_model", "album", "-o", "out.xlsx"), "written as .csv or .parquet, found out.xlsx"),
        (
            ("image_model", "album", "-o", "no/out.csv"),
            "Cannot write a file no/out.csv: no is no folder that you may write to.",
        ),
        (("image_model", "album", "-o", "void"), "Cannot write a file void: it is a folder."),
        (("image_model", "album", "--device", "warp"), "There is no device 'warp'."),
        (("image_model", "album", "--batch", "-1"), "--batch"),
    ],
)
def test_what_cannot_be_predicted_is_explained(
    cli: Command,
    image_model: Path,
    row_model: Path,
    album: Path,
    args: tuple[str, ...],
    message: str,
) -> None:
    beside(image_model, row_model, album)
    Path("void").mkdir()
    np.save("wide.npy", rows(2, 9))
    np.save("large.npy", images(2, 3, 64, 64))
    np.save("zero.npy", rows(0))
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    Path("garbage.npy").write_bytes(b"\x93NUMPY")
    Path("garbage.npz").write_bytes(b"PK")
    Path("list.txt").write_text("nowhere/1.png\n")
    before = sorted(Path.cwd().rglob("*"))
    assert message in wrong(cli, "predict", *args)
    assert sorted(Path.cwd().rglob("*")) == before, "nothing is left half-written"


def test_a_stream_of_broken_pictures_alone_ends_in_an_error(
    cli: Command, image_model: Path, album: Path
) -> None:
    answer = cli("predict", image_model, album / "text.jpg")
    assert answer.code == 2
    assert "None of the pictures can be read" in answer.err
    assert [row["class"] for row in table(answer.out)] == [""]


def test_a_table_that_was_there_stays_when_prediction_fails(
    cli: Command, image_model: Path, album: Path
) -> None:
    Path("out.csv").write_text("mine")
    wrong(cli, "predict", image_model, album / "text.jpg", "-o", "out.csv")
    assert Path("out.csv").read_text() == "mine"


def test_parquet_without_its_extra_is_said_before_the_work(
    cli: Command, image_model: Path, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert "needs pyarrow" in wrong(cli, "predict", image_model, album, "-o", "out.parquet")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("none", "-o", "m.onnx"), "There is no model none."),
        (("row_model", "-o", "no/m.onnx"), "Cannot write a file no/m.onnx: "),
        (("row_model", "-o", "m.onnx", "--to", "tflite"), "tflite"),
        (("row_model", "-o", "album", "--to", "safetensors"), "holds other things than a model"),
        (
            ("row_model", "-o", "m", "--to", "safetensors", "--shares", "target"),
            "gets its class shares when it is used",
        ),
        (("row_model",), "-o"),
    ],
)
def test_what_cannot_be_exported_is_explained(
    cli: Command, row_model: Path, album: Path, args: tuple[str, ...], message: str
) -> None:
    beside(row_model, album)
    before = sorted(Path.cwd().rglob("*"))
    assert message in wrong(cli, "export", *args)
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_pipe_that_closes_early_is_no_error(
    row_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from askew.cli.predict import predict

    np.save(tmp_path / "rows.npy", rows(4))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        predict(
            model=row_model, images=[tmp_path / "rows.npy"], device="cpu", method="", backbone=""
        )
    assert capfd.readouterr().err == ""


def test_predict_does_not_overwrite_its_input(
    album: Path, image_model: Path, row_model: Path, tmp_path: Path, cli: Command
) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    listed, table = tmp_path / "list.csv", tmp_path / "t.parquet"
    listed.write_text(f"path\n{album / 'cmyk.jpg'}\n")
    pandas.DataFrame(rows()).rename(columns=str).to_parquet(table)
    (tmp_path / "link.csv").symlink_to(listed)
    for model, given, out in (
        (image_model, listed, listed),
        (image_model, listed, tmp_path / "link.csv"),
        (row_model, table, table),
    ):
        before = given.read_bytes()
        told = cli("predict", model, given, "-o", out)
        assert_refused(told)
        assert "is the input" in told.err
        assert given.read_bytes() == before
