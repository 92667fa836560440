"""The command that shows how far the runs in a folder are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from askew.cli.common import app
from askew.cli.options import BENCHMARKS, AsJson
from askew.cli.terminal import print_json, print_table, print_text

if TYPE_CHECKING:
    from askew.runs.status import Status


@app.command(rich_help_panel=BENCHMARKS)
def status(
    folder: Annotated[Path, typer.Argument(help="Folder of runs.")] = Path("runs"),
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Also compare every result with its hash and list damaged runs."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how many runs are done, running, waiting and failed, and why. Changes nothing."""
    from askew.runs.status import as_json as plain
    from askew.runs.status import read_status

    found = read_status(folder, check=check)
    if as_json:
        print_json(plain(found))
    else:
        _print(found, folder)


def _print(status: Status, folder: Path) -> None:
    counts = {
        "done": status.done,
        "running": len(status.running),
        "waiting": len(status.waiting),
        "failed": len(status.failed),
        "damaged": len(status.damaged),
        "pre-trainings": status.pretrainings,
    }
    print_text(", ".join(f"{n} {what}" for what, n in counts.items() if n or what == "done"))
    if status.running:
        print_table(
            ["running", "step", "of", "host and process"],
            [
                [h.label or key, str(h.step), str(h.steps), f"{h.host} {h.pid}"]
                for key, h in status.running.items()
            ],
        )
    for key, (label, reason) in status.failed.items():
        print_text(f"failed: {label} ({key}): {reason}\n")
    for key, label in status.damaged.items():
        print_text(f"damaged: {label} ({key})")
    if status.damaged:
        print_text(
            f"Delete the folders of damaged runs in {folder}; the command that trained them "
            "trains them again."
        )
