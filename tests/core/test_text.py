"""Names that strangers chose: harmless on a terminal and in a spreadsheet, and to be had back."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st
from small_models import predictor

from askew.cli.terminal import print_json, print_note, print_table, print_text
from askew.core.text import csv_cell, from_csv_cell, visible, visible_json
from askew.inference.writers import CsvWriter, PredictionBatch

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"
"""Writes to the clipboard of many terminals."""
EVIL = (
    CLIPBOARD,
    "\x9b31m",
    "a\rb",
    "\u202etxt.exe",
    "\u2066x",
    "\ud800",
    "\x7f",
    "\x00",
    "\u2028",
)

texts = st.text(st.characters() | st.sampled_from("\\xu0159abc\x1b\n'=+-@\ud800"), max_size=12)


@given(texts)
def test_what_is_made_visible_can_be_taken_back(text: str) -> None:
    shown = visible(text, keep="")
    escape = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4}))"
    assert re.sub(escape, lambda found: chr(int(found[1] or found[2], 16)), shown) == text
    assert all(c.isprintable() or c in " \xa0\xad" or c >= "\u0300" for c in shown)
    assert not set(shown) & {chr(c) for c in (*range(32), *range(127, 160))}
    shown.encode()


@given(texts)
def test_what_a_spreadsheet_would_compute_gets_an_apostrophe_that_can_be_taken_back(
    text: str,
) -> None:
    cell = csv_cell(text)
    assert from_csv_cell(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    if not text.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "'")):
        assert cell == text


@given(texts)
def test_json_stays_the_same_value(text: str) -> None:
    shown = visible_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    shown.encode()


@pytest.mark.parametrize("name", EVIL)
def test_nothing_that_is_printed_controls_the_terminal(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    print_text(name)
    print_note(name)
    print_json({name: name})
    print_table([name, "n"], [[name, "1"]])
    printed = "".join(capsys.readouterr())
    assert name not in printed
    assert "\x1b]" not in printed


def test_a_model_s_class_names_reach_neither_the_terminal_nor_a_spreadsheet_raw(
    cli: Command, tmp_path: Path
) -> None:
    model = predictor()
    object.__setattr__(model.card, "classes", ("=cmd|calc", CLIPBOARD, "plain"))
    model.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    answer = cli("predict", "model", "x.npy", "-o", "p.csv")
    assert answer.code == 0, answer.err
    assert CLIPBOARD not in answer.err + answer.out
    with (tmp_path / "p.csv").open(newline="") as file:
        cells = [row["class"] for row in csv.DictReader(file)]
    assert "'=cmd|calc" in cells
    assert set(map(from_csv_cell, cells)) <= {"=cmd|calc", CLIPBOARD, "plain"}


def test_predictions_on_a_terminal_control_nothing() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    CsvWriter(screen, (CLIPBOARD,)).write(
        PredictionBatch([f"{CLIPBOARD}.png"], [""], np.ones((1, 1)))
    )
    assert "\x1b" not in screen.getvalue()
    assert visible(CLIPBOARD, keep="") in screen.getvalue()
