"""An adaptation evaluated on labels: what is read, how sure it is, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from commands import assert_refused, files
from conftest import Command
from torch import tensor

import askew
from askew import UserError
from askew.adaptation.audit import _strata, _turns
from askew.adaptation.request import read_truth
from askew.adaptation.target_rows import TargetRows, hash_rows
from askew.core.files import write_tensors
from askew.evaluation.metrics import accuracy_gain, labels_to_settle
from askew.evaluation.outputs import OUTPUTS_FORM, read_outputs

CLASSES = ("ant", "bee", "cat")
NAMES = tuple(f"{name}/{i}.png" for name in CLASSES for i in range(40))
TRUTH = np.repeat(np.arange(3), 40)


def adaptation(folder: Path) -> Path:
    """What `askew adapt` leaves of a target of 120 images: source-only right on 80 %, COAL on 95 %,
    MCD on 50 %."""
    methods = []
    for name, share in (("source", 0.8), ("coal", 0.95), ("mcd", 0.5)):
        rng = np.random.default_rng(len(name))
        predicted = np.where(rng.random(120) < share, TRUTH, (TRUTH + 1) % 3)
        told = {
            "source_val": np.eye(3),
            "source_val_y": np.arange(3),
            "target": 5 * np.eye(3)[predicted],
        }
        run = folder / "runs" / name
        run.mkdir(parents=True)
        write_tensors(
            run / "outputs.safetensors",
            {k: tensor(v) for k, v in (told | {"training_shares": np.full(3, 1 / 3)}).items()},
            {"form": OUTPUTS_FORM},
        )
        methods.append(
            {"name": name, "run": name, "verdict": None if name == "source" else "helped"}
        )
        if name == "coal":
            with (folder / "predictions.csv").open("w", newline="") as file:
                csv.writer(file).writerows(
                    [
                        ["path", "class"],
                        *([n, CLASSES[k]] for n, k in zip(NAMES, predicted, strict=True)),
                    ]
                )
    summary = {
        "classes": CLASSES,
        "saved": "coal",
        "target_shares": {"shares": [0.5, 0.25, 0.25]},
        "methods": methods,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return adaptation(tmp_path_factory.mktemp("own") / "out")


def labels(file: Path, pairs: list[tuple[str, str]]) -> Path:
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([("path", "label"), *pairs])
    return file


ALL = [(name, name.partition("/")[0]) for name in NAMES]


def test_methods_are_scored_and_a_gain_and_a_loss_are_told_apart(out: Path, tmp_path: Path) -> None:
    found = askew.audit(out, labels(tmp_path / "all.csv", ALL))
    source, coal, mcd = found.methods
    assert source.accuracy.value == pytest.approx(source.scores["per_class_mean"])
    assert (source.verdict, coal.verdict, mcd.verdict) == ("–", "helped", "hurt")
    assert coal.gain is not None
    assert coal.gain.value == pytest.approx(coal.accuracy.value - source.accuracy.value)
    assert found.sentence.startswith("Adaptation (coal) helped: ")
    assert found.shares_error == pytest.approx(1 / 6 + 2 / 12)
    assert found.unseen == ()


def test_a_few_labels_leave_it_open(out: Path, tmp_path: Path) -> None:
    found = askew.audit(out, labels(tmp_path / "few.csv", ALL[:2] + ALL[45:47]))
    assert found.labelled == 4
    assert found.unseen == ("cat",)
    assert found.methods[1].verdict == "unclear"
    assert "made no difference that these labels can show" in found.sentence


def test_a_network_that_was_kept_is_said_to_be_the_one_without_adaptation(tmp_path: Path) -> None:
    out = adaptation(tmp_path / "out")
    told = json.loads((out / "summary.json").read_text()) | {"saved": "source"}
    (out / "summary.json").write_text(json.dumps(told))
    rows = TargetRows(NAMES, find_hashes=lambda: [""] * len(NAMES))
    (out / "target.json").write_text(json.dumps(rows.as_dict()))
    assert askew.audit(out, labels(tmp_path / "all.csv", ALL)).sentence.startswith(
        "The network without adaptation"
    )


# --- how sure ---


@pytest.mark.parametrize("labelled", [100, 310])
def test_labels_drawn_where_networks_disagree_hold_the_truth_in_narrower_intervals(
    labelled: int,
) -> None:
    classes, rng = 31, np.random.default_rng(0)
    y = rng.choice(classes, 3000)
    wrong, u = (y + rng.integers(1, classes, 3000)) % classes, rng.random(3000)
    first, then = (
        np.where(u + 0.1 * rng.normal(size=3000) < share, y, wrong) for share in (0.6, 0.7)
    )
    right = (then == y).astype(float) - (first == y)
    truth = 100 * np.mean([right[y == k].mean() for k in range(classes)])
    widths, inside = {False: [], True: []}, {False: [], True: []}
    for _ in range(100):
        order = rng.permutation(3000)
        for disagree in (False, True):
            if disagree:
                order = order[np.argsort(_turns((first != then)[order]), kind="stable")]
            rows = order[:labelled]
            strata = _strata([first, then], rows, classes)
            assert (strata is not None) == disagree
            found = accuracy_gain(y[rows], first[rows], then[rows], classes, strata)
            widths[disagree].append(found.high - found.low)
            inside[disagree].append(found.low <= truth <= found.high)
    assert np.mean(inside[True]) > 0.9
    assert np.mean(inside[False]) > 0.9
    assert np.mean(widths[True]) < 0.9 * np.mean(widths[False])


def test_the_number_of_labels_that_would_settle_it_is_told(
    cli: Command, out: Path, tmp_path: Path
) -> None:
    few = labels(tmp_path / "few.csv", ALL[::8])
    found = askew.audit(out, few)
    assert found.methods[1].verdict == "unclear"
    assert found.needed is not None
    assert found.labelled < found.needed <= found.images
    assert (
        f"About {found.needed - found.labelled} more labels would tell coal from source-only"
        in found.outlook
    )
    assert found.outlook in cli("audit", str(out), str(few)).out.replace("\n", " ")
    assert (
        askew.audit(out, labels(tmp_path / "all.csv", ALL)).outlook
        == "These labels tell coal from source-only."
    )
    y = np.arange(30) % 3
    assert labels_to_settle(y, y, y, 3, 10_000) is None, "of two that are equal"


# --- a sheet to fill in ---


def test_three_of_four_images_are_drawn_where_the_methods_disagree(
    cli: Command, out: Path, tmp_path: Path
) -> None:
    cli("audit", out, "--sample", "40", "--disagree", "-o", tmp_path / "s.csv")
    drawn = [line.removesuffix(",") for line in (tmp_path / "s.csv").read_text().splitlines()[1:]]
    predicted = [
        read_outputs(out / "runs" / name).target_uniform.argmax(axis=1)
        for name in ("source", "coal", "mcd")
    ]
    contested = {name for i, name in enumerate(NAMES) if len({p[i] for p in predicted}) > 1}
    assert sum(name in contested for name in drawn) == 30
    cli("audit", out, "--sample", "500", "--disagree", "-o", tmp_path / "all.csv")
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 121


def test_a_longer_sheet_begins_with_the_images_of_a_shorter_one_and_shows_no_answer(
    cli: Command, out: Path, tmp_path: Path
) -> None:
    for n, name in ((10, "a.csv"), (500, "b.csv")):
        assert cli("audit", out, "--sample", n, "-o", tmp_path / name).code == 0
    short, long = ((tmp_path / name).read_text().splitlines() for name in ("a.csv", "b.csv"))
    assert long[:11] == short
    assert sorted(line.removesuffix(",") for line in long[1:]) == sorted(NAMES)


def test_a_sheet_that_is_there_is_not_written_over(cli: Command, out: Path, tmp_path: Path) -> None:
    sheet = labels(tmp_path / "mine.csv", ALL[:3])
    before = sheet.read_bytes()
    assert_refused(cli("audit", str(out), "--sample", "5", "-o", str(sheet)))
    assert sheet.read_bytes() == before


def test_a_sheet_filled_in_halfway_is_scored(cli: Command, out: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.csv"
    assert cli("audit", str(out), "--sample", "60", "-o", str(sheet)).code == 0
    rows = list(csv.reader(sheet.read_text().splitlines()))
    labels(
        sheet,
        [(path, path.partition("/")[0] if i < 50 else "") for i, (path, _) in enumerate(rows[1:])],
    )
    before = files(out)
    told = json.loads(cli("audit", str(out), str(sheet), "--json").out)
    assert (told["labelled"], told["images"]) == (50, 120)
    assert [m["name"] for m in told["methods"]] == ["source", "coal", "mcd"]
    shown = cli("audit", str(out), str(sheet))
    assert "50 of 120 target images are labelled" in shown.out
    assert "random sample" in shown.err
    assert files(out) == before, "an audit writes nothing"


# --- which image a label is of ---


def test_images_are_found_by_as_much_of_a_path_as_is_unique() -> None:
    names = ("a/x/1.png", "a/y/1.png", "a/y/2.png")
    target = TargetRows(names)
    assert target.by_name(["a/y/1.png", "2.png"], [None, None], "l") == [1, 2]
    assert target.by_name(["../elsewhere/x/1.png"], [None], "l") == [0]
    for wrong, why in (
        (["1.png"], "several"),
        (["3.png"], "none of"),
        (["2.png", "y/2.png"], "twice"),
    ):
        with pytest.raises(UserError, match=why):
            target.by_name(wrong, [None] * len(wrong), "l")


def test_labels_come_as_a_folder_of_classes_and_as_an_array(tmp_path: Path) -> None:
    for name in ("ant/1.png", "bee/2.png"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True)
        (tmp_path / "tree" / name).touch()
    rows, y = read_truth(tmp_path / "tree", ["2.png", "1.png", "3.png"], CLASSES)
    assert (rows.tolist(), y.tolist()) == ([1, 0], [0, 1])
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.savez(tmp_path / "a.npz", x=x[::-1], y=np.array(["cat", "ant", "bee"]))
    target = TargetRows(["0", "1", "2"], find_hashes=lambda: hash_rows(x))
    rows, y = read_truth(tmp_path / "a.npz", target, CLASSES)
    assert (rows.tolist(), y.tolist()) == ([2, 1, 0], [2, 0, 1])


# --- what is refused ---


def test_what_cannot_be_audited_is_refused_in_a_sentence(
    cli: Command, out: Path, tmp_path: Path
) -> None:
    good = labels(tmp_path / "good.csv", ALL)
    misspelt = labels(tmp_path / "misspelt.csv", [(NAMES[0], "antt")])
    strange = labels(tmp_path / "strange.csv", [("elsewhere.png", "ant")])
    empty = labels(tmp_path / "empty.csv", [(NAMES[0], "")])
    np.savez(tmp_path / "bare.npz", x=np.zeros((3, 2)))
    (tmp_path / "other.json").write_text("{}")
    gone = adaptation(tmp_path / "gone")
    (gone / "runs" / "mcd" / "outputs.safetensors").unlink()
    short = adaptation(tmp_path / "short")
    (short / "predictions.csv").write_text("path,class\nant/1.png,ant\n")
    for words, why in (
        ((out,), "no labels to evaluate on"),
        ((tmp_path,), "has no predictions.csv as `askew adapt` writes it"),
        ((out, good, "--sample", "3"), "cannot be used with LABELS"),
        ((out, "--sample", "-1"), "--sample"),
        ((tmp_path, good), "not a finished adaptation"),
        ((out, tmp_path / "missing.csv"), "do not exist"),
        ((out, misspelt), "did you mean 'ant'"),
        ((out, strange), "none of the target's"),
        ((out, empty), "no label in"),
        ((out, tmp_path / "bare.npz"), "no label in"),
        ((out, tmp_path / "other.json"), "neither a list"),
        ((gone, good), "is missing"),
        ((short, labels(tmp_path / "one.csv", [ALL[1]])), "has 1 rows"),
    ):
        answer = cli("audit", *map(str, words))
        assert_refused(answer)
        assert why in answer.err, answer.err
