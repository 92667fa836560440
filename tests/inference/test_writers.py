"""Tables of predictions."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from askew.core.errors import UserError
from askew.core.text import csv_cell, from_csv_cell
from askew.inference.writers import columns, write_predictions_csv

CLASSES = ("cat", 'a "dog", <b>')
P = np.array([[0.25, 0.75], [np.nan, np.nan], [1.0, 0.0]])
NAMES, PROBLEMS = ["x/1.png", "2,\n3.png", "😀.png"], ["", "truncated", ""]


def test_a_csv_has_one_row_per_input_and_the_columns_of_every_table_of_predictions(
    tmp_path: Path,
) -> None:
    write_predictions_csv(tmp_path / "p.csv", NAMES, PROBLEMS, P, CLASSES)
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert (
        header
        == columns(CLASSES)
        == ["path", "class", "probability", "problem", "p_cat", 'p_a "dog", <b>']
    )
    assert rows == [
        ["x/1.png", CLASSES[1], "0.75", "", "0.25", "0.75"],
        ["2,\n3.png", "", "", "truncated", "", ""],
        ["😀.png", "cat", "1", "", "1", "0"],
    ]


def test_an_open_file_gets_the_same_text_as_a_path(tmp_path: Path) -> None:
    text = io.StringIO()
    write_predictions_csv(text, NAMES, PROBLEMS, P, CLASSES)
    write_predictions_csv(tmp_path / "p.csv", NAMES, PROBLEMS, P, CLASSES)
    assert (tmp_path / "p.csv").read_bytes() == text.getvalue().encode()


def test_a_name_that_is_not_text_keeps_its_bytes(tmp_path: Path) -> None:
    write_predictions_csv(
        tmp_path / "p.csv", [b"\xff.png".decode(errors="surrogateescape")], [""], P[:1], CLASSES
    )
    assert b"\n\xff.png," in (tmp_path / "p.csv").read_bytes()


def test_a_csv_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(UserError, match="Cannot write"):
        write_predictions_csv(tmp_path / "p.csv", NAMES, PROBLEMS, P, CLASSES)
    assert [p.name for p in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.parametrize("mark", ["\r", "\n", "\r\n"])
def test_a_line_end_in_a_name_begins_no_line(tmp_path: Path, mark: str) -> None:
    name, file = f"a{mark}=1+1.png", tmp_path / "p.csv"
    classes = (f"c{mark}=2", "dog")
    write_predictions_csv(file, [name, "b"], ["", f"x{mark}=3"], np.eye(2), classes)
    with file.open(newline="", encoding="utf-8") as lines:
        found = list(csv.reader(lines))
    assert [row[0] for row in found] == ["path", name, "b"]
    assert found[0][-2:] == [f"p_c{mark}=2", "p_dog"]
    outside = "".join(file.read_bytes().decode().split('"')[::2])
    assert "=" not in outside
    assert "\r" not in outside


@pytest.mark.parametrize("sign", ["＝", "＋", "－", "＠"])
def test_full_width_signs_begin_no_formula(sign: str) -> None:
    assert csv_cell(f"{sign}1") == f"'{sign}1"
    assert from_csv_cell(csv_cell(f"{sign}1")) == f"{sign}1"
