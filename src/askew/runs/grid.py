"""Grids: a small TOML file names the tasks, methods, seeds and variants of one table."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from askew.core.errors import UserError, from_os_error, unknown
from askew.data.benchmarks import benchmark_named, known_task, task_infos
from askew.methods import COMPARED, PAPER, is_file, known_method
from askew.runs.config import RunRequest, check_seeds

EXAMPLE = "see benchmarks/grids/ablation.toml for the form."
TYPES: dict[str, tuple[type, str]] = {
    "title": (str, "text"),
    "benchmark": (str, "text"),
    "tasks": (list, "a list of names"),
    "methods": (list, "a list of names"),
    "seeds": (int, "a whole number"),
    "shift": (str, "text"),
    "train": (dict, "a table"),
    "params": (dict, "a table"),
    "recipe": (str, "text"),
    "variant": (dict, "a table"),
}
VARIANT_ENTRIES = ("tasks", "methods", "shift", "train", "params", "recipe")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One configuration of the methods; what it leaves out is the grid's."""

    name: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    shift: str
    """Empty: the one that a task was published with."""
    train: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    """Of the benchmark's settings; empty: each method's own."""


@dataclass(frozen=True)
class Grid:
    """The runs of one table."""

    title: str
    seeds: int
    variants: tuple[Variant, ...]
    first_seed: int = 0

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    def requests(self, base: RunRequest) -> list[tuple[str, RunRequest]]:
        """Every run, with its variant's name; what a user sets in `base` overrides the grid."""
        return [
            (
                variant.name,
                replace(
                    base,
                    task=task,
                    method=method,
                    seed=seed,
                    shift=base.shift or variant.shift or task_infos()[task].shift,
                    params={**variant.params, **base.params},
                    training={**variant.train, **base.training},
                    recipe=base.recipe or variant.recipe,
                ),
            )
            for variant in self.variants
            for task in variant.tasks
            for method in variant.methods
            for seed in range(self.first_seed, self.first_seed + self.seeds)
        ]

    def check_code(self, allowed: Collection[str]) -> None:
        """UserError if a method is somebody's file, which would be run, and is not among those that
        are allowed."""
        for method in dict.fromkeys(
            method for variant in self.variants for method in variant.methods
        ):
            if is_file(method) and method not in allowed:
                raise UserError(
                    f"The grid {self.title} names the method {method}, which is code of "
                    "somebody's file.",
                    f"read it; then --allow-code runs it, and so does --methods {method}.",
                )

    def narrowed(self, tasks: Sequence[str], methods: Sequence[str], seeds: int) -> Grid:
        """The part of the grid that a user names; empty and 0 leave it as it is."""
        known_tasks = {task for variant in self.variants for task in variant.tasks}
        known_methods = {method for variant in self.variants for method in variant.methods}
        wanted = [_task_of(known_tasks, task) for task in tasks]
        for method in methods:
            if method not in known_methods:
                raise unknown("method of this grid", method, known_methods)
        variants = tuple(
            replace(
                variant,
                tasks=tuple(t for t in variant.tasks if not wanted or t in wanted),
                methods=tuple(m for m in variant.methods if not methods or m in methods),
            )
            for variant in self.variants
        )
        return replace(self, seeds=seeds or self.seeds, variants=variants)


def _task_of(known: set[str], name: str) -> str:
    """The task of that name, with or without its benchmark's."""
    found = [task for task in known if name in (task, task.partition("/")[2])]
    if not found:
        raise unknown("task of this grid", name, known)
    return found[0]


def whole_benchmark(name: str, recipes: Sequence[str] = ()) -> Grid:
    """The paper's methods on all reported tasks of a benchmark; or, by each of its recipes, all
    that are compared."""
    tasks, methods = _tasks_of(name), COMPARED if recipes else PAPER
    return Grid(
        name,
        3,
        tuple(
            Variant(name="", tasks=tasks, methods=methods, shift="", recipe=recipe)
            for recipe in recipes or [""]
        ),
    )


def _tasks_of(benchmark: str) -> tuple[str, ...]:
    return tuple(
        f"{benchmark}/{t}"
        for t, info in benchmark_named(benchmark).TASKS.items()
        if info.role == "reported"
    )


def read_grid(path: Path) -> Grid:
    """A grid from its file; UserError for whatever in it is unknown or of the wrong type. No
    method's file is run."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise UserError(
            f"The grid file {path} does not exist.", "benchmarks/grids/ has some to begin with."
        ) from None
    except OSError as error:
        raise from_os_error(error) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not TOML, not UTF-8, or tables in tables without end
        raise UserError(f"The grid file {path} is not TOML: {error}.", EXAMPLE) from None
    _check(path, content, "", tuple(TYPES))
    benchmark = content.get("benchmark", "")
    if benchmark:
        benchmark_named(benchmark)
    if not benchmark and not content.get("tasks"):
        raise UserError(f"The grid file {path} names neither a benchmark nor tasks.", EXAMPLE)
    variants = content.pop("variant", None) or {"": {}}
    made = []
    for name, table in variants.items():
        if not isinstance(table, dict):
            raise UserError(
                f"The grid file {path} holds 'variant.{name}' = {table} where a table belongs.",
                EXAMPLE,
            )
        _check(path, table, f"variant.{name}.", VARIANT_ENTRIES)
        made.append(_variant(name, content, table))
    return Grid(content.get("title", path.stem), content.get("seeds", 3), tuple(made))


def _check(path: Path, table: Mapping[str, Any], prefix: str, known: Sequence[str]) -> None:
    """UserError for an entry that is unknown or of the wrong type."""
    for name, value in table.items():
        if name not in known:
            raise UserError(f"The grid file {path} has an unknown entry '{prefix}{name}'.", EXAMPLE)
        kind, description = TYPES[name]
        names = not isinstance(value, list) or all(isinstance(item, str) for item in value)
        if not isinstance(value, kind) or isinstance(value, bool) or not names:
            raise UserError(
                f"'{prefix}{name}' in the grid file {path} must be {description}, found {value}.",
                EXAMPLE,
            )


def _variant(name: str, grid: Mapping[str, Any], variant: Mapping[str, Any]) -> Variant:
    """A variant from its own table, completed by the grid's."""
    both = {**grid, **variant}
    benchmark = grid.get("benchmark", "")
    names = variant.get("tasks") or grid.get("tasks") or _tasks_of(benchmark)
    tasks = [
        known_task(task if "/" in task or not benchmark else f"{benchmark}/{task}")
        for task in names
    ]
    methods = both.get("methods", PAPER)
    for method in methods:
        known_method(method)
    train, params = (
        {**grid.get(entry, {}), **variant.get(entry, {})} for entry in ("train", "params")
    )
    return Variant(
        name=name,
        tasks=tuple(tasks),
        methods=tuple(methods),
        shift=both.get("shift", ""),
        train=train,
        params=params,
        recipe=both.get("recipe", ""),
    )
