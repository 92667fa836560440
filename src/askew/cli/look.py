"""Commands that only look: tasks, methods, table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from askew.cli.common import AsJson, Format, Reweight, app
from askew.cli.terminal import out, print_json, print_rows, print_table
from askew.core.errors import UserError


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List all tasks."""
    from askew.data.benchmarks import task_infos

    infos = task_infos()
    if as_json:
        print_json(
            [
                {
                    "task": n,
                    "source": i.source,
                    "target": i.target,
                    "network": i.network,
                    "role": i.role,
                    "notes": list(i.notes),
                }
                for n, i in infos.items()
            ]
        )
        return
    print_table(
        ["task", "source", "target", "network", "role"],
        [[name, i.source, i.target, i.network, i.role] for name, i in infos.items()],
    )


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this method.")] = None, as_json: AsJson = False
) -> None:
    """List all methods, or explain one: what it assumes, minimises, and its hyper-parameters."""
    from askew.core.options import options, type_name
    from askew.methods import METHODS, method_class
    from askew.runs.config import Training

    if name is None:
        listing = [{"method": id, "what": _first_line(cls.__doc__), "head": cls.head} for id, cls in METHODS.items()]
        if as_json:
            print_json(listing)
        else:
            print_table(["method", "what it does", "head"], [[str(v) for v in row.values()] for row in listing])
        return
    cls = method_class(name)
    described = [
        {
            "option": o.name,
            "default": o.default,
            "type": type_name(o.type),
            "search": str(o.search or ""),
            "help": o.help,
        }
        for o in options(cls).values()
    ]
    training = [{"setting": o.name, "default": o.default, "help": o.help} for o in options(Training).values()]
    if as_json:
        print_json(
            {"method": cls.id, "about": cls.__doc__, "head": cls.head, "options": described, "training": training}
        )
        return
    import inspect

    out.print(f"{cls.id}  ({cls.head} head)\n\n{inspect.cleandoc(cls.__doc__ or '')}\n", markup=False, soft_wrap=True)
    if described:
        print_table(
            ["-o", "default", "searched", "meaning"],
            [[d["option"], str(d["default"]), d["search"], d["help"]] for d in described],
        )
    print_table(
        ["-t", "default", "meaning"], [[str(t["setting"]), str(t["default"]), str(t["help"])] for t in training]
    )


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    reweight: Reweight = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Print the table of all finished runs in a folder."""
    from askew.reports.results import collect
    from askew.runs.store import finished_runs

    found = finished_runs(folder)
    if not found:
        raise UserError(f"The folder {folder} holds no finished run yet.", "`askew bench` makes some.")
    print_rows(collect(found, reweight=reweight), as_json, format)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().splitlines()[0]
