"""askew data: what real data there is, where it comes from, and what a task is made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import AsJson, Data, Draw, app
from askew.cli.terminal import err, out, print_json, print_table
from askew.core.errors import UserError

if TYPE_CHECKING:
    from askew.data.benchmarks.inventory import Part


data_app = typer.Typer(no_args_is_help=True, help="Real data: list, fetch and check it, and look at a task.")
app.add_typer(data_app, name="data")

SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave broken pictures out from now on.")]
Name = Annotated[str, typer.Argument(help="Data set; see `askew data list`.")]


def _say(text: str) -> None:
    out.print(text, markup=False, soft_wrap=True)


@data_app.command("list")
def list_(data: Data = None, as_json: AsJson = False) -> None:
    """List the data sets: where they are looked for, and whether they are there."""
    from askew.data.benchmarks.inventory import SOURCES, UNTRIED, overall
    from askew.data.paths import named_data_folder

    folder = named_data_folder(data)
    states = {n: overall(list(s.look(folder))) if folder and folder.is_dir() else "missing" for n, s in SOURCES.items()}
    if as_json:
        print_json(
            {
                "folder": None if folder is None else str(folder),
                "addresses": UNTRIED,
                "sets": [
                    {"name": n, "title": s.title, "state": states[n], "place": s.folder, "get": s.get}
                    for n, s in SOURCES.items()
                ],
            }
        )
        return
    print_table(
        ["data set", "state", "in the data folder as", "where to get it"],
        [[n, states[n], s.folder, s.get] for n, s in SOURCES.items()],
    )
    _say(f"Data folder: {folder or 'none, use --data DIR or set ASKEW_DATA'}.")
    _say(f"Addresses, torchvision's for the digits: {UNTRIED}.")


@data_app.command()
def fetch(name: Name, data: Data = None, as_json: AsJson = False) -> None:
    """Fetch MNIST, USPS or SVHN; of the others, say where they come from and where they go.

    Started again, it goes on where it was interrupted.
    """
    from askew.data.benchmarks.inventory import UNTRIED, source_named
    from askew.data.paths import named_data_folder

    source, folder = source_named(name), named_data_folder(data)
    if not source.fetched:
        raise UserError(
            f"askew does not fetch {source.title}: its pictures come from its makers' own page.",
            f"get it from {source.get} ({UNTRIED}), and put it into the data folder as {source.folder}; "
            f"then `askew data check {name}`.",
        )
    if folder is None:
        raise UserError("No data folder was given to fetch to.", "use --data DIR or set ASKEW_DATA.")
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from askew.data.benchmarks import download as fetching

    done: list[dict[str, Any]] = []
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, disable=not err.is_terminal, transient=True) as bars:
        for remote in fetching.digit_files(name):
            bar = bars.add_task(remote.name, total=None)
            state = fetching.fetch(
                remote,
                folder / source.folder,
                lambda so_far, size, bar=bar: bars.update(bar, completed=so_far, total=size),  # type: ignore[misc]
            )
            path = folder / source.folder / remote.name
            done.append({"file": str(path), "bytes": path.stat().st_size, "md5": remote.md5, "state": state})
    if as_json:
        print_json(done)
        return
    for file in done:
        _say(f"{file['file']}: {'fetched' if file['state'] == 'fetched' else 'was there'}, {file['bytes']:,} bytes")


@data_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all if left out.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Also decode all pictures, into the cache.")] = False,
    skip_broken: SkipBroken = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Check what is there, part by part, against the published counts.

    Complete is as published; enough gives the same tasks with fewer images; short does not. Ends with code 1 if a data
    set that was named is not even enough.
    """
    from askew.data.benchmarks.inventory import SOURCES, decode_all, overall, source_named
    from askew.data.paths import data_folder

    chosen = {name: source_named(name) for name in names or SOURCES}
    folder = data_folder(data)
    found = {name: list(source.look(folder)) for name, source in chosen.items()}
    broken: dict[str, Any] = {}
    for name, source in chosen.items():
        if (decode or skip_broken) and not source.fetched and overall(found[name]) != "missing":
            broken[name] = decode_all(name, folder, skip_broken)
    if as_json:
        print_json(
            [
                {
                    "name": name,
                    "state": overall(parts),
                    "parts": [vars(part) for part in parts],
                    **({"broken": broken[name]} if name in broken else {}),
                }
                for name, parts in found.items()
            ]
        )
    else:
        print_table(
            ["data set", "part", "state", "found", "published", "where", ""],
            [row for name, parts in found.items() for row in _part_rows(name, parts, whole=bool(names))],
        )
        for name, domains in broken.items():
            count = sum(map(len, domains.values()))
            _say(f"{name}: all pictures decode." if not count else f"{name}: {count} broken, left out.")
            for domain, reasons in domains.items():
                for path, why in reasons.items():
                    _say(f"  {domain}/{path}: {why}")
    if names and any(overall(parts) not in ("complete", "enough") for parts in found.values()):
        raise typer.Exit(1)


def _part_rows(name: str, parts: list[Part], whole: bool) -> list[list[str]]:
    """A row a part; just one for a data set that nobody asked for and that is not there at all."""
    if not whole and not any(part.found for part in parts):
        return [[name, "all", "missing", "0", "", "", f"`askew data fetch {name}`"]]
    return [
        [
            name, p.name, p.state, f"{p.found:,}", f"{p.published:,}", p.where,
            f"{p.note}{'' if p.needed else ' (not needed)'}".strip(),
        ]
        for p in parts
    ]  # fmt: skip


@data_app.command()
def show(
    task: Annotated[str, typer.Argument(help="Task, such as digits/usps-mnist.")],
    shift: Annotated[str, typer.Option("--shift", help="Label shift; as published if left out.")] = "",
    draw: Draw = 0,
    figure: Annotated[Path | None, typer.Option("--figure", help="Also draw it: a .png, .svg or .pdf file.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show a task's class mixes and how strong its label shift is; for looking only, it uses target labels."""
    from askew.data.benchmarks import known_task, load_task, task_infos
    from askew.data.label_distribution import LabelDistributions
    from askew.data.task import Shift
    from askew.reports.task_figure import check_format, task_figure

    if figure:
        check_format(figure)
    shift = str(Shift.parse(shift or task_infos()[known_task(task)].shift))
    loaded = load_task(task, shift, draw, data)
    mixes = LabelDistributions.of(loaded)
    if figure:
        task_figure(loaded, figure)
    ratios = {"source": LabelDistributions.ratio(mixes.source), "target": LabelDistributions.ratio(mixes.target)}
    if as_json:
        columns = zip(mixes.classes, mixes.source.tolist(), mixes.target.tolist(), mixes.test.tolist(), strict=True)
        print_json(
            {
                "task": task,
                "shift": shift,
                "draw": draw,
                "classes": [{"class": k, "source": s, "target": t, "exam": e} for k, s, t, e in columns],
                "js_distance": mixes.distance,
                "error_bound": mixes.bound,
                "largest_to_smallest": ratios,
                "notes": list(loaded.notes),
            }
        )
        return

    def cells(sizes: Any) -> list[str]:
        return [f"{n:,}" for n in sizes] + [f"{sizes.sum():,}"]

    def shares(sizes: Any) -> list[str]:
        return [f"{100 * n / sizes.sum():.1f}" for n in sizes] + [""]

    rows = zip(
        [*mixes.classes, "all"],
        cells(mixes.source), shares(mixes.source), cells(mixes.target), shares(mixes.target), cells(mixes.test),
        strict=True,
    )  # fmt: skip
    print_table(["class", "source", "%", "target", "%", "whole test part"], [list(row) for row in rows])
    _say(f"Shift {shift}, draw {draw}. Largest to smallest class: source {ratios['source']:.1f} : 1, "
         f"target {ratios['target']:.1f} : 1.")  # fmt: skip
    _say(f"Jensen–Shannon distance of the mixes: {mixes.distance:.3f} (0: equal, 1: disjoint).")
    _say(f"With features that look alike in both domains, the two errors add up to at least {100 * mixes.bound:.1f} % "
         "(½ d²; Zhao et al. 2019, Theorem 4.3).")  # fmt: skip
    for note in loaded.notes:
        _say(f"Note: {note}.")
