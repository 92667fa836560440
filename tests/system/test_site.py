"""The documentation site: its table of all values in a browser, with and without scripts; and all
of it, built."""

from __future__ import annotations

import functools
import json
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import told, visit

import askew

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"


@pytest.fixture(scope="module")
def build() -> dict[str, Any]:
    return runpy.run_path(str(SITE / "build.py"))


@pytest.fixture(scope="module")
def page(build: dict[str, Any]) -> str:
    """The table of all values with its script and style, without the theme around it."""
    _, _, table = build["values_page"]().partition("<div")
    css, script = ((SITE / name).read_text() for name in ("site.css", "tables.js"))
    return (
        "<!doctype html><meta "
        f"charset=utf-8><style>{css}</style><body><div{table}<script>{script}</script></body>"
    )


def test_every_public_name_has_a_docstring_and_a_place_in_the_reference(
    build: dict[str, Any],
) -> None:
    assert build["undocumented"]() == []
    assert sorted(re.findall(r"^::: askew\.(\w+)$", build["api_page"](), flags=re.M)) == sorted(
        askew.__all__
    )


def test_the_table_holds_the_mean_of_every_row_of_values(build: dict[str, Any]) -> None:
    stored = json.loads((ROOT / "results" / "digits" / "values.json").read_text())["rows"]
    shown = [
        row for row in build["values"]() if (row["result"], row["conditions"]) == ("digits", "")
    ]
    assert len(shown) == len(stored)
    for row, source in zip(shown, stored, strict=True):
        assert (row["task"], row["method"], row["seeds"]) == (
            source["task"],
            source["method"],
            len(source["whole"]),
        )
        assert row["mean"] == pytest.approx(sum(source["whole"]) / len(source["whole"]))


SCRIPT = """
const out = document.createElement('pre'); out.id = 'told'; document.body.append(out);
const table = document.querySelector('table.values');
const shown = () => [...table.tBodies[0].rows].filter((row) => !row.hidden);
const column = (i) => shown().map((row) => row.cells[i].textContent);
const count = () => document.querySelector('.filters output').textContent;
const seen = {all: [shown().length, count()]};
const head = table.tHead.rows[0].cells[6];
head.querySelector('button').click();
seen.down = [head.getAttribute('aria-sort'), column(6)];
head.querySelector('button').click();
seen.up = [head.getAttribute('aria-sort'), column(6)];
const [, , , , method] = document.querySelectorAll('.filters select');
method.value = 'coal'; method.dispatchEvent(new Event('input'));
seen.coal = [[...new Set(column(4))], count()];
const text = document.querySelector('.filters input');
text.value = 'USPS-mnist'; text.dispatchEvent(new Event('input'));
seen.both = [...new Set(column(3))];
text.value = 'no such word'; text.dispatchEvent(new Event('input'));
seen.none = [shown().length, count()];
out.textContent = JSON.stringify(seen);
"""


def test_values_can_be_sorted_and_filtered_in_a_browser(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", f"<script>{SCRIPT}</script></body>"))
    seen = told(visit(file.as_uri(), tmp_path / "profile"))
    rows = page.count("<tr>") - 1
    assert seen["all"] == [rows, f"{rows} of {rows} rows"]
    down, up = ([float(value) for value in seen[way][1]] for way in ("down", "up"))
    assert (seen["down"][0], down) == ("descending", sorted(down, reverse=True))
    assert (seen["up"][0], up) == ("ascending", sorted(down))
    assert seen["coal"][0] == ["coal"]
    assert seen["both"] == ["digits/usps-mnist"]
    assert seen["none"] == [0, f"0 of {rows} rows"]


def test_without_scripts_all_values_are_there(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'none'\">"
    file.write_text(page.replace("<style>", f"{policy}<style>", 1))
    dom = visit(file.as_uri(), tmp_path / "profile")
    assert "<select" not in dom
    assert "hidden" not in dom.partition("</style>")[2].partition("<script>")[0]
    assert dom.count("<tr>") == page.count("<tr>")


# --- the whole site ---


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built strictly, without the gallery's figures."""
    pytest.importorskip("mkdocs", reason="the extra `docs` brings it")
    done = subprocess.run(
        [sys.executable, str(SITE / "build.py"), "--quick"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


ASKED = """<script>addEventListener("load", () => setTimeout(() => {
  const out = document.createElement("pre"); out.id = "told"; document.body.append(out);
  out.textContent = JSON.stringify(performance.getEntriesByType("resource").map((entry) => entry.name));
}, 500));</script></body>"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The site on 127.0.0.1; its pages tell in the end what they have loaded."""

    class Telling(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            if not self.path.endswith(".html"):
                super().do_GET()
                return
            content = (
                (folder / self.path.lstrip("/")).read_text().replace("</body>", ASKED).encode()
            )
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Telling, directory=str(folder))
    )
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.soak
def test_the_site_has_every_page_and_can_be_searched(site: Path) -> None:
    for name in (
        "index",
        "docs/adapt",
        "docs/tracking",
        "results/values",
        "results/digits/index",
        "api",
        "gallery",
    ):
        assert (site / f"{name}.html").is_file(), name
    index = json.loads((site / "search" / "search_index.json").read_text())
    places = {entry["location"] for entry in index["docs"]}
    assert "docs/trust.html" in places
    assert any("AdaptiveClassifier" in place for place in places)
    api = (site / "api.html").read_text()
    assert [name for name in askew.__all__ if name not in api] == []


@pytest.mark.soak
def test_the_site_names_no_other_host_for_anything_that_it_loads(site: Path) -> None:
    loads = r'<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc="((?:https?:)?//[^"]+)"'
    kinds = "stylesheet|preload|preconnect|icon|modulepreload|dns-prefetch"
    links = rf'<link\b(?=[^>]*rel="(?:{kinds})")[^>]*href="((?:https?:)?//[^"]+)"'
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert re.findall(loads, text) + re.findall(links, text) == [], file
        assert 'class="mermaid"' not in text, "the theme would load a script from elsewhere"
    for file in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", file.read_text()) == [], file


@pytest.mark.soak
@pytest.mark.parametrize("name", ["index", "api", "results/values"])
def test_a_page_loads_nothing_from_another_host(site: Path, tmp_path: Path, name: str) -> None:
    with served(site) as address:
        asked = told(visit(f"{address}/{name}.html", tmp_path / "profile"))
    assert any(url.endswith(".js") for url in asked)
    assert [url for url in asked if not url.startswith((address, "data:"))] == []
