"""Tuning: which points are tried, which is chosen, what is written, and that a bench reads it."""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from askew.core.errors import UserError
from askew.core.options import options
from askew.methods import METHODS, method_class
from askew.runs.recipes import read_settings
from askew.runs.tune import (
    TPE,
    Given,
    Result,
    Trial,
    _at,
    _share,
    best,
    check_tasks,
    to_toml,
    trials,
    tuned_settings,
)

some = examples(max_examples=40)

RANGES = '''\
from dataclasses import dataclass
from typing import Annotated

import askew
from askew.methods.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Ranges(askew.methods.Method):
    """One of each kind."""

    size: Annotated[float, askew.methods.Search(0.01, 100, log=True)] = 1.0
    """In log scale."""
    share: Annotated[float, askew.methods.Search(0, 1)] = 0.5
    """In linear scale."""
    count: Annotated[int, askew.methods.Search(1, 4)] = 2
    """A whole number."""
    many: Annotated[int, askew.methods.Search(1, 1000, log=True)] = 30
    """A whole number in log scale."""
    switch: Annotated[bool, askew.methods.Search(0, 1)] = False
    """Yes or no."""
    fixed: float = 7.0
    """Not searched."""


@dataclass(frozen=True, kw_only=True)
class Switch(askew.methods.Method):
    """Two points, and no more."""

    switch: Annotated[bool, askew.methods.Search(0, 1)] = False
    """Yes or no."""


@dataclass(frozen=True, kw_only=True)
class Narrow(askew.methods.Method):
    """A range whose ends have three digits."""

    size: Annotated[float, askew.methods.Search(0.124, 0.126)] = 0.125
    """Between two numbers of two digits."""


@dataclass(frozen=True, kw_only=True)
class Idle(askew.methods.Method):
    """Learns nothing by default, so any other point is better."""

    weight: Annotated[float, askew.methods.Search(1, 2)] = 0.0
    """Weight of the loss."""

    def losses(self, net, batch, state, t):
        fs, _ = askew.methods.join_domains(net, batch)
        return {"label": self.weight * cross_entropy(net["head"](fs), batch.ys)}
'''


@pytest.fixture
def own(tmp_path: Path) -> Callable[[str], str]:
    """A method of the file above, by its class."""
    (tmp_path / "ranges.py").write_text(RANGES)
    return lambda name: f"{tmp_path / 'ranges.py'}:{name}"


# --- what is tried ---


def test_the_present_settings_come_first_then_the_defaults_then_points_of_the_search() -> None:
    found = trials("dann", {"method": {"dann": {"weight": 0.2}}}, 5)
    assert [t.origin for t in found] == ["settings", "default", "searched", "searched", "searched"]
    assert [dict(t.params) for t in found[:2]] == [{"weight": 0.2}, {"weight": 1.0}]
    assert found[0].label == "weight=0.2"
    assert {t.method for t in found} == {"dann"}


def test_settings_that_are_the_defaults_are_tried_once() -> None:
    assert [t.origin for t in trials("dann", {}, 3)] == ["settings", "searched", "searched"]
    assert [t.origin for t in trials("dann", {"method": {"dann": {"weight": 1.0}}}, 2)] == [
        "settings",
        "searched",
    ]


def test_a_whole_number_in_the_settings_is_the_same_point_as_the_default() -> None:
    found = trials("dann", {"method": {"dann": {"weight": 1}}}, 2)
    assert [t.origin for t in found] == ["settings", "searched"]
    assert isinstance(found[0].params["weight"], float)


def test_what_is_not_searched_is_in_no_trial() -> None:
    settings = {"method": {"dann": {"weight": 0.2, "hidden": 64, "train": {"lr": 0.1}}}}
    assert all(set(t.params) == {"weight"} for t in trials("dann", settings, 4))


@pytest.mark.parametrize("method", METHODS)
def test_every_listed_method_is_tried_within_its_ranges_and_no_point_twice(method: str) -> None:
    found = trials(method, read_settings("digits"), 12)
    searched = {name: o for name, o in options(METHODS[method]).items() if o.search}
    assert 1 <= len(found) <= 12
    assert len({t.label for t in found}) == len(found)
    for trial in found:
        assert list(trial.params) == list(searched)
        for name, value in trial.params.items():
            assert type(value) is searched[name].type
            search = searched[name].search
            assert search is not None
            if trial.origin == "searched":
                assert search.low <= value <= search.high


def test_a_log_range_is_searched_evenly_in_its_logarithm_and_a_linear_one_as_it_is(
    own: Any,
) -> None:
    found = [t.params for t in trials(own("Ranges"), {}, 65) if t.origin == "searched"]
    assert len(found) == 64
    for name, low, high, scale in (("size", 0.01, 100, math.log), ("share", 0, 1, float)):
        shares = sorted((scale(h[name]) - scale(low)) / (scale(high) - scale(low)) for h in found)
        assert all(abs(share - (i + 0.5) / 64) < 0.05 for i, share in enumerate(shares)), name
    assert 20 < statistics.median(h["many"] for h in found) < 50  # √1000 is 32


def test_whole_numbers_and_switches_stay_such_and_reach_every_value(own: Any) -> None:
    found = [t.params for t in trials(own("Ranges"), {}, 65)]
    assert {h["count"] for h in found} == {1, 2, 3, 4}
    assert {h["switch"] for h in found} == {True, False}
    assert all(
        type(h["count"]) is type(h["many"]) is int and type(h["switch"]) is bool for h in found
    )
    assert all(
        h["size"] == float(f"{h['size']:.2g}") for h in found
    )  # two digits: nobody can tell more apart


def test_a_point_rounded_to_two_digits_stays_in_its_range(own: Any) -> None:
    assert all(0.124 <= t.params["size"] <= 0.126 for t in trials(own("Narrow"), {}, 8))


def test_a_method_without_ranges_has_one_trial_and_one_with_two_points_has_two(own: Any) -> None:
    (only,) = trials("source", {}, 8)
    assert (only.params, only.label) == ({}, "")
    assert [t.label for t in trials(own("Switch"), {}, 8)] == ["switch=False", "switch=True"]


@some
@given(st.integers(1, 20), st.sampled_from(["dann", "coal", "mcd", "bbse"]))
def test_trials_are_the_same_every_time_and_more_of_them_begin_with_fewer(
    count: int, method: str
) -> None:
    few = trials(method, {}, count)
    assert 1 <= len(few) <= count
    assert trials(method, {}, count) == few
    assert trials(method, {}, count + 5)[: len(few)] == few


# --- which is chosen ---


def result(name: str, *values: float | None, **more: tuple[float | None, ...]) -> Result:
    return Result(Trial("m", name, {}), {"one": values} | more)


def test_the_highest_mean_is_chosen_and_the_earlier_of_equal_ones() -> None:
    assert best([result("a", 50.0), result("b", 70.0), result("c", 60.0)]) == result("b", 70.0)
    assert best([result("a", 60.0), result("b", 50.0, 70.0)]) == result("a", 60.0)
    assert best([result("a", 0.0), result("b", 0.0)]) == result("a", 0.0)


def test_tasks_count_the_same_however_many_seeds_they_have() -> None:
    assert result("a", 10.0, 20.0, two=(45.0,)).mean == 30.0


def test_a_failed_run_excludes_its_trial() -> None:
    half = result("a", 90.0, None)
    assert half.mean is None
    assert best([half, result("b", 10.0)]) == result("b", 10.0)
    assert best([result("a", 99.0, two=(None,)), result("b", 10.0)]) == result("b", 10.0)


def test_nothing_is_chosen_where_nothing_finished() -> None:
    assert best([]) is None
    assert best([result("a", None), result("b", None, 1.0)]) is None


# --- what is written ---


def test_chosen_values_replace_the_present_ones_and_nothing_else() -> None:
    settings = {
        "train": {"lr": 0.1},
        "method": {
            "dann": {"weight": 1.0, "hidden": 64, "train": {"lr": 0.2}},
            "coal": {"alpha": 0.1},
        },
        "task": {"syn-uci": {"method": {"dann": {"weight": 3.0}}}},
    }
    before = json.dumps(settings)
    chosen = [Trial("dann", "searched", {"weight": 0.5}), Trial("bbse", "settings", {"soft": True})]
    found = tuned_settings(settings, chosen)
    assert found["method"] == {
        "dann": {"weight": 0.5, "hidden": 64, "train": {"lr": 0.2}},
        "coal": {"alpha": 0.1},
        "bbse": {"soft": True},
    }
    assert (found["train"], found["task"]) == (settings["train"], settings["task"])
    assert json.dumps(settings) == before
    assert tuned_settings({}, []) == {}


def test_a_method_from_a_file_is_written_under_its_id(own: Any) -> None:
    assert tuned_settings({}, [Trial(own("Switch"), "searched", {"switch": True})]) == {
        "method": {"switch": {"switch": True}}
    }


names = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1).filter(
    lambda name: name not in ("train", "method", "task", "recipe")
)
texts = st.text(st.characters(exclude_categories=["Cc", "Cs"])) | st.text("\"\\ #=[]'n\t")
plain = st.dictionaries(
    names, st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | st.booleans() | texts
)


def table(tables: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(names, tables, max_size=3)


methods = table(st.builds(lambda own, train: own | {"train": train}, plain, plain))
whole = st.fixed_dictionaries(
    {
        "train": plain,
        "method": methods,
        "task": table(st.fixed_dictionaries({"train": plain, "method": methods})),
    }
)


def without_empty_tables(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    inner = {name: without_empty_tables(item) for name, item in value.items()}
    return {name: item for name, item in inner.items() if item != {}}


@some
@given(whole)
def test_settings_are_read_as_they_were_written(settings: dict[str, Any]) -> None:
    text = to_toml(settings, ["Chosen by hand.", "[train]", 'weight = "1'])
    found = tomllib.loads(text)
    assert found == without_empty_tables(settings)
    assert json.dumps(found, sort_keys=True) == json.dumps(
        without_empty_tables(settings), sort_keys=True
    )  # 1 ≠ 1.0


@some
@given(whole)
def test_a_written_file_is_a_settings_file(
    tmp_path_factory: pytest.TempPathFactory, settings: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_text(to_toml(settings, []), encoding="utf-8")
    assert read_settings("mini", path) == without_empty_tables(settings)


@pytest.mark.parametrize("value", ["two\nlines", "\x00", "\x7f", "\r", "\x1b[0m"])
def test_control_characters_are_escaped(value: str) -> None:
    assert tomllib.loads(to_toml({"train": {"weights": value}}, []))["train"]["weights"] == value


@pytest.mark.parametrize("name", ["ent+min", "v1.5", "my method", 'say "hi"', "λ", ""])
def test_a_name_that_toml_does_not_take_bare_is_quoted(name: str) -> None:
    settings = {"method": {name: {"weight": 0.5, "train": {"lr": 0.1}}}}
    assert tomllib.loads(to_toml(settings, [])) == settings


def test_a_comment_stays_a_comment() -> None:
    assert tomllib.loads(to_toml({"train": {"lr": 0.1}}, ["askew tune --out 'a\nlr = 9'"])) == {
        "train": {"lr": 0.1}
    }


@pytest.mark.parametrize("benchmark", ["mini", "digits"])
def test_the_committed_settings_survive_writing(benchmark: str) -> None:
    settings = read_settings(benchmark)
    assert tomllib.loads(to_toml(tuned_settings(settings, []), ["x"])) == without_empty_tables(
        settings
    )


# --- where it may be done ---


@pytest.mark.parametrize(
    ("tasks", "draw", "benchmark"),
    [
        (["mini/syn-uci"], 1, "mini"),
        (["mini/syn-uci", "mini/uci-syn"], 2, "mini"),
        (["digits/usps-uci"], 0, "digits"),
        (["digits/usps-uci", "digits/uci-mnist", "digits/syn-usps"], 3, "digits"),
    ],
)
def test_development_tasks_and_further_draws_of_mini_may_be_tuned_on(
    tasks: list[str], draw: int, benchmark: str
) -> None:
    assert check_tasks(tasks, draw) == benchmark


@pytest.mark.parametrize(
    ("tasks", "draw", "sentence", "hint"),
    [
        (["mini/syn-uci"], 0, "The task mini/syn-uci is reported in tables", "--draw 1"),
        (["mini/syn-uci"], -1, "The task mini/syn-uci is reported in tables", "--draw 1"),
        (
            ["digits/usps-mnist"],
            0,
            "The task digits/usps-mnist is reported in tables",
            "digits/usps-uci",
        ),
        # other draws of a real domain share its images, so they would tell
        (
            ["digits/usps-mnist"],
            1,
            "The task digits/usps-mnist is reported in tables",
            "digits/usps-uci",
        ),
        (
            ["digits/usps-uci", "digits/mnist-usps"],
            0,
            "The task digits/mnist-usps is reported",
            "digits/usps-uci",
        ),
        (
            ["mini/syn-uci", "digits/usps-uci"],
            1,
            "Settings belong to one benchmark, found tasks of digits, mini.",
            "",
        ),
        (["digits/usps-usi"], 0, "There is no task 'digits/usps-usi'.", "digits/usps-uci"),
        (["usps-uci"], 0, "There is no task 'usps-uci'.", "digits/usps-uci"),
        ([], 0, "Settings belong to one benchmark, found tasks of none.", "askew tune "),
    ],
)
def test_tuning_elsewhere_is_refused(tasks: list[str], draw: int, sentence: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        check_tasks(tasks, draw)
    assert caught.value.sentence.startswith(sentence)
    assert hint in caught.value.hint


# --- samplers ---


def peak(trial: Trial, at: float) -> Result:
    """A score that is highest where alpha is `at`."""
    return Result(trial, {"t": (100 - 100 * abs(trial.params["alpha"] - at),)})


def test_tpe_draws_near_what_scored_well_and_begins_with_settings_and_defaults() -> None:
    pytest.importorskip("optuna", reason="tpe is Optuna's")
    planned = trials("coal", {}, 24)
    sampler, seen = TPE(planned), list[Trial]()
    while asked := sampler.ask():
        seen += asked
        sampler.tell([peak(trial, 0.9) for trial in asked])
    assert len(seen) == 24
    assert seen[0] == planned[0]
    assert {trial.origin for trial in seen[1:]} == {"searched"}
    late = [abs(trial.params["alpha"] - 0.9) for trial in seen[-8:]]
    early = [abs(trial.params["alpha"] - 0.9) for trial in seen[:8]]
    assert sum(late) < sum(early)
    again = TPE(planned)
    first = again.ask()
    again.tell([peak(trial, 0.9) for trial in first])
    assert again.ask()[0] == seen[1], "the same each time, so that an interrupted search goes on"


def test_what_is_given_is_run_all_at_once_with_equal_budgets() -> None:
    planned = trials("coal", {}, 4)
    sampler = Given(planned)
    assert sampler.ask() == planned
    assert sampler.ask() == []


def test_a_share_of_a_range_is_the_inverse_of_its_value() -> None:
    for name, option in options(method_class("coal")).items():
        if option.search:
            for share in (0.0, 0.3, 1.0):
                assert _share(option, _at(option, share)) == pytest.approx(share, abs=0.06), name
