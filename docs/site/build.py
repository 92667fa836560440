"""Build the documentation site into build/site: the repository's own pages, an API reference,
figures, and all values.

python docs/site/build.py [--quick]

Pages are gathered into build/site-pages with the repository's own layout, so that their links work
on both sides. The build is strict: a broken link, or a public name without a docstring, fails.
--quick draws no figures and runs no notebooks.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import importlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "site-pages"
CONFIG = Path(__file__).with_name("mkdocs.yml")
ASSETS = ("site.css", "tables.js")
TOPS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CITATION.cff",
    "LICENSE",
)
TINY = "-t pretrain=150 -t rounds=4 -t round=75"
GALLERY = [
    ("What a task consists of", "data show mini/syn-uci --figure task.png", "task.png"),
    (
        "Common in one domain, rare in the other",
        "figure mix --tasks mini/syn-uci,mini/uci-syn -o mix.svg",
        "mix.svg",
    ),
    ("Images and their random views", "data show mini/syn-uci --views -o views.png", "views.png"),
    (
        "",
        "bench mini --methods source,coal,teacher --tasks syn-uci --seeds 1 --jobs 1 --curve "
        f"{TINY} --out runs",
        "",
    ),
    ("Accuracy of every class", "figure classes runs -o classes.svg", "classes.svg"),
    (
        "Features of both domains, by t-SNE",
        "figure features runs --images 300 -o features.png",
        "features.png",
    ),
    ("The report of a folder of runs", "report runs -o report.html", "report.html"),
]
"""Heading, command, and the file that it draws; runs are as short as the figures allow."""


def gather() -> None:
    """Copy every page and what pages show."""
    shutil.rmtree(PAGES, ignore_errors=True)
    tops = [ROOT / name for name in TOPS]
    kinds = (".md", ".svg", ".png", ".json")
    shown = [
        p
        for folder in ("docs", "results", "notebooks")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in kinds
    ]
    for path in [*tops, *shown]:
        place = PAGES / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    (PAGES / "assets").mkdir()
    for name in ASSETS:
        shutil.copy(Path(__file__).with_name(name), PAGES / "assets" / name)


# --- API reference ---


def public_names() -> dict[str, list[str]]:
    """The names that the API reference lists, by package."""
    import askew

    return {
        "askew": askew.__all__,
        "askew.methods": list(askew.methods.FOR_AUTHORS),
        "askew.data": askew.data.__all__,
        "askew.runs": askew.runs.__all__,
    }


def undocumented() -> list[str]:
    """Public names without a docstring of their own."""
    found = []
    for package, names in public_names().items():
        for name in names:
            thing = getattr(importlib.import_module(package), name)
            if callable(thing) and not thing.__doc__:
                found.append(f"{package}.{name}")
    return found


ABOUT = {
    "askew": "For users. `import askew` imports torch when one of these names is first used.",
    "askew.methods": "For authors of methods, see [Add a method](docs/add-a-method.md).",
    "askew.data": "Domains and tasks, for authors of benchmarks.",
    "askew.runs": "Planning of runs, for studies.",
}


def api_page() -> str:
    parts = ["# API", "All public names, by package."]
    for package, names in public_names().items():
        parts += [f"## {package}", ABOUT[package]]
        ordered = sorted(names, key=lambda name: (name[0].isupper(), name.lower()))
        parts += [f"::: {package}.{name}" for name in ordered]
    return "\n\n".join(parts) + "\n"


# --- gallery ---


def run_command(command: str, folder: Path) -> None:
    """Run an askew command in this process and in a folder."""
    from askew.cli import main

    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        before, sys.argv = sys.argv, ["askew", *command.split()]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.argv = before


def gallery_page(*, quick: bool) -> str:
    folder = PAGES / "gallery"
    folder.mkdir()
    parts = [
        "# Gallery",
        "Every figure was drawn by the command above it while this site was built. The runs "
        "behind them are short: "
        "they show what figures look like, not how good a method is; that is in the "
        "[results](results/README.md).",
    ]
    for heading, command, file in [] if quick else GALLERY:
        run_command(command, folder)
        parts += [f"## {heading}"] if heading else []
        parts.append(f"    askew {command}")
        if file.endswith(".html"):
            parts.append(f'<a href="gallery/{file}">Open the report</a>')
        elif file:
            parts.append(f"![{heading}](gallery/{file})")
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return "\n\n".join(parts) + "\n"


# --- all values ---

COLUMNS = ("result", "recipe", "conditions", "task", "method", "seeds", "mean", "sd", "paper")
FILTERED = ("result", "recipe", "conditions", "task", "method")
RECIPES = {"digits": "paper", "recipes": "today", "teacher": "views"}
"""What the methods of a result were trained by, where its values do not say so themselves."""


def values() -> Iterator[dict[str, Any]]:
    """One row for each file of values in results/ that has some by task and seed."""
    for file in sorted((ROOT / "results").rglob("*.json")):
        content = json.loads(file.read_text())
        for row in content.get("rows", []) if isinstance(content, dict) else []:
            if "task" not in row or not isinstance(row.get("whole"), list):
                continue
            paper = row.get("paper")
            result = file.parent.relative_to(ROOT / "results").as_posix()
            conditions = [row.get(name, "") for name in ("setting", "run", "variant")]
            yield {
                "result": result,
                "recipe": row.get("recipe") or content.get("recipe") or RECIPES.get(result, ""),
                "conditions": " ".join(
                    filter(None, [file.stem.removeprefix("values"), *conditions])
                ),
                "task": row["task"],
                "method": row.get("method") or "teacher",
                "seeds": len(row["whole"]),
                "mean": statistics.mean(row["whole"]),
                "sd": statistics.stdev(row["whole"]) if len(row["whole"]) > 1 else None,
                "paper": paper[0] if isinstance(paper, list) else None,
            }


def values_page() -> str:
    rows = list(values())
    head = "".join(
        f'<th scope="col"{" data-filter" if c in FILTERED else ""}>{c}</th>' for c in COLUMNS
    )
    lines = []
    for row in rows:
        cells = []
        for column in COLUMNS:
            value = row[column]
            text = (
                ""
                if value is None
                else f"{value:.1f}"
                if isinstance(value, float)
                else html.escape(str(value))
            )
            if column == "result":
                text = f'<a href="{text}/README.html">{text}</a>'
            sort = f"{value:.4f}" if isinstance(value, float) else ""
            cells.append(f"<td{f' data-sort={sort}' if sort else ''}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    table = "\n".join(["<thead><tr>", head, "</tr></thead><tbody>", *lines, "</tbody>"])
    return (
        "---\nhide: [toc]\n---\n\n# All values\n\n"
        "Per-class mean accuracy in % on the whole test split: the mean over seeds, their "
        "standard deviation, and the "
        "paper's number where it has one. Compare rows with the same conditions only. A page on "
        "each result has its "
        "command, machine and date.\n\n"
        f'<div class="values"><table class="values">\n{table}\n</table></div>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="draw no figures, run no notebooks")
    quick = parser.parse_args().quick
    from notebooks import notebook_page  # beside this file

    if missing := undocumented():
        sys.exit(f"public names without a docstring: {', '.join(missing)}")
    gather()
    (PAGES / "api.md").write_text(api_page())
    (PAGES / "gallery.md").write_text(gallery_page(quick=quick))
    (PAGES / "results" / "values.md").write_text(values_page())
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook_page(path, PAGES / "notebooks", quick=quick)
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(CONFIG),
    ]
    quiet = {"NO_MKDOCS_2_WARNING": "1"}  # of Material, about its end in 2027: docs/dependencies.md
    sys.exit(subprocess.run(build, check=False, env=os.environ | quiet).returncode)


if __name__ == "__main__":
    main()
