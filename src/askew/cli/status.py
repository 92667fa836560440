"""The command that tells how far the runs in a folder are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from askew.cli.common import AsJson, app
from askew.cli.terminal import out, print_json, print_table


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Compare every result with its hash; damaged runs are done anew by the next start."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell how many runs are done, running, waiting and failed, and why."""
    from askew.runs.status import as_json as plain
    from askew.runs.status import read_status
    from askew.runs.store import RunFolder

    found = read_status(folder, check=check)
    for key in found.damaged:
        with RunFolder(folder / key).claimed():
            RunFolder(folder / key).reopen()
    if as_json:
        print_json(plain(found))
        return
    counts = {
        "done": found.done,
        "running": len(found.running),
        "waiting": len(found.waiting),
        "failed": len(found.failed),
        "damaged": len(found.damaged),
        "pre-trainings": found.pretrainings,
    }
    out.print(", ".join(f"{n} {what}" for what, n in counts.items() if n or what == "done"))
    if found.running:
        print_table(
            ["running", "step", "of", "where"],
            [[h.label or key, str(h.step), str(h.steps), f"{h.host} {h.pid}"] for key, h in found.running.items()],
        )
    for key, (label, reason) in found.failed.items():
        out.print(f"failed: {label} ({key}): {reason}\n", markup=False, soft_wrap=True)
    for key, label in found.damaged.items():
        out.print(f"damaged: {label} ({key})", markup=False, soft_wrap=True)
