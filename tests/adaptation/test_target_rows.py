"""Labels meet the rows that they are of: by name and content, never by their order alone."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from adaptations import Made, drawn, photographs
from conftest import Command

import askew
from askew import UserError
from askew.adaptation.request import read_truth
from askew.adaptation.target_rows import TARGET_FILE, TargetRows
from askew.data.custom import read_domain

XT, YT = drawn(102, [0.1, 0.3, 0.6], 0.4, 1)
XS, YS = drawn(120, [0.6, 0.3, 0.1], 0.0, 0)
CLASSES = ("ant", "bee", "cat")
LABELS = np.array(CLASSES)[YT]
ORDER = np.random.default_rng(5).permutation(len(XT))


@pytest.fixture
def out(made: Made, tmp_path: Path) -> Path:
    """A copy of an adaptation, whose files may be changed."""
    return shutil.copytree(made.out, tmp_path / "out")


def accuracy(out: Path, labels: object) -> list[float]:
    return [method.accuracy.value for method in askew.audit(out, labels).methods]


def sort_predictions(out: Path) -> None:
    file = out / "predictions.csv"
    with file.open(newline="") as lines:
        head, *rows = csv.reader(lines)
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows([head, *sorted(rows, key=lambda row: (row[1], row[2]))])


def test_sorted_predictions_do_not_change_an_audit(out: Path) -> None:
    by_name = {str(row): label for row, label in enumerate(LABELS)}
    before = accuracy(out, by_name)
    sort_predictions(out)
    assert accuracy(out, by_name) == before


def test_sorted_predictions_of_an_earlier_version_are_refused(out: Path) -> None:
    (out / TARGET_FILE).unlink()
    by_name = {str(row): label for row, label in enumerate(LABELS)}
    assert accuracy(out, by_name)
    sort_predictions(out)
    with pytest.raises(UserError, match="not in the order in which they were written"):
        askew.audit(out, by_name)


def test_shuffled_label_arrays_give_the_same_audit(out: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "y.npz", x=XT, y=LABELS)
    np.savez(tmp_path / "shuffled.npz", x=XT[ORDER], y=LABELS[ORDER])
    frame = pd.DataFrame(XT[ORDER]).assign(label=LABELS[ORDER])
    before = accuracy(out, tmp_path / "y.npz")
    assert accuracy(out, tmp_path / "shuffled.npz") == before
    assert accuracy(out, (XT[ORDER], LABELS[ORDER])) == before
    assert accuracy(out, frame) == before
    assert askew.audit(out, (XT[ORDER[:40]], LABELS[ORDER[:40]])).labelled == 40


@pytest.mark.parametrize(
    ("x", "y"),
    [(XS, np.array(CLASSES)[YS]), (XS[:102], np.array(CLASSES)[YS[:102]]), (XT + 1, LABELS)],
    ids=["the source", "of equal length", "another data set"],
)
def test_label_arrays_of_other_data_are_refused(
    out: Path, tmp_path: Path, x: np.ndarray, y: np.ndarray
) -> None:
    np.savez(tmp_path / "y.npz", x=x, y=y)
    for labels in (tmp_path / "y.npz", (x, y)):
        with pytest.raises(UserError, match="are not in the target"):
            askew.audit(out, labels)


def test_more_labels_than_rows_of_equal_content_are_refused(out: Path) -> None:
    twice = np.concatenate([XT, XT[:1]])
    with pytest.raises(UserError, match="more often than the target"):
        askew.audit(out, (twice, np.append(LABELS, LABELS[0])))


def test_training_labels_of_other_rows_are_refused(tmp_path: Path) -> None:
    for labels in ((XS, np.array(CLASSES)[YS]), (XT + 1, LABELS)):
        with pytest.raises(UserError, match="are not in the target"):
            askew.adapt((XS, np.array(CLASSES)[YS]), XT, labels=labels)


def test_stored_rows_are_those_of_the_target(out: Path) -> None:
    stored = json.loads((out / TARGET_FILE).read_text())
    assert stored["names"] == [str(row) for row in range(102)]
    assert len(set(stored["hashes"])) == 102
    assert {len(one) for one in stored["hashes"]} == {16}


def renamed(folder: Path, root: Path) -> Path:
    for file in root.rglob("*.png"):
        (folder / f"new {file.name}").parent.mkdir(exist_ok=True)
        shutil.copy(file, folder / f"new {file.name}")
    return folder


def test_images_with_the_names_of_others_are_refused(tmp_path: Path) -> None:
    target = read_domain(photographs(tmp_path / "target", ("ant", "bee"), 3, 0), "target")
    rows = TargetRows.of(target)
    for name in ("ant", "bee"):
        (tmp_path / "labels" / name).mkdir(parents=True)
        for i in range(3):
            file = f"{name} {i}.png"
            shutil.copy(tmp_path / "target" / file, tmp_path / "labels" / name / file)
    found, y = read_truth(tmp_path / "labels", rows, ("ant", "bee"))
    assert (found.tolist(), y.tolist()) == (list(range(6)), [0, 0, 0, 1, 1, 1])
    photographs(tmp_path / "other", ("ant", "bee"), 3, 9)
    with pytest.raises(UserError, match="has another content than the target's"):
        read_truth(tmp_path / "other", rows, ("ant", "bee"))
    lines = [
        "path,label",
        *(f"other/{c}/{c} {i}.png,{c}" for c in ("ant", "bee") for i in range(3)),
    ]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    with pytest.raises(UserError, match="has another content than the target's"):
        read_truth(tmp_path / "list.csv", rows, ("ant", "bee"))


def test_equal_base_names_are_told_apart_by_content(tmp_path: Path) -> None:
    for k, name in enumerate(("a", "b")):
        photographs(tmp_path / "target" / name, ("ant",), 1, 0)
        photographs(tmp_path / "made", ("ant",), 1, k + 1)
        (tmp_path / "made" / "ant" / "ant 0.png").replace(tmp_path / "target" / name / "ant 0.png")
    rows = TargetRows.of(read_domain(tmp_path / "target", "target"))
    (tmp_path / "labels" / "ant").mkdir(parents=True)
    shutil.copy(tmp_path / "target" / "b" / "ant 0.png", tmp_path / "labels" / "ant" / "ant 0.png")
    assert read_truth(tmp_path / "labels", rows, ("ant", "bee"))[0].tolist() == [1]


@pytest.mark.parametrize("change", ["shuffle", "drop", "rename"])
def test_lists_of_labels_give_the_right_result_or_are_refused(
    out: Path, tmp_path: Path, change: str, cli: Command
) -> None:
    pairs = [(str(row), label) for row, label in enumerate(LABELS)]
    changes: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "shuffle": lambda: [pairs[i] for i in ORDER],
        "drop": lambda: pairs[10:],
        "rename": lambda: [(f"new-{name}", label) for name, label in pairs],
    }
    lines = ["path,label", *(f"{name},{label}" for name, label in changes[change]())]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    if change == "rename":
        assert "is none of the target's images" in cli("audit", str(out), "labels.csv").err
    elif change == "shuffle":
        assert accuracy(out, tmp_path / "labels.csv") == accuracy(out, dict(pairs))
    else:
        assert askew.audit(out, tmp_path / "labels.csv").labelled == 92
