"""The pages in results/ and the README show the values that lie beside them as JSON."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
DIGITS = RESULTS / "digits"
TASKS = ("usps-mnist", "mnist-usps", "svhn-mnist")


def tables(page: Path) -> list[list[list[str]]]:
    """Every Markdown table of a page: its lines, cell by cell, with the heading first."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.M):
        head, _, *rows = [
            [cell.strip("* ") for cell in line.strip("|\n").split("|")]
            for line in block.splitlines()
        ]
        found.append([head, *rows])
    return found


def values(
    file: str, setting: str = "", folder: Path = DIGITS
) -> dict[tuple[str, str], list[float]]:
    """(task, method) → the per-class mean accuracy of every seed, of the runs that tables
    report."""
    rows = json.loads((folder / file).read_text())["rows"]
    return {
        (row["task"].removeprefix("digits/"), row["method"]): row["whole"]
        for row in rows
        if row.get("setting", "") == setting and row.get("run", "reported") == "reported"
    }


def assert_shows(cell: str, seeds: list[float]) -> None:
    """The cell has the mean and the standard deviation of these seeds, as far as it shows
    digits."""
    mean, std = re.findall(r"\d+\.\d+", cell)[:2]
    off = (
        0.51 * 10.0 ** -len(mean.partition(".")[2]) + 0.01
    )  # the page's rounding, and that of the values
    assert float(mean) == pytest.approx(statistics.mean(seeds), abs=off), cell
    assert float(std) == pytest.approx(statistics.stdev(seeds), abs=off), cell


def test_every_result_has_a_folder_with_a_page_that_the_index_names() -> None:
    index = (RESULTS / "README.md").read_text()
    folders = [path for path in RESULTS.iterdir() if path.is_dir()]
    assert all((folder / "README.md").is_file() for folder in folders)
    assert set(re.findall(r"^\| \[([a-z-]+)\]\(\1/README.md\)", index, flags=re.M)) == {
        f.name for f in folders
    }
    assert {path.name for path in RESULTS.iterdir() if path.is_file()} == {"README.md"}


def test_every_file_of_values_is_named_by_its_page() -> None:
    files = list(RESULTS.rglob("*.json"))
    assert files
    for file in files:
        assert f"({file.name})" in (file.parent / "README.md").read_text()


def test_the_table_of_all_methods_shows_its_values() -> None:
    found = values("values.json")
    (_, *rows), *_ = tables(DIGITS / "README.md")
    assert len(rows) == 12
    for method, *cells in rows:
        for task, cell in zip((*TASKS, "mean", "syn-mnist"), cells, strict=True):
            if task != "mean":
                assert_shows(cell, found[task, method])


@pytest.mark.parametrize(
    ("number", "task"), [(3, "usps-mnist"), (4, "mnist-usps"), (5, "svhn-mnist")]
)
def test_the_tables_of_resampling_and_reweighting_show_the_single_runs(
    number: int, task: str
) -> None:
    head, *rows = tables(DIGITS / "README.md")[number]
    assert head[0] == task
    settings = ("plain", "plain reweighted", "resampled", "resampled reweighted")
    for method, *cells in rows:
        for setting, cell in zip(settings, cells, strict=False):
            if cell != "–":
                assert_shows(cell, values("single-runs.json", setting)[task, method])


def test_the_table_of_coal_with_the_paper_s_hyper_parameters_shows_its_runs() -> None:
    found = values("coal-with-paper-values.json")
    _, *rows = tables(DIGITS / "README.md")[1]
    assert len(rows) == len(found) == 6
    for task, method, whole, *_ in rows:
        assert_shows(whole, found[task, method.lower()])


def test_the_comparison_of_code_paths_shows_the_grid_and_the_single_runs() -> None:
    grid, single = values("values.json"), values("single-runs.json", "plain")
    _, *rows = tables(DIGITS / "README.md")[2]
    for method, *cells in rows:
        for place, task in enumerate(TASKS):
            assert_shows(cells[3 * place], grid[task, method])
            assert_shows(cells[3 * place + 2], single[task, method])


def test_the_sampler_s_table_shows_the_single_runs() -> None:
    head, *rows = tables(DIGITS / "README.md")[7]
    assert head[1:3] == ["balanced", "natural"]
    for method, balanced, natural, *_ in rows:
        assert_shows(balanced, values("single-runs.json", "plain")["usps-mnist", method])
        assert_shows(natural, values("single-runs.json", "natural")["usps-mnist", method])


def teacher_values() -> dict[tuple[str, str, str], list[float]]:
    """(run, variant, task) → the per-class mean accuracy of every seed."""
    rows = json.loads((RESULTS / "teacher" / "values.json").read_text())["rows"]
    return {
        (row["run"], row["variant"], row["task"].removeprefix("digits/")): row["whole"]
        for row in rows
    }


TEACHER_TABLES = {
    0: {"teacher": ("reported", "full")},
    1: {"first run": ("development", "full"), "second run": ("development, second run", "full")},
    3: {
        "0.01": ("development, second run", "full"),
        "0.3": ("development, second run", "floor 0.3"),
        "1": ("development, second run", "floor 1"),
    },
}


@pytest.mark.parametrize("number", TEACHER_TABLES)
def test_the_teacher_s_tables_show_its_values(number: int) -> None:
    found, (head, *rows) = teacher_values(), tables(RESULTS / "teacher" / "README.md")[number]
    cells = {
        label.partition(" (")[0]: dict(zip(head[1:], cells, strict=True)) for label, *cells in rows
    }
    for label, which in TEACHER_TABLES[number].items():
        seeds = {
            heading: found.get((*which, heading.partition(",")[0])) for heading in cells[label]
        }
        assert sum(values is not None for values in seeds.values()) == 4
        for heading, values in seeds.items():
            if values is not None:
                assert_shows(cells[label][heading], values)


@pytest.mark.parametrize("number", [2, 4])
def test_the_tables_of_the_teacher_s_parts_show_its_values(number: int) -> None:
    found, (head, *rows) = teacher_values(), tables(RESULTS / "teacher" / "README.md")[number]
    tasks = [heading.partition(" (")[0] for heading in head[1:]]
    for label, *cells in rows:
        variant = next(variant for _, variant, _ in found if label.startswith(variant))
        for task, cell in zip(tasks, cells, strict=True):
            run = (
                "reported" if number == 4 else "development" + ", second run" * (task == "svhn-uci")
            )
            seeds = found.get((run, variant, task))
            assert (seeds is None) == (cell == "–"), (label, task)
            if seeds is not None:
                assert_shows(cell, seeds[:3] if number == 2 else seeds)


def test_the_readme_s_table_shows_the_same_values() -> None:
    names = {"source only": "source", "DANN": "dann", "MCD": "mcd", "COAL": "coal"}
    found = values("values.json")
    (head, *rows), *_ = tables(ROOT / "README.md")
    assert head[1:4] == list(TASKS)
    assert [name.partition(",")[0] for name, *_ in rows] == [*names, "teacher"]
    for name, *cells, _ in rows:
        for task, cell in zip(TASKS, cells, strict=True):
            own = (
                found[task, names[name]]
                if name in names
                else teacher_values()["reported", "full", task]
            )
            assert_shows(cell, own)


def test_the_table_of_resampling_on_svhn_mnist_shows_its_values() -> None:
    folder = RESULTS / "recipes"
    rows = {
        row["method"]: row for row in json.loads((folder / "resampling.json").read_text())["rows"]
    }
    _, *shown = next(
        table
        for table in tables(folder / "README.md")
        if table[0][1:3] == ["as it is", "re-sampled"]
    )
    assert [method for method, *_ in shown] == list(rows)
    for method, natural, resampled, difference in shown:
        assert_shows(natural, rows[method]["natural"])
        assert_shows(resampled, rows[method]["resampled"])
        gain = statistics.mean(rows[method]["resampled"]) - statistics.mean(rows[method]["natural"])
        assert float(difference) == pytest.approx(gain, abs=0.06)


def test_the_table_of_syn_mnist_by_the_papers_recipe_shows_its_values() -> None:
    known = values("values.json") | values("later.json", folder=RESULTS / "recipes")
    _, *shown = next(
        table
        for table in tables(RESULTS / "recipes" / "README.md")
        if table[0][1:2] == ["syn-mnist"]
    )
    assert len(shown) == 18
    for method, cell, _ in shown:
        assert_shows(cell, known["syn-mnist", method])


def test_the_page_of_both_recipes_shows_their_values() -> None:
    recipes = RESULTS / "recipes"
    paper, today = (
        table
        for table in tables(recipes / "README.md")
        if "average" in table[0][1:-1] and len(table) == 19
    )
    known = values("values.json") | values("later.json", folder=recipes)
    for (head, *rows), found in ((paper, known), (today, values("values.json", folder=recipes))):
        tasks = head[1 : head.index("average")]
        assert len(tasks) == (3 if found is known else 4)
        for label, *cells in rows:
            for task, cell in zip(tasks, cells, strict=False):
                assert_shows(cell, found[task, label.removesuffix(" today")])


def test_the_table_of_coal_s_variants_shows_both_runs() -> None:
    rows = json.loads((RESULTS / "recipes" / "coal.json").read_text())["rows"]
    known = {
        (row.get("run", "second"), row.get("setting", "base")): row["whole"]
        for row in rows
        if "uci-m" in row["task"]
    }
    _, *shown = next(
        t for t in tables(RESULTS / "recipes" / "README.md") if t[0][0] == "variant of the grid"
    )
    assert {("second", label.partition(" (")[0]) for label, *_ in shown} == {
        key for key in known if key[0] == "second"
    }
    for label, *cells in shown:
        for run, cell in zip(("first", "second"), cells, strict=False):
            if cell != "–":
                assert_shows(cell, known[run, label.partition(" (")[0]])


def test_the_page_of_methods_shows_the_values_of_today_s_recipe() -> None:
    found = values("values.json", folder=RESULTS / "recipes")
    (head, *rows) = next(
        table for table in tables(ROOT / "docs" / "methods.md") if "svhn-mnist" in table[0]
    )
    assert len(rows) == 18
    for method, *cells in rows:
        for task, cell in list(zip(head[1:], cells, strict=True))[-4:]:
            assert_shows(cell, found[task.removesuffix(" (3 seeds)"), method.strip("`")])


def test_the_tables_of_what_users_bring_show_their_values() -> None:
    found: dict[tuple[str, str], list[float]] = {}
    for row in json.loads((RESULTS / "bring" / "values.json").read_text()):
        n = row.get("labels")
        name = row["what"] if n is None else f"{row['what']}, {n} labels per class"
        found.setdefault((name, row["pair"]), []).append(row["mean"])
    shown = set()
    for head, *lines in tables(RESULTS / "bring" / "README.md"):
        pairs = head[1 : head.index("mean")] if "mean" in head else []
        for name, *cells in lines:
            for pair, cell in zip(pairs, cells, strict=False):
                assert float(cell.split()[0]) == pytest.approx(
                    statistics.mean(found[name, pair]), abs=0.06
                ), name
                shown.add((name, pair))
            if pairs:
                mean = statistics.mean(value for pair in pairs for value in found[name, pair])
                assert float(cells[len(pairs)].split()[0]) == pytest.approx(mean, abs=0.06), name
    assert shown == set(found)


@pytest.mark.parametrize("file", ["auto.json", "many.json"])
def test_the_tables_of_own_data_pair_by_pair_show_their_values(file: str) -> None:
    folder, found = RESULTS / "own-data", dict[tuple[str, str, str], list[float]]()
    for row in json.loads((folder / file).read_text())["rows"]:
        found.setdefault((row["shift"], row["method"].lower(), row["pair"]), []).append(row["mean"])
    named = {"source only": "source", "k-means from class means": "k-means"}
    shown = set()
    for head, *lines in tables(folder / "README.md"):
        shift = head[0].rpartition(", ")[2].lower()
        pairs = [pair_of(cell) for cell in head[1 : head.index("mean")]] if "mean" in head else []
        if not pairs or (shift, "source", pairs[0]) not in found:
            continue
        for name, *cells in lines:
            method = named.get(name, name.strip("`").lower())
            for pair, cell in zip(pairs, cells, strict=False):
                mean = statistics.mean(found[shift, method, pair])
                assert float(cell.split()[0]) == pytest.approx(mean, abs=0.06), name
                shown.add((shift, method, pair))
    assert shown == {key for key in found if "sensor" not in key[2]}


def pair_of(heading: str) -> str:
    """A pair's name in the values: `art → cartoon` is art_painting-cartoon, `icons p → q`
    icons_p-icons_q."""
    *kind, source, _, target = heading.split()
    domains = [
        f"{kind[0]}_{end}" if kind else {"art": "art_painting"}.get(end, end)
        for end in (source, target)
    ]
    return "-".join(domains)


REPORTED = ("cartoon-photo", "photo-cartoon", "photo-sketch", "sketch-photo")


def expectations() -> dict[str, list[tuple[float, float, float]]]:
    """Of what was handed out, by group: the accuracy that is expected, its confidence and its
    accuracy."""
    auto, many, rows = (
        json.loads((RESULTS / "own-data" / file).read_text())["rows"]
        for file in ("auto.json", "many.json", "rows.json")
    )
    tuned = json.loads((RESULTS / "pacs" / "today.json").read_text())["rows"]
    groups = {
        "one look": [row for row in rows if row["rows"] != "numbers"],
        "pictures": many
        + [row for row in auto if row["pair"] not in REPORTED and "sensor" not in row["pair"]],
        "tables": [row for row in rows if row["rows"] == "numbers"],
        "frozen": [row for row in auto if row["pair"] in REPORTED or "sensor" in row["pair"]],
        "fine-tuned": [row | {"mean": row["whole"]} for row in tuned],
    }
    return {
        group: [
            (row["expected"], row["confidence"], row["mean"]) for row in rows if "expected" in row
        ]
        for group, rows in groups.items()
    }


def test_the_table_of_expected_accuracies_shows_its_values() -> None:
    lines = next(
        t for t in tables(ROOT / "docs" / "trust.md") if t[0][1:3] == ["choices", "off by"]
    )
    groups, shown = expectations(), set()
    for name, n, *cells in lines[1:]:
        group = next((key for key in groups if key in name), None)
        if group is None:  # small images, whose values are the page's own
            continue
        expected, confidence, truth = np.array(groups[group]).T
        off, sure = expected - truth, confidence - truth
        wanted = [
            np.abs(off).mean(),
            np.quantile(np.abs(off), 0.9),
            off.mean(),
            np.corrcoef(expected, truth)[0, 1],
            np.abs(sure).mean(),
            sure.mean(),
            np.corrcoef(confidence, truth)[0, 1],
        ]
        assert int(n) == len(off), name
        for cell, value in zip(cells, wanted, strict=True):
            digits = len(cell.partition(".")[2])
            assert float(cell.replace("−", "-")) == pytest.approx(
                value, abs=0.51 * 10.0**-digits + 0.005
            ), (name, wanted)
        shown.add(group)
    assert shown == set(groups)


def test_the_page_of_auto_shows_what_its_program_prints() -> None:
    program = runpy.run_path(str(ROOT / "benchmarks" / "studies" / "auto_results.py"))
    page = (RESULTS / "auto" / "README.md").read_text()
    printed = program["every_table"](RESULTS / "auto" / "bench.jsonl")
    assert len(printed) == 8
    assert [table.splitlines()[0] for table in printed if table not in page] == []
