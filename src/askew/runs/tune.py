"""Choose a method's hyper-parameters on development tasks, within the ranges that the method
declares."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from askew.core.errors import UserError
from askew.core.options import Option, Search, checked, options
from askew.data.benchmarks import known_task, task_infos
from askew.evaluation.metrics import mean
from askew.methods import method_class
from askew.runs.config import RunRequest, check_seeds
from askew.runs.recipes import Settings, method_settings, own_recipe
from askew.runs.store import RunFolder

MOST_TRIALS = 10_000
"""Of one method."""


@dataclass(frozen=True)
class Trial:
    """One choice of hyper-parameters, and its origin: the settings, the method's defaults, or the
    search."""

    method: str
    origin: str
    params: Mapping[str, Any]
    recipe: str = ""
    """The recipe that was asked for."""

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())


@dataclass(frozen=True)
class Result:
    """The scores of a trial: for each task, one value per seed; None where a run failed."""

    trial: Trial
    scores: Mapping[str, tuple[float | None, ...]]

    @property
    def mean(self) -> float | None:
        """Mean over tasks of the mean over seeds; None if any run failed."""
        means = []
        for values in self.scores.values():
            finished = [value for value in values if value is not None]
            if len(finished) < len(values):
                return None
            means.append(mean(finished))
        return mean(means)


def check_tasks(tasks: Sequence[str], draw: int) -> str:
    """The benchmark that all tasks belong to; UserError if tuning would use the test labels of a
    reported task."""
    for task in tasks:
        info = task_infos()[known_task(task)]
        if info.role == "reported" and not (info.draws_differ and draw > 0):
            development = [name for name, i in task_infos().items() if i.role == "development"]
            raise UserError(
                f"The task {task} is reported in tables: tuning on it would choose by its test "
                "labels.",
                "tune on --draw 1 of it."
                if info.draws_differ
                else f"development tasks are {', '.join(development)}; or --draw 1 of a mini task.",
            )
    benchmarks = {task.partition("/")[0] for task in tasks}
    if len(benchmarks) != 1:
        raise UserError(
            "Settings belong to one benchmark, found tasks of "
            f"{', '.join(sorted(benchmarks)) or 'none'}.",
            "for example: askew tune digits/usps-uci,digits/uci-mnist",
        )
    return benchmarks.pop()


def trials(
    method: str, settings: Settings, count: int, recipe: str = "", fixed: Sequence[str] = ()
) -> list[Trial]:
    """At most `count` trials: the present settings, the method's own defaults, then points of a
    Sobol sequence.

    Equal points are tried once, so a method with few options may have fewer. Options that are
    `fixed` are not searched.
    """
    if count > MOST_TRIALS:
        raise UserError(
            f"The number of trials must be at most {MOST_TRIALS:,}, found {count:,}.",
            "tables were tuned with 8 to 32.",
        )
    cls = method_class(method)
    searched = {
        name: option for name, option in options(cls).items() if option.search and name not in fixed
    }
    present = checked(cls, method_settings(settings, cls.id, recipe), f"method {cls.id}")
    found = [
        Trial(
            method, "settings", {n: present.get(n, o.default) for n, o in searched.items()}, recipe
        )
    ]
    if searched:
        from torch.quasirandom import SobolEngine

        defaults = {name: option.default for name, option in searched.items()}
        engine = SobolEngine(len(searched), scramble=True, seed=0)  # type: ignore[no-untyped-call]
        points = engine.draw(count).tolist()
        found.append(Trial(method, "default", defaults, recipe))
        for point in points:
            params = {
                name: _at(o, share)
                for (name, o), share in zip(searched.items(), point, strict=True)
            }
            found.append(Trial(method, "searched", params, recipe))
    distinct = {trial.label: trial for trial in reversed(found)}  # keeps the first of equal ones
    return [trial for trial in found if distinct[trial.label] is trial][:count]


def _at(option: Option, share: float) -> Any:
    """The value at a share of an option's range, to two significant digits."""
    search = option.search
    assert isinstance(search, Search)
    if search.log:
        value = math.exp(
            math.log(search.low) + share * (math.log(search.high) - math.log(search.low))
        )
    else:
        value = search.low + share * (search.high - search.low)
    if option.type is bool:
        return value >= (search.low + search.high) / 2
    if option.type is int:
        return round(value)
    return float(min(max(float(f"{value:.2g}"), search.low), search.high))


def _share(option: Option, value: float) -> float:
    """Where a value lies in an option's range: what `_at` turns back into it."""
    search = option.search
    assert isinstance(search, Search)
    low, high, at = (
        math.log(v) if search.log else float(v)
        for v in (search.low, search.high, max(value, search.low))
    )
    return min(max((at - low) / (high - low), 0.0), 1.0)


def requests_of(
    trial: Trial, tasks: Sequence[str], seeds: int, base: RunRequest
) -> list[RunRequest]:
    """The runs of a trial."""
    own = replace(base, method=trial.method, params=dict(trial.params))
    return [
        replace(own, task=task, seed=seed) for task in tasks for seed in range(check_seeds(seeds))
    ]


def score(trial: Trial, tasks: Sequence[str], keys: Sequence[str], root: Path) -> Result:
    """The scores of a trial on the whole test split, given the keys of its runs, task by task."""
    folders = [RunFolder(root / key) for key in keys]
    found = [f.scores()["whole"]["per_class_mean"] if f.done else None for f in folders]
    seeds = len(keys) // len(tasks)
    return Result(trial, {task: tuple(found[i * seeds :][:seeds]) for i, task in enumerate(tasks)})


# --- sampling ---

Train = Callable[[Sequence[RunRequest]], Sequence[str]]
"""What brings runs to their end, and returns their keys in the order of the requests."""
Ask = tuple[Sequence[str], int, RunRequest]
"""Tasks, the number of seeds, and what else all runs have in common."""


def search(
    sampler: str, tried: Mapping[str, list[Trial]], ask: Ask, root: Path, train: Train
) -> dict[str, list[Result]]:
    """Run the trials of each method and score them: all at once, or with `tpe` one after
    another."""
    tasks, seeds, base = ask
    samplers = {
        method: TPE(found) if sampler == "tpe" else Given(found) for method, found in tried.items()
    }
    results: dict[str, list[Result]] = {method: [] for method in tried}
    while asked := {method: found for method, one in samplers.items() if (found := one.ask())}:
        trials = [(method, trial) for method, found in asked.items() for trial in found]
        keys = train([r for _, one in trials for r in requests_of(one, tasks, seeds, base)])

        runs = len(tasks) * seeds
        scored: dict[str, list[Result]] = {method: [] for method in asked}
        for number, (method, trial) in enumerate(trials):
            own = keys[number * runs : (number + 1) * runs]
            scored[method].append(score(trial, tasks, own, root))
        for method, finished in scored.items():
            samplers[method].tell(finished)
            results[method] += finished
    return results


class Given:
    """The trials that are there, all at once."""

    def __init__(self, trials: list[Trial]) -> None:
        self.left = trials

    def ask(self) -> list[Trial]:
        """The next trials to run; none at the end."""
        asked, self.left = self.left, []
        return asked

    def tell(self, results: Sequence[Result]) -> None:
        """How they went."""


class TPE:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011): each trial is drawn where
    others scored well.

    It begins with the trials that are not searched, the settings and the defaults, and makes as
    many as it is given.
    """

    def __init__(self, trials: list[Trial]) -> None:
        try:
            import optuna
        except ImportError:
            raise UserError(
                "The sampler tpe needs Optuna, which is not installed.",
                "pip install 'askew[optuna]'.",
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.library, self.count = optuna, len(trials)
        self.first = [trial for trial in trials if trial.origin != "searched"]
        self.study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=0)
        )
        self.options = {
            n: o
            for n, o in options(method_class(trials[0].method)).items()
            if n in trials[0].params
        }
        self.pending: list[Any] = []

    def ask(self) -> list[Trial]:
        """The next trials to run; none at the end."""
        if self.first:
            asked, self.first = self.first, []
            self.pending = [None] * len(asked)
            self.count -= len(asked)
            self.like = asked[0]
            return asked
        if not self.count:
            return []
        self.count -= 1
        drawn = self.study.ask()
        self.pending = [drawn]
        params = {
            name: _at(option, drawn.suggest_float(name, 0, 1))
            for name, option in self.options.items()
        }
        return [replace(self.like, origin="searched", params=params)]

    def tell(self, results: Sequence[Result]) -> None:
        """How they went."""
        unit = self.library.distributions.FloatDistribution(0, 1)
        for drawn, result in zip(self.pending, results, strict=True):
            if drawn is not None:
                state = None if result.mean is not None else self.library.trial.TrialState.FAIL
                self.study.tell(drawn, result.mean, state)
            elif result.mean is not None and self.options:
                shares = {
                    name: _share(option, result.trial.params[name])
                    for name, option in self.options.items()
                }
                kinds: dict[str, Any] = dict.fromkeys(shares, unit)
                known = self.library.trial.create_trial(
                    params=shares, distributions=kinds, value=result.mean
                )
                self.study.add_trial(known)


def best(results: Sequence[Result]) -> Result | None:
    """The highest mean; the earlier of equal ones, so that the present settings stay unless another
    is better."""
    complete = [result for result in results if result.mean is not None]
    return max(complete, key=lambda result: result.mean or 0.0, default=None)


def tuned_settings(settings: Settings, chosen: Sequence[Trial]) -> Settings:
    """The settings with each method's hyper-parameters replaced by the chosen ones, in the recipe
    it was tried by."""
    for trial in chosen:
        id = method_class(trial.method).id
        recipe = trial.recipe or own_recipe(settings, id)
        path = [*(("recipe", recipe) if recipe else ()), "method", id]
        settings = _with(settings, path, trial.params)
    return settings


def _with(table: Settings, path: Sequence[str], values: Mapping[str, Any]) -> Settings:
    """A copy of nested tables, the one at the path with these values."""
    if not path:
        return {**table, **values}
    name, *rest = path
    return {**table, name: _with(table.get(name, {}), rest, values)}


def to_toml(settings: Settings, comment: Sequence[str]) -> str:
    """The text of a settings file, which holds tables of plain values and nothing else."""
    lines = [f"# {' '.join(line.split())}" for line in comment]

    def table(name: str, values: Mapping[str, Any]) -> None:
        plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
        if plain:
            lines.extend(["", f"[{name}]"] if name else [""])
            lines.extend(f"{_key(key)} = {_value(value)}" for key, value in plain.items())
        for key, value in values.items():
            if isinstance(value, dict):
                table(f"{name}.{_key(key)}" if name else _key(key), value)

    table("", settings)
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # JSON escapes as TOML does, except for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
