"""The pages in results/ and the README show the values that lie beside them as JSON."""

from __future__ import annotations

import json
import re
import runpy
import statistics
from pathlib import Path

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
    files = [*RESULTS.rglob("*.json"), *RESULTS.rglob("*.jsonl")]
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


def test_the_readme_s_table_shows_the_values_of_the_results_pages() -> None:
    ((head, *rows),) = tables(ROOT / "README.md")
    shown = {
        name.partition(",")[0]: dict(zip(head[1:], cells, strict=True)) for name, *cells in rows
    }
    digits, views = values("values.json"), teacher_values()
    for name, method in (("source-only", "source"), ("COAL", "coal")):
        mean = statistics.mean(statistics.mean(digits[task, method]) for task in TASKS)
        assert float(shown["digits"][name].split()[0]) == pytest.approx(mean, abs=0.06)
    mean = statistics.mean(statistics.mean(views["reported", "full", task]) for task in TASKS)
    assert float(shown["digits"]["teacher"]) == pytest.approx(mean, abs=0.06)
    home, *_ = tables(RESULTS / "auto" / "README.md")
    known = {line[0]: line[-1] for line in home}
    assert shown["Office-Home"]["source-only"] == f"{known['source-only, in the paper']} †"
    assert shown["Office-Home"]["COAL"] == f"{known['COAL, in the paper']} †"
    assert shown["Office-Home"]["SENTRY"] == f"{known['SENTRY, as published']} †"
    assert shown["Office-Home"]["`auto`"] == known["`auto`: one network"]
    made = next(
        line for line in tables(RESULTS / "tables" / "README.md")[0] if line[0] == "made grid"
    )
    assert [shown["made tables"]["`auto`"], shown["made tables"]["source-only"]] == made[2:4]


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


def test_the_page_of_auto_shows_what_its_program_prints() -> None:
    program = runpy.run_path(str(ROOT / "benchmarks" / "studies" / "auto_results.py"))
    page = (RESULTS / "auto" / "README.md").read_text()
    printed = program["every_table"](RESULTS / "auto" / "bench.jsonl")
    assert len(printed) == 8
    assert [table.splitlines()[0] for table in printed if table not in page] == []
