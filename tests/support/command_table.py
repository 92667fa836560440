"""Every command with every option, to be tried with values that make no sense."""

from __future__ import annotations

import functools
import inspect
from typing import Any, get_type_hints

import typer

from askew.cli import app

SENSELESS = {
    "nan": "nan",
    "inf": "inf",
    "negative": "-1",
    "overflow": "1e400",
    "empty": "",
    "long": "x" * 300,
    "control": "a\x1bb",
}

GIVEN: dict[str, tuple[str, ...]] = {
    "run": ("mini/syn-uci",),
    "bench": ("mini", "--methods", "source", "--tasks", "syn-uci"),
    "tune": ("mini/syn-uci", "--draw", "1", "--methods", "source"),
    "adapt": ("source.npz", "target.npz", "-o", "out"),
    "diagnose": ("source.npz", "target.npz"),
    "audit": ("adapted",),
    "predict": ("model", "rows.npy"),
    "embed": ("pictures", "--weights", "none"),
    "export": ("model", "-o", "exported.onnx"),
    "figure": ("mix",),
    "report": ("runs",),
    "status": ("runs",),
    "table": ("runs",),
    "data show": ("mini/syn-uci",),
    "data fetch": ("mnist",),
}
"""Arguments that a command can do with."""
UNUSED = (
    "--path-column",
    "--label-column",
    "predict --method",
    "predict --backbone",
    "export --method",
    "export --backbone",
)
"""Options that these data and this model have no use for, so that they are not read."""


@functools.cache
def commands() -> dict[str, Any]:
    """Every command by its name, as Typer's parser has it."""
    found = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= (
            {name: command}
            if inner is None
            else {f"{name} {sub}": one for sub, one in inner.items()}
        )
    return found


def options() -> list[tuple[str, str]]:
    """Every command with each of its options that takes a value; `0`, `1`, … for its arguments."""
    found = []
    for name, command in commands().items():
        arguments = 0
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                found.append((name, str(arguments)))
                arguments += 1
            elif not getattr(parameter, "is_flag", False) and parameter.name != "help":
                found.append((name, parameter.opts[-1]))
    return found


@functools.cache
def is_path(name: str, option: str) -> bool:
    """Whether an option, or an argument, is a path: any name may be one."""
    command = commands()[name]
    arguments = [
        parameter for parameter in command.params if parameter.param_type_name == "argument"
    ]
    found = (
        arguments[int(option)]
        if option.isdecimal()
        else next(p for p in command.params if option in p.opts)
    )
    function = inspect.unwrap(command.callback, stop=lambda one: hasattr(one, "__signature__"))
    return "Path" in str(get_type_hints(function, include_extras=False)[found.name])


def command_line(name: str, option: str, value: str) -> list[str]:
    """A command whose option, or argument, has that value."""
    given = list(GIVEN.get(name, ()))
    if option.isdecimal():
        at = int(option)
        given[at : at + 1] = [value]
    elif option in given:
        given[given.index(option) + 1] = value
    else:
        given += [option, value]
    return [*name.split(), *given]
