"""Recipes: equal conditions for every method, by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import assert_refused
from conftest import TINY, Command

from askew.core.errors import UserError
from askew.methods import COMPARED, METHODS, PAPER
from askew.runs.config import RunRequest, prepare
from askew.runs.grid import read_grid
from askew.runs.recipes import merged_settings, nearest_recipe, read_settings, recipes_of
from askew.runs.tune import Trial, trials, tuned_settings

RECIPES = ("paper", "today")
OWN_DRAW = {"mdd", "fixmatch", "sentry", "teacher"}
"""Methods whose authors count the draw of target images as part of the method."""


def described(method: str, recipe: str = "", **training: Any) -> dict[str, Any]:
    return prepare(
        RunRequest(task="mini/syn-uci", method=method, recipe=recipe, training=training)
    ).run.describe()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_every_method_the_same_conditions(recipe: str) -> None:
    conditions = set()
    for method in COMPARED:
        run = described(method, recipe)
        drawn = run.pop("target_sampler"), run.pop("target_floor", None)
        assert (drawn[0] != "natural") == (method in OWN_DRAW)
        stages = [
            (stage["optim"], stage["rounds"], stage["round_steps"]) for stage in run.pop("plan")
        ]
        net = run.pop("net")
        conditions.add(
            json.dumps([run, stages[0], stages[-1], net["layers"], net["norm"]], sort_keys=True)
        )
    assert len(conditions) == 1


@pytest.mark.parametrize("benchmark", ["mini", "digits"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_equal_on_every_task_is_equal_for_every_method(benchmark: str, recipe: str) -> None:
    settings = read_settings(benchmark)
    for task in ("usps-mnist", "svhn-mnist", "syn-uci"):
        found = {m: merged_settings(settings, task, m, recipe)[1] for m in COMPARED}
        for training in found.values():
            training.pop("target_sampler", None)
        assert all(training == found["source"] for training in found.values())


def test_a_run_keeps_the_key_that_it_has_without_a_recipe() -> None:
    for method in PAPER:
        assert described(method, "paper") == described(method)
    assert described("teacher", "today") == described("teacher")


def test_the_digits_of_today_are_what_the_teacher_was_reported_with() -> None:
    reported = {
        "views": "affine",
        "inversion": 0.5,  # without effect on these views
        "norm": "split",
        "last_dropout": False,
        "target_sampler": "even",
        "batch": 128,
        "optimiser": "adam",
        "lr": 0.001,
        "features_lr": 0.001,
        "weight_decay": 0.0,
        "pretrain": 1000,
        "pretrain_schedule": "constant",
        "rounds": 10,
        "round": 250,
        "precision": "tf32",
        "schedule": "cosine",
        "temperature": 0.1,
        "sampler": "balanced",
    }
    settings = read_settings("digits")
    assert merged_settings(settings, "usps-mnist", "teacher") == ({"threshold": 0.968}, reported)
    for task in ("svhn-mnist", "syn-mnist", "syn-usps", "svhn-uci"):
        assert merged_settings(settings, task, "teacher")[1] == reported | {
            "views": "affine+intensity"
        }


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_s_recipe_is_found_even_where_some_settings_were_changed(recipe: str) -> None:
    for method in COMPARED:
        assert nearest_recipe(described(method, recipe)) == recipe
        assert (
            nearest_recipe(described(method, recipe, rounds=3, lr=0.5, sampler="natural")) == recipe
        )


def test_a_task_of_one_s_own_has_no_recipe() -> None:
    assert nearest_recipe(described("coal") | {"task": "mine"}) == ""


def test_a_recipe_that_is_not_there_is_refused(cli: Command, tmp_path: Path) -> None:
    answer = cli("bench", "mini", "--recipe", "todya")
    assert_refused(answer)
    assert answer.err.startswith(
        "There is no recipe of these settings 'todya'.\n\nhint: did you mean 'today'?"
    )
    (tmp_path / "my.toml").write_text("[train]\nlr = 0.1\n")
    with pytest.raises(UserError, match="There is no recipe of these settings 'today'"):
        prepare(
            RunRequest(
                task="mini/syn-uci", method="coal", settings=tmp_path / "my.toml", recipe="today"
            )
        )


def test_a_recipe_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[recipe]\ntoday = 1\n")
    with pytest.raises(UserError, match=r"holds 'recipe.today' = 1 where a table belongs"):
        read_settings("mini", tmp_path / "my.toml")


def test_a_variant_of_a_grid_may_name_its_recipe_and_the_user_s_comes_first(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(
        'benchmark = "mini"\n[variant.old]\n[variant.new]\nrecipe = "today"\n'
    )
    grid = read_grid(tmp_path / "my.toml")
    assert {(name, r.recipe) for name, r in grid.requests(RunRequest(task="", method=""))} == {
        ("old", ""),
        ("new", "today"),
    }
    assert {r.recipe for _, r in grid.requests(RunRequest(task="", method="", recipe="paper"))} == {
        "paper"
    }


def test_tuning_by_a_recipe_begins_from_its_hyper_parameters_and_writes_there_alone() -> None:
    settings = {
        "method": {"dann": {"weight": 0.2}, "teacher": {"recipe": "new"}},
        "recipe": {"new": {"method": {"dann": {"weight": 0.5}}}, "old": {}},
    }
    assert trials("dann", settings, 1, "new")[0].params == {"weight": 0.5}
    assert trials("dann", settings, 1, "old")[0].params == {"weight": 0.2}
    chosen = [
        Trial("dann", "searched", {"weight": 0.9}, "new"),
        Trial("teacher", "searched", {"weight": 9.0}),
    ]
    found = tuned_settings(settings, chosen)
    assert found["method"] == settings["method"]
    assert found["recipe"] == {
        "new": {"method": {"dann": {"weight": 0.9}, "teacher": {"weight": 9.0}}},
        "old": {},
    }


def test_both_recipes_stand_side_by_side_and_methods_without_their_views_are_named(
    cli: Command,
) -> None:
    short = ["--tasks", "syn-uci", "--seeds", 1, "--jobs", 1, *TINY]
    ask = ["bench", "mini", "--methods", "source,fixmatch", *short]
    answer = cli(*ask, "--recipe", "paper,today", "--format", "json")
    assert answer.code == 0, answer.err
    (table,) = json.loads(answer.out)
    lines = [(line["method"], line["variant"]) for line in table["lines"]]
    assert lines == [("source", ""), ("fixmatch", ""), ("source", "today"), ("fixmatch", "today")]
    assert answer.err.startswith(
        "fixmatch: random views of an image are to agree, and views are off"
    )
    again = cli("table", "--format", "json")  # the recipe is found from the runs themselves
    assert json.loads(again.out)[0]["lines"] == table["lines"]


def test_a_dry_run_counts_what_is_missing_and_writes_nothing(cli: Command, tmp_path: Path) -> None:
    ask = [
        "bench",
        "mini",
        "--recipe",
        "today",
        "--tasks",
        "syn-uci",
        "--methods",
        "source,coal,sentry",
        "--seeds",
        2,
    ]
    answer = cli(*ask, "--dry-run", "--json")
    found = {cost["method"]: cost for cost in json.loads(answer.out)}
    assert {name: (cost["runs"], cost["steps"]) for name, cost in found.items()} == {
        "pre-training": (4, 4 * 300),
        "source": (2, 2 * 900),
        "coal": (2, 2 * 900),
        "sentry": (2, 2 * 900),
    }
    assert "6 of 6 runs and 4 pre-trainings are missing" in cli(*ask, "--dry-run").out
    assert not list(tmp_path.iterdir())


def test_compared_methods_are_those_that_learn_by_gradients_from_the_data_alone() -> None:
    others = {"lda", "prototypes", "shares", "logistic", "guided", "auto"}
    assert set(METHODS) - set(COMPARED) == others
    assert [m for m in COMPARED if METHODS[m]().compares_views] == ["fixmatch", "sentry", "teacher"]
    assert recipes_of(read_settings("digits")) == RECIPES


@pytest.mark.parametrize(
    ("benchmark", "kind"), [("mini", "small-images"), ("pacs", "images"), ("office-home", "images")]
)
def test_adapt_and_the_recipe_today_train_a_method_by_the_same_settings(
    benchmark: str, kind: str
) -> None:
    of_benchmark, of_kind = read_settings(benchmark), read_settings(kind)
    for method in METHODS:
        params, training = merged_settings(of_benchmark, "", method, "today")
        for name in {"net", "weights"} & set(training):
            del training[name]
        assert (params, training) == merged_settings(of_kind, "", method)


def test_tables_have_the_settings_of_embeddings() -> None:
    for method in METHODS:
        assert merged_settings(read_settings("tables"), "", method) == merged_settings(
            read_settings("embeddings"), "", method
        )


def test_an_unknown_kind_of_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('kind = "sounds"\n')
    with pytest.raises(UserError, match="There is no kind of data 'sounds'"):
        merged_settings(read_settings("mini", tmp_path / "my.toml"), "", "coal")
