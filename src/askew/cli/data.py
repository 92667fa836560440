"""askew data: which data sets are there, where they come from, and what a task consists of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from askew.cli.common import app, expand_options, pairs
from askew.cli.options import BENCHMARKS, AsJson, Data, TaskOptions, TrainingOptions
from askew.cli.terminal import print_json, print_note, print_table, print_text
from askew.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from askew.data.benchmarks.inventory import Part
    from askew.data.label_distribution import LabelDistributions


data_app = typer.Typer(
    no_args_is_help=True, help="List, download and check data sets, and show a task."
)
app.add_typer(data_app, name="data", rich_help_panel=BENCHMARKS)


# --- list, fetch ---


@data_app.command("list")
def list_(data: Data = None, as_json: AsJson = False) -> None:
    """List the data sets: where they belong, and whether they are there."""
    from askew.data.benchmarks.inventory import SOURCES, UNTRIED, overall
    from askew.data.paths import named_data_folder

    folder = named_data_folder(data)
    states = {
        n: overall(list(s.look(folder))) if folder and folder.is_dir() else "missing"
        for n, s in SOURCES.items()
    }
    if as_json:
        sets = [
            {"name": n, "title": s.title, "state": states[n], "place": s.folder, "get": s.get}
            for n, s in SOURCES.items()
        ]
        print_json(
            {"folder": None if folder is None else str(folder), "addresses": UNTRIED, "sets": sets}
        )
        return
    print_table(
        ["data set", "state", "in the data folder as", "where to get it"],
        [[n, states[n], s.folder, s.get] for n, s in SOURCES.items()],
    )
    print_text(f"Data folder: {folder or 'none, use --data DIR or set ASKEW_DATA'}.")
    print_text(f"Addresses, torchvision's for the digits: {UNTRIED}.")


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="Data set; see `askew data list`.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Download MNIST, USPS, SVHN or Office-Home; for others, tell where to get them and where to
    put them.

    Started again, an interrupted download continues.
    """
    from askew.data.benchmarks.inventory import UNTRIED, source_named
    from askew.data.paths import named_data_folder

    source, folder = source_named(name), named_data_folder(data)
    if not source.fetched and not source.hub:
        raise UserError(
            f"askew does not download {source.title}: its images come from its authors' own page.",
            f"get it from {source.get} ({UNTRIED}), and put it into the data folder as "
            f"{source.folder}; "
            f"then `askew data check {name}`.",
        )
    if folder is None:
        raise UserError(
            "No data folder was given to download to.", "use --data DIR or set ASKEW_DATA."
        )
    if source.hub:
        _fetch_from_hub(source.hub, folder / Path(source.folder).parts[0], as_json)
    else:
        _fetch_digits(name, folder / source.folder, as_json)


def _fetch_digits(name: str, folder: Path, as_json: bool) -> None:
    from askew.cli.progress import downloads
    from askew.data.benchmarks import download

    done = []
    with downloads() as start:
        for remote in download.digit_files(name):
            state = download.fetch(remote, folder, start(remote.name))
            path = folder / remote.name
            done.append(
                {"file": str(path), "bytes": path.stat().st_size, "md5": remote.md5, "state": state}
            )
    if as_json:
        print_json(done)
        return
    for file in done:
        found = "downloaded" if file["state"] == "fetched" else "was there already"
        print_text(f"{file['file']}: {found}, {file['bytes']:,} bytes")


def _fetch_from_hub(repository: str, folder: Path, as_json: bool) -> None:
    from askew.cli.progress import count_images
    from askew.data.benchmarks.download import fetch_images
    from askew.data.benchmarks.inventory import OFFICE_HOME_IMAGES

    with count_images() as count:
        counts = fetch_images(repository, folder, OFFICE_HOME_IMAGES, count)
    if as_json:
        print_json({"folder": str(folder), "from": repository, "images": counts})
    else:
        print_text(
            f"{sum(counts.values()):,} images of {len(counts)} domains in {folder}, as published."
        )


# --- check ---


@data_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; default: all.")] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Also decode all images into the cache.")
    ] = False,
    skip_broken: Annotated[
        bool,
        typer.Option(
            "--skip-broken", help="Decode all images, and leave broken ones out of the tasks."
        ),
    ] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Compare the data sets that are there with the published counts.

    complete: as published; enough: fewer images, but the same tasks; short: too few for the tasks.

    The exit code is 1 if a data set that was named is missing or short.
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
        print_json(_check_as_json(found, broken))
    else:
        _print_check(found, broken, named=bool(names))
    if names and any(overall(parts) not in ("complete", "enough") for parts in found.values()):
        raise typer.Exit(1)


def _check_as_json(
    found: Mapping[str, list[Part]], broken: Mapping[str, Any]
) -> list[dict[str, Any]]:
    from askew.data.benchmarks.inventory import overall

    return [
        {"name": name, "state": overall(parts), "parts": [vars(part) for part in parts]}
        | ({"broken": broken[name]} if name in broken else {})
        for name, parts in found.items()
    ]


def _print_check(
    found: Mapping[str, list[Part]], broken: Mapping[str, Any], *, named: bool
) -> None:
    print_table(
        ["data set", "part", "state", "found", "published", "where", ""],
        [row for name, parts in found.items() for row in _part_rows(name, parts, named=named)],
    )
    for name, domains in broken.items():
        count = sum(map(len, domains.values()))
        images = (
            f"{count} broken image{'' if count == 1 else 's'}, left out"
            if count
            else "all images decode"
        )
        print_text(f"{name}: {images}.")
        for domain, reasons in domains.items():
            for path, why in reasons.items():
                print_text(f"  {domain}/{path}: {why}")


def _part_rows(name: str, parts: list[Part], *, named: bool) -> list[list[str]]:
    """One row per part; a single one for a data set that was not named and is not there at all."""
    if not named and not any(part.found for part in parts):
        return [[name, "all", "missing", "0", "", "", f"`askew data fetch {name}`"]]
    return [
        [
            name,
            p.name,
            p.state,
            f"{p.found:,}",
            f"{p.published:,}",
            p.where,
            f"{p.note}{'' if p.needed else ' (not needed)'}".strip(),
        ]
        for p in parts
    ]


# --- show ---


@data_app.command()
@expand_options
def show(
    task: Annotated[str, typer.Argument(help="Task, such as digits/usps-mnist.")],
    *,
    options: TaskOptions,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Also draw a figure: a .png, .svg or .pdf file.")
    ] = None,
    views: Annotated[
        bool,
        typer.Option(
            "--views",
            help="Instead, draw images and their random views, as in the task's settings of the "
            "teacher.",
        ),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="With --views: a .png, .svg or .pdf file; default: views.png."
        ),
    ] = None,
    training: TrainingOptions,
    as_json: AsJson = False,
) -> None:
    """Show the label distributions of a task and the strength of its label shift. Uses target
    labels."""
    if views and figure:
        raise UserError(
            "--views and --figure are two figures.", "draw one at a time; -o names that of --views."
        )
    if views:
        _draw_views(task, options, training, sheet or Path("views.png"), as_json)
        return
    if sheet or training != TrainingOptions():
        raise UserError(
            "-o, -t, --settings and --recipe belong to --views.",
            "add --views; --figure draws label distributions.",
        )
    _show_distributions(task, options, figure, as_json)


def _show_distributions(
    task: str, options: TaskOptions, figure: Path | None, as_json: bool
) -> None:
    from askew.data.benchmarks import known_task, load_task, task_infos
    from askew.data.label_distribution import LabelDistributions
    from askew.data.task import Shift

    if figure:
        from askew.reports.figures import check_figure, save
        from askew.reports.task_figures import task_overview

        check_figure(figure)
    shift = str(Shift.parse(options.shift or task_infos()[known_task(task)].shift))
    loaded = load_task(task, shift, options.draw, options.data)
    distributions = LabelDistributions.of(loaded)
    if figure:
        save(task_overview(loaded), figure)
    if as_json:
        about = {"task": task, "shift": shift, "draw": options.draw}
        print_json(about | _distributions_as_json(distributions) | {"notes": list(loaded.notes)})
        return
    _print_distributions(distributions, f"Shift {shift}, draw {options.draw}.")
    for note in loaded.notes:
        print_text(f"Note: {note}.")


def _draw_views(
    task: str, options: TaskOptions, training: TrainingOptions, file: Path, as_json: bool
) -> None:
    """Draw a sheet of a task's images and their random views."""
    from askew.reports.figures import check_figure, save
    from askew.reports.task_figures import view_sheet
    from askew.runs.config import RunRequest, prepare

    check_figure(file)
    request = RunRequest(
        task=task,
        method="teacher",
        draw=options.draw,
        shift=options.shift,
        training=pairs(training.train, "training"),
        settings=training.settings,
        data=options.data,
        recipe=training.recipe,
    )
    planned = prepare(request)
    views = planned.run.views
    save(view_sheet(task, planned.task.training_data, views), file)
    if as_json:
        print_json({"figure": str(file), "views": views.describe()})
    else:
        print_note(f"figure in {file}")


def _ratios(found: LabelDistributions) -> dict[str, float]:
    return {"source": found.ratio(found.source), "target": found.ratio(found.target)}


def _distributions_as_json(found: LabelDistributions) -> dict[str, Any]:
    columns = zip(
        found.classes,
        found.source.tolist(),
        found.target.tolist(),
        found.test.tolist(),
        strict=True,
    )
    return {
        "classes": [{"class": k, "source": s, "target": t, "test": e} for k, s, t, e in columns],
        "js_distance": found.distance,
        "error_bound": found.bound,
        "largest_to_smallest": _ratios(found),
    }


def _print_distributions(found: LabelDistributions, settings: str) -> None:
    def counts(sizes: Any) -> list[str]:
        return [f"{n:,}" for n in sizes] + [f"{sizes.sum():,}"]

    def shares(sizes: Any) -> list[str]:
        return [f"{100 * n / sizes.sum():.1f}" for n in sizes] + [""]

    rows = zip(
        [*found.classes, "all"],
        counts(found.source),
        shares(found.source),
        counts(found.target),
        shares(found.target),
        counts(found.test),
        strict=True,
    )
    print_table(
        ["class", "source", "%", "target", "%", "whole test split"], [list(row) for row in rows]
    )
    ratios = _ratios(found)
    print_text(
        f"{settings} Largest to smallest class: source {ratios['source']:.1f} : 1, target "
        f"{ratios['target']:.1f} : 1."
    )
    print_text(
        f"Jensen–Shannon distance between the label distributions: {found.distance:.3f} (0: "
        "equal, 1: disjoint)."
    )
    print_text(
        "With features that are distributed alike in both domains, the two errors add up to at "
        "least "
        f"{100 * found.bound:.1f} % (½ d²; Zhao et al. 2019, Theorem 4.3)."
    )
