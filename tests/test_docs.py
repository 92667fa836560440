"""What the documents say can be done is done."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_python_in_a_document_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs go to ./runs
    script = tmp_path / "page.py"  # a file, because a method's help texts are read from its source
    script.write_text("\n".join(blocks(page, "python")))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "page", raising=False)
    importlib.import_module("page")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_command_that_a_document_names_exists() -> None:
    from askew.cli import app

    known = {c.name or c.callback.__name__ for c in app.registered_commands if c.callback}
    for page in PAGES:
        for block in blocks(page, "console"):
            named = re.findall(r"^\$ askew (\w+)", block, flags=re.M)
            assert set(named) <= known, f"{page.name} names {set(named) - known}"
