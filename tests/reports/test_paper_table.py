"""Tables in the paper's layout, and the formats they are written in."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_results import put

from askew.reports import formats
from askew.reports.paper import paper_numbers
from askew.reports.paper_table import Layout, layouts
from askew.reports.results import collect
from askew.runs.root import finished_runs, open_root

TASKS = ("usps-mnist", "mnist-usps", "svhn-mnist", "syn-mnist")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return open_root(tmp_path / "runs")


def tables(root: Path, **options: Any) -> list[Layout]:
    return layouts(collect(finished_runs(root), **options))


def fill(
    root: Path,
    scores: dict[str, float],
    tasks: tuple[str, ...] = TASKS,
    seeds: int = 2,
    **changes: Any,
) -> None:
    """Runs of these methods, a point more each seed, and ten less on each further task."""
    for method, score in scores.items():
        for t, task in enumerate(tasks):
            for seed in range(seeds):
                name = f"{len(list(root.iterdir()))}"
                put(
                    root,
                    name,
                    score - 10 * t + seed,
                    method=method,
                    task=f"digits/{task}",
                    seed=seed,
                    **changes,
                )


def test_methods_are_rows_and_tasks_are_columns_in_the_paper_s_order(root: Path) -> None:
    fill(root, {"coal": 90, "dann": 80, "source": 85})
    (table,) = tables(root)
    assert table.columns == TASKS
    assert [line.label for line in table.lines] == ["source", "dann", "coal"]
    assert formats.heading(table) == [
        "method",
        *TASKS,
        "average",
        "paper, same tasks",
        "paper, printed",
    ]
    assert formats.body(table)[2] == [
        "coal",
        "90.50 ± 0.71 (88.12)",
        "80.50 ± 0.71 (93.04)",
        "70.50 ± 0.71 (65.67)",
        "60.50 ± 0.71 (90.60)",
        "75.50 ± 0.71",
        "84.36",
        "84.33",
    ]


def test_what_is_missing_is_shown_as_missing_and_has_no_average(root: Path) -> None:
    fill(root, {"source": 85}, seeds=3)
    fill(root, {"dann": 80}, TASKS[:1], seeds=2)
    (table,) = tables(root)
    dann = formats.body(table)[1]
    assert dann[1:] == [
        "80.50 ± 0.71 n=2 (77.28)",
        "– (91.88)",
        "– (57.16)",
        "– (77.60)",
        "–",
        "75.98",
        "75.98",
    ]
    summary = table.summary()[0]
    assert "over n = 3 seeds" in summary
    assert "1 of 8 cells have fewer seeds" in summary
    assert "3 of 8 cells have no finished run" in summary


def test_the_printed_average_is_only_shown_where_it_is_over_the_same_tasks(root: Path) -> None:
    fill(root, {"source": 85, "coal": 90}, TASKS[:3])
    (table,) = tables(root)
    assert formats.heading(table)[-2:] == ["average", "paper, same tasks"]
    assert formats.body(table)[1][-1] == "82.28"


def test_methods_below_source_only_are_counted_beside_the_paper_s_count(root: Path) -> None:
    fill(root, {"source": 85, "dann": 80, "mcd": 90, "dan": 84, "coal": 70})
    (table,) = tables(root)
    (below,) = [line for line in table.summary() if line.startswith("Below source-only")]
    assert "on average: 2 of 3 (dan, dann)" in below  # coal is not one of those compared
    assert below.endswith("The paper: 8 of 10 by its cells, 8 by its printed averages.")


def test_what_later_papers_print_stands_below_the_whole_benchmark_alone(root: Path) -> None:
    tasks = [task for task in paper_numbers() if task.startswith("office-home/")]
    for i, task in enumerate(tasks):
        put(root, f"{i}", 50.0, method="sentry", task=task)
    (table,) = tables(root)
    assert table.summary()[-1].endswith(
        "average over these tasks: sentry 65.3 (Prabhu et al., ICCV 2021)."
    )
    (part,) = layouts(collect(finished_runs(root)[:2]))
    assert "Published since" not in " ".join(part.summary())


def test_a_misprinted_average_is_named(root: Path) -> None:
    fill(root, {"source": 85, "coal": 90})
    (table,) = tables(root)
    assert any("coal 84.33 (its cells give 84.36)" in line for line in table.summary())


def test_a_variant_is_a_row_of_its_own_with_the_same_name_on_every_task(root: Path) -> None:
    fill(root, {"source": 85, "dann": 80}, TASKS[:2], sampler="balanced")
    fill(root, {"source": 70, "dann": 60}, TASKS[:1], sampler="natural")
    (table,) = tables(root)
    assert [line.label for line in table.lines] == [
        "source",
        "dann",
        "source sampler=natural",
        "dann sampler=natural",
    ]
    paper = [line.cells[0].paper for line in table.lines]
    assert paper == [(75.31, 0.09), (77.28, 2.13), (71.35, None), (42.77, None)]
    assert any(
        "[sampler=natural]: on usps-mnist: 1 of 1 (dann)" in line for line in table.summary()
    )


def test_degrees_of_label_shift_are_columns_and_not_averaged(root: Path) -> None:
    for degree in ("1", "0", "0.4"):
        fill(root, {"mcd": 90}, TASKS[:1], shift=f"degree:{degree}")
    fill(root, {"mcd": 80}, TASKS[:1])
    main, degrees = tables(root)
    assert main.columns == ("usps-mnist",)
    assert degrees.columns == ("0", "0.4", "1")
    assert degrees.degree_points() == (
        {"mcd": [(0.0, 90.5), (0.4, 90.5), (1.0, 90.5)]},
        {"mcd": [(0.0, 91.45), (1.0, 77.18)]},
    )
    assert formats.body(degrees) == [
        ["mcd", "90.50 ± 0.71 (91.45)", "90.50 ± 0.71", "90.50 ± 0.71 (77.18)"]
    ]


def test_the_best_number_is_bold_in_markdown_and_names_cannot_break_the_table(root: Path) -> None:
    fill(root, {"source": 85, "a|b<i>*": 90}, TASKS[:1])
    text = formats.markdown(tables(root))
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows[-1].startswith(r"| a\|b\<i\>\* | **90.50 ± 0.71** |")
    assert len({line.replace(r"\|", "").count("|") for line in rows}) == 1


def test_latex_escapes_what_latex_would_read(root: Path) -> None:
    fill(root, {"source": 85, "my_method & 5%": 90}, TASKS[:1])
    text = formats.latex(tables(root))
    assert r"my\_method \& 5\% & \textbf{90.50 $\pm$ 0.71} \\" in text
    assert text.count(r"\begin{tabular}{lr}") == 1


def test_csv_has_one_line_a_cell_with_plain_numbers(root: Path) -> None:
    fill(root, {"source": 85, "coal": 90})
    lines = list(csv.DictReader(io.StringIO(formats.as_csv(tables(root)))))
    assert len(lines) == 2 * (len(TASKS) + 1)
    last = lines[-1]
    assert (last["method"], last["column"], last["n"]) == ("coal", "average", "2")
    assert [float(last[k]) for k in ("mean", "paper", "paper_printed")] == [75.5, 84.36, 84.33]


def test_reweighted_scores_stand_below_and_have_no_number_of_the_paper(mini_runs: Path) -> None:
    (table,) = tables(mini_runs, reweight=True)
    assert [line.label for line in table.lines] == [
        "source",
        "coal",
        "source reweighted",
        "coal reweighted",
    ]


def test_a_table_is_printed_in_every_format(cli: Command, root: Path) -> None:
    fill(root, {"source": 85, "coal": 90})
    told = {
        f: cli("table", root, "--format", f)
        for f in ("long", "wide", "markdown", "csv", "latex", "json")
    }
    assert {answer.code for answer in told.values()} == {0}
    assert told["long"].out == cli("table", root).out
    assert "90.50 ± 0.71 (88.12)" in told["wide"].out
    (table,) = json.loads(told["json"].out)
    assert table["lines"][1]["cells"]["usps-mnist"]["paper"] == [88.12, 0.37]
    assert json.loads(cli("table", root, "--format", "wide", "--json").out) == json.loads(
        cli("table", root, "--json").out
    )


def test_no_format_of_a_table_needs_torch(root: Path) -> None:
    fill(root, {"source": 85, "coal": 90})
    code = f"""
import sys
from askew.cli import main
for words in (["long"], ["wide", "--compare"], ["markdown", "--compare"], ["csv"], ["latex"], ["json"]):
    sys.argv = ["askew", "table", {str(root)!r}, "--format", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    assert "torch" not in sys.modules, words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usps-mnist") >= 6, "each was printed"


def test_an_unknown_format_is_refused(cli: Command, root: Path) -> None:
    answer = cli("table", root, "--format", "word")
    assert answer.code == 2
    assert answer.out == ""


def test_the_paper_s_own_numbers_laid_out_give_its_own_counts(root: Path) -> None:
    """As if we had measured just what the paper prints."""
    for task, methods in paper_numbers().items():
        if task.startswith("office-home/"):
            for method, (value, _) in methods.items():
                put(root, f"{task}{method}".replace("/", "-"), value, method=method, task=task)
    (table,) = tables(root)
    (below,) = [line for line in table.summary() if line.startswith("Below")]
    assert "on average: 4 of 10 (" in below
    assert below.endswith("The paper: 4 of 10 by its cells, 6 by its printed averages.")
