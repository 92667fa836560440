"""The notebooks run from top to bottom, at small size, in a kernel of their own."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "adapt-your-folder",
        "digits-table",
        "write-a-method",
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_is_kept_without_outputs_and_names_its_parameters(path: Path) -> None:
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    (parameters,) = (cell for cell in code if cell["metadata"].get("tags") == ["parameters"])
    compile("".join(parameters["source"]), str(path), "exec")


@pytest.mark.soak
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore")
def test_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nbclient", reason="a development tool")
    pytest.importorskip("ipykernel", reason="a development tool")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    notebook = runpy.run_path(str(ROOT / "docs" / "site" / "notebooks.py"))["executed"](
        path, tmp_path
    )
    tables = [
        o
        for cell in notebook.cells
        for o in cell.get("outputs", [])
        if "text/html" in o.get("data", {})
    ]
    assert tables, "results are shown as tables"


def test_bars_are_drawn_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    from askew.cli import progress

    monkeypatch.setattr(progress.err, "is_jupyter", True)
    assert not progress._training_bars().disable
    monkeypatch.setattr(progress.err, "is_jupyter", False)
    assert progress._training_bars().disable
