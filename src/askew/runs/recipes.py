"""Settings files, and the recipes in them: conditions that are equal for every method, by name."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args

from askew.core.errors import UserError, from_os_error, unknown
from askew.core.plugins import plugins
from askew.data.benchmarks import benchmarks
from askew.data.custom import OWN, Kind

Settings = dict[str, Any]


def read_settings(benchmark: str, path: Path | None = None) -> Settings:
    """The settings of a benchmark or of a kind of data: the committed ones, or a file of the same
    form."""
    example = "see src/askew/runs/settings/digits.toml for the form."
    try:
        file = path or _file(benchmark)
        settings = _parsed(file.read_text(encoding="utf-8")) if file else {}
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(
            f"The settings file {path} does not exist.",
            "leave --settings out for the committed ones.",
        ) from None
    except OSError as error:
        raise from_os_error(error) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not TOML, not UTF-8, or tables in tables without end
        raise UserError(f"The settings file {path} is not TOML: {error}.", example) from None
    for name in settings:
        if name not in ("train", "method", "task", "recipe", "kind"):
            raise UserError(f"The settings file {path} has an unknown table '{name}'.", example)
    for top, content in settings.items():
        if top == "kind":
            continue
        for name, table in _tables(top, content):
            if not isinstance(table, dict):
                raise UserError(
                    f"The settings file {path} holds '{name}' = {table} where a table belongs.",
                    example,
                )
    return settings


def settings_name(task: str) -> str:
    """Whose settings a task takes: its benchmark's; of the user's own data, those of its kind."""
    benchmark, _, short = task.partition("/")
    return short if benchmark == OWN else benchmark


@lru_cache(maxsize=16)
def _parsed(text: str) -> Settings:
    """The tables in a settings file, for nobody to change: a grid asks for them with every run."""
    return tomllib.loads(text)


def _file(benchmark: str) -> Traversable | None:
    """The settings file of a benchmark; None if it is another package's and brings none."""
    if benchmark in plugins("askew.benchmarks"):
        return getattr(benchmarks()[benchmark], "SETTINGS", None)
    return resources.files("askew.runs.settings") / f"{benchmark}.toml"


def _tables(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What has to be a table in a settings file, by its dotted name: train, method.M, task.T,
    task.T.method.M; and all of them within recipe.R."""
    yield name, value
    if name.rpartition(".")[2] in ("method", "task", "recipe") and isinstance(value, dict):
        for inner, table in value.items():
            yield f"{name}.{inner}", table
            for part in ("train", "method", "task"):
                if isinstance(table, dict) and part in table:
                    yield from _tables(f"{name}.{inner}.{part}", table[part])


def merged_settings(
    settings: Settings, task: str, method: str, recipe: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Hyper-parameters and training settings of a method on a task.

    The task's settings override those of all tasks, and the method's those of all methods on the
    same tasks; a recipe's override all others, in the same order.
    """
    params: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for layer in _layers(settings, recipe or own_recipe(settings, method)):
        task_table = layer.get("task", {}).get(task, {})
        everywhere = layer.get("method", {}).get(method, {})
        on_task = task_table.get("method", {}).get(method, {})
        for table in (layer, everywhere, task_table, on_task):
            training |= table.get("train", {})
        params |= _hyper(everywhere) | _hyper(on_task)
    return params, training


def _layers(settings: Settings, recipe: str) -> list[Settings]:
    """Tables of settings, each overriding those before it.

    Settings that name a kind of data start from the settings of that kind. A recipe that does so
    takes nothing else of the benchmark's settings.
    """
    if not recipe:
        return _from_kind(settings)
    table = _recipe(settings, recipe)
    return _from_kind(table) if "kind" in table else [*_from_kind(settings), table]


def _from_kind(table: Settings) -> list[Settings]:
    if "kind" not in table:
        return [table]
    kind = str(table["kind"])
    if kind not in get_args(Kind):
        raise unknown("kind of data", kind, get_args(Kind))
    return [*_from_kind(read_settings(kind)), table]


def method_settings(settings: Settings, method: str, recipe: str = "") -> dict[str, Any]:
    """A method's hyper-parameters on all tasks of a benchmark."""
    return merged_settings(settings, "", method, recipe)[0]


def _hyper(method_table: Settings) -> dict[str, Any]:
    """The hyper-parameters in a method's table, which may hold training settings and the name of a
    recipe too."""
    return {name: value for name, value in method_table.items() if name not in ("train", "recipe")}


def own_recipe(settings: Settings, method: str) -> str:
    """The recipe that a method is trained by where none is asked for; empty: no recipe."""
    return str(settings.get("method", {}).get(method, {}).get("recipe", ""))


def recipes_of(settings: Settings) -> tuple[str, ...]:
    """The recipes that settings have, in their order."""
    return tuple(settings.get("recipe", {}))


def _recipe(settings: Settings, name: str) -> Settings:
    if name not in settings.get("recipe", {}):
        raise unknown("recipe of these settings", name, recipes_of(settings))
    found: Settings = settings["recipe"][name]
    return found


def nearest_recipe(run: Mapping[str, Any]) -> str:
    """The recipe of its benchmark that a run, given as `Run.describe` does, shares most settings
    with.

    The earlier of equally near ones; empty where the benchmark has none.
    """
    task = run["task"].partition("/")[2]
    settings = _committed(settings_name(run["task"]))
    method = run["plan"][-1]["method"]["id"]
    trained = {
        name: merged_settings(settings, task, method, name)[1] for name in recipes_of(settings)
    }
    apart = {name: _apart(run, {"views": "none"} | training) for name, training in trained.items()}
    return min(apart, key=lambda name: apart[name], default="")


def _apart(run: Mapping[str, Any], training: Mapping[str, Any]) -> float:
    """The share of these training settings, among those that its description shows, in which a run
    differs."""
    shown = {name: value for name in training if (value := _described(run, name)) is not None}
    return sum(bool(shown[name] != training[name]) for name in shown) / max(len(shown), 1)


@cache
def _committed(name: str) -> Settings:
    try:
        return read_settings(name)
    except UserError:  # a task of somebody's own
        return {}


def _described(run: Mapping[str, Any], name: str) -> Any:
    """The value of a training setting in a run's description; none where that does not show it."""
    last = run["plan"][-1]
    net = run.get("net", {})
    for place in (
        run.get("views", {"views": "none"}),
        last.get("optim", {}),
        net,
        net.get("embedding") or {},
        run,
        last,
    ):
        if name in place and not isinstance(place[name], Mapping):
            return place[name]
    return None
