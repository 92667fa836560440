"""Files and options that a user writes: whatever is in them, the answer is a value or one sentence
with a hint."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.core.errors import UserError
from askew.core.options import checked, options, parse
from askew.methods import METHODS, make_method
from askew.runs.config import RunRequest, Training
from askew.runs.grid import TYPES, Grid, read_grid
from askew.runs.recipes import read_settings
from askew.runs.tune import to_toml
from askew.training.optim import Optim


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "any.toml"


words = st.sampled_from(
    [
        "mini",
        "syn-uci",
        "mini/syn-uci",
        "coal",
        "digits/usps-mnist",
        "no-such",
        "",
        "degree:0.5",
        "x",
    ]
)
plain = st.one_of(words, st.integers(-5, 2**40), st.floats(), st.booleans(), st.text(max_size=6))
values = plain | st.lists(plain, max_size=3)


def tables(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    inner = st.dictionaries(
        st.sampled_from([*names, "odd"]) | st.text(max_size=4), values, max_size=4
    )
    return st.dictionaries(st.sampled_from([*names, "odd"]), values | inner, max_size=5)


def as_toml(table: dict[str, Any]) -> bytes:
    return to_toml(table, []).encode(errors="replace")


@settings(max_examples=150)
@given(st.binary(max_size=80) | tables(list(TYPES)).map(as_toml))
def test_a_grid_is_read_or_refused_in_a_sentence(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with contextlib.suppress(UserError):
        grid = read_grid(file)
        assert isinstance(grid, Grid)
        assert all(
            isinstance(request, RunRequest)
            for _, request in grid.requests(RunRequest(task="", method=""))
        )


@settings(max_examples=150)
@given(
    st.binary(max_size=80)
    | tables(["train", "method", "task", "coal", "syn-uci", "lr"]).map(as_toml)
)
def test_settings_are_read_or_refused_in_a_sentence(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with contextlib.suppress(UserError):
        assert isinstance(read_settings("mini", file), dict)


@settings(max_examples=150)
@given(st.lists(st.text(max_size=12), max_size=3))
def test_pairs_are_read_or_refused_in_a_sentence(pairs: list[str]) -> None:
    with contextlib.suppress(UserError):
        read = parse(pairs, "the method", "a=b")
        assert all(isinstance(value, str) for value in read.values())


@settings(max_examples=150)
@given(st.sampled_from(sorted(options(Training))), plain | st.none() | st.lists(plain, max_size=2))
def test_training_settings_are_taken_as_their_type_or_refused_in_a_sentence(
    name: str, value: Any
) -> None:
    with contextlib.suppress(UserError):
        training = Training(**checked(Training, {name: value}, "training"))
        assert isinstance(training, Optim)


@settings(max_examples=150)
@given(st.sampled_from([(id, name) for id, cls in METHODS.items() for name in options(cls)]), plain)
def test_hyper_parameters_are_taken_as_their_type_or_refused_in_a_sentence(
    option: tuple[str, str], value: Any
) -> None:
    id, name = option
    with contextlib.suppress(UserError):
        assert isinstance(getattr(make_method(id, {name: value}), name), int | float | str | bool)
