"""Commands that list what there is: tasks, methods, table."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import app, expand_options
from askew.cli.options import BENCHMARKS, AsJson, Data, TableOptions
from askew.cli.terminal import print_json, print_results, print_table, print_text
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.methods.base import Method


@app.command(rich_help_panel=BENCHMARKS)
def tasks(as_json: AsJson = False) -> None:
    """List all tasks."""
    from askew.data.benchmarks import task_infos

    infos = task_infos()
    if as_json:
        shown = ("source", "target", "network", "role", "notes")
        print_json(
            [
                {"task": name} | {key: asdict(info)[key] for key in shown}
                for name, info in infos.items()
            ]
        )
        return
    print_table(
        ["task", "source", "target", "network", "role"],
        [[name, info.source, info.target, info.network, info.role] for name, info in infos.items()],
    )


@app.command(rich_help_panel=BENCHMARKS)
def methods(
    name: Annotated[str | None, typer.Argument(metavar="METHOD", help="Method to explain.")] = None,
    as_json: AsJson = False,
) -> None:
    """List all methods and training settings, or explain one method: its objective and
    hyper-parameters."""
    from askew.core.plugins import loaded_plugins
    from askew.methods import GROUPS, method_class

    if name is not None:
        _explain(method_class(name), as_json)
        return
    grouped = {**GROUPS, "plug-ins": tuple(map(method_class, loaded_plugins("askew.methods")))}
    if as_json:
        print_json(
            [
                {"group": group} | _about(cls)
                for group, classes in grouped.items()
                for cls in classes
            ]
        )
        return
    for group, classes in grouped.items():
        if classes:
            print_text(f"{_GROUP_TITLES.get(group, group)}\n")
        for cls in classes:
            _print_method(cls)
    _print_training_settings()


_GROUP_TITLES = {
    "paper": (
        "THE PAPER'S TWELVE (Tan, Peng and Saenko 2020; what a benchmark trains unless methods "
        "are named)"
    ),
    "further": "PUBLISHED BESIDES",
    "ours": "OUR OWN",
    "plug-ins": "FROM OTHER PACKAGES",
}


def _about(method: type[Method]) -> dict[str, str]:
    from askew.methods.base import sections

    texts = {name.lower().replace(" ", "_"): text for name, text in sections(method).items()}
    return {"method": method.id, "what": _first_line(method.__doc__), "head": method.head} | texts


def _print_method(method: type[Method]) -> None:
    from askew.methods.base import sections

    print_text(f"  {method.id} ({method.head} head): {_first_line(method.__doc__)}")
    for name, text in sections(method).items():
        if text:
            print_text(f"    {name.lower():10}  " + text.replace("\n", f"\n{' ' * 16}"))
    print_text("")


def _explain(method: type[Method], as_json: bool) -> None:
    from askew.core.options import options, type_name

    described = [
        {
            "option": o.name,
            "default": o.default,
            "type": type_name(o.type),
            "search": str(o.search or ""),
            "help": o.help,
        }
        for o in options(method).values()
    ]
    if as_json:
        about = {"method": method.id, "about": method.__doc__, "head": method.head}
        print_json(about | {"options": described, "training": _training_settings()})
        return
    print_text(f"{method.id}  ({method.head} head)\n\n{inspect.cleandoc(method.__doc__ or '')}\n")
    if described:
        print_table(
            ["-p", "default", "searched", "meaning"],
            [[o["option"], str(o["default"]), o["search"], o["help"]] for o in described],
        )
    _print_training_settings()


def _training_settings() -> list[dict[str, Any]]:
    from askew.core.options import options
    from askew.runs.config import Training

    return [
        {"setting": o.name, "default": o.default, "help": o.help}
        for o in options(Training).values()
    ]


def _print_training_settings() -> None:
    print_table(
        ["-t", "default", "meaning"],
        [[str(v) for v in setting.values()] for setting in _training_settings()],
    )


@app.command(rich_help_panel=BENCHMARKS)
@expand_options
def table(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    *,
    data: Data = None,
    shown: TableOptions,
) -> None:
    """Print the results of all finished runs in a folder."""
    from askew.reports.results import collect
    from askew.runs.root import finished_runs

    found = finished_runs(folder)
    if not found:
        raise UserError(
            f"The folder {folder} holds no finished run yet.", "`askew bench` trains some."
        )
    print_results(collect(found, reweight=shown.reweight), shown, data=data)


def _first_line(doc: str | None) -> str:
    """The first paragraph of a docstring, as one line."""
    return " ".join((doc or "").strip().partition("\n\n")[0].split())
