"""The page about a folder of runs: what it says, and that it works and cannot be broken into, in a
real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from commands import assert_refused
from conftest import Command

from askew.reports.findings import run_findings, unfinished_runs
from askew.reports.results import collect
from askew.reports.run_report import make_report
from askew.runs.root import finished_runs, open_root
from askew.runs.store import RunFolder

EVIL = (
    "\"'><script>document.title='owned'</script><img src=x "
    "onerror=\"document.title='owned'\">{{script}}"
)
VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    """A page's tags, text and links; it complains where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(mini_runs: Path) -> str:
    return make_report(mini_runs)


def test_the_page_is_whole_and_loads_nothing(page: str) -> None:
    found = Page(page)
    for tag, attributes in found.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        assert not {"src", "href"} & attributes.keys()
    assert "url(" not in page
    assert "@import" not in page
    assert "http" not in page.replace('http-equiv="Content-Security-Policy"', "")


def test_the_page_says_what_there_is(page: str, mini_runs: Path) -> None:
    text = Page(page).text
    for heading in (
        "Findings",
        "Results",
        "All numbers",
        "Accuracy by class",
        "Label distribution",
        "Training",
        "Settings",
    ):
        assert heading in text
    row = next(r for r in collect(finished_runs(mini_runs)) if r.method == "coal")
    assert f"{sum(row.values) / 2:.2f}" in text
    assert "4 finished runs" in text
    assert "loss: entropy" in text
    assert "per-class mean accuracy, % (uses test labels)" in text
    assert "label distribution of the target, estimated without target labels" in text
    assert all(folder.name in text for folder in finished_runs(mini_runs))
    assert "plan.1.method.options.alpha" in text


def test_tables_are_marked_up_for_those_who_cannot_see_them(page: str) -> None:
    found = Page(page)
    assert found.count("table") == found.count("caption") == found.count("thead") > 5
    heads = [a for tag, a in found.tags if tag == "th"]
    assert all(a.get("scope") in ("row", "col") for a in heads)
    assert all(a.get("aria-label") for tag, a in found.tags if tag == "svg")
    assert ("html", {"lang": "en"}) in found.tags


def test_a_report_is_the_same_twice(page: str, mini_runs: Path) -> None:
    assert make_report(mini_runs) == page


def test_the_command_writes_one_file(
    cli: Command, mini_runs: Path, tmp_path: Path, page: str
) -> None:
    answer = cli("report", mini_runs, "-o", "page.html")
    assert (answer.code, answer.out) == (0, "")
    assert (tmp_path / "page.html").read_text() == page
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    assert json.loads(cli("report", mini_runs, "-o", "page.html", "--json").out) == {
        "report": "page.html"
    }


def test_a_report_of_nothing_or_to_nowhere_is_refused(
    cli: Command, mini_runs: Path, tmp_path: Path
) -> None:
    assert_refused(cli("report", "no"))
    assert_refused(cli("report", mini_runs, "-o", "no/page.html"))
    open_root(tmp_path / "empty")
    assert cli("report", "empty").err.startswith("The folder empty holds no finished run yet.")
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]


# --- findings ---


def rewritten(source: Path, root: Path, change: Callable[[Path], None]) -> Path:
    """A copy of a folder of runs, each run changed."""
    shutil.copytree(source, root, ignore=shutil.ignore_patterns("*.safetensors"))
    for folder in finished_runs(root):
        change(folder)
        RunFolder(folder).finish()  # else it counts as damaged
    return root


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def codes(root: Path) -> dict[str, tuple[str, ...]]:
    found = run_findings(collect(finished_runs(root)), unfinished_runs(root))
    return {finding.code: finding.where for finding in found}


def copied_run(mini_runs: Path, folder: Path) -> tuple[Path, Path]:
    """A copy of the runs, and one of them."""
    root = shutil.copytree(mini_runs, folder / "copy")
    return root, finished_runs(root)[0]


@pytest.mark.parametrize("name", ["run.json", "reweighted.json", "scores.json", "trace.jsonl"])
@pytest.mark.parametrize("harm", ["torn", "a changed number", "of another kind", "missing"])
def test_a_result_that_is_not_as_it_was_written_is_named_and_not_shown(
    cli: Command, mini_runs: Path, tmp_path: Path, name: str, harm: str
) -> None:
    root, run = copied_run(mini_runs, tmp_path)
    file = run / name
    content = file.read_bytes()
    if harm == "missing":
        file.unlink()
    elif harm == "torn":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "of another kind":
        file.write_bytes(b"[1]\n")
    else:
        digit = re.search(rb"[0-8]", content)
        assert digit
        file.write_bytes(content[: digit.start()] + b"9" + content[digit.end() :])
    answer = cli("report", root, "-o", tmp_path / "page.html")
    if (harm, name) in {("missing", "trace.jsonl"), ("missing", "reweighted.json")}:
        assert answer.code == 0  # a page without curves, and without an estimate
    elif (harm, name) == ("missing", "scores.json"):
        assert answer.code == 0  # as if it had never been finished
    else:
        assert_refused(answer)
        assert name in answer.err


@pytest.mark.parametrize("content", ["[1]\n", "{}\n", '{"step": 1', "\ud800", "[" * 5000])
def test_a_trace_that_no_hash_protects_is_named_where_it_is_damaged(
    cli: Command, mini_runs: Path, tmp_path: Path, content: str
) -> None:
    root, run = copied_run(mini_runs, tmp_path)
    (run / "done").write_bytes(b"")  # as early versions wrote it
    (run / "trace.jsonl").write_bytes(content.encode(errors="surrogatepass"))
    assert_refused(cli("report", root, "-o", tmp_path / "page.html"))


def test_too_few_seeds_and_an_oracle_s_curve_are_found(mini_runs: Path) -> None:
    found = codes(mini_runs)
    assert found["A001"] == (
        "mini/syn-uci (rs-ut), source: n = 2",
        "mini/syn-uci (rs-ut), coal: n = 2",
    )
    assert len(found["A002"]) == 2
    assert not {"A003", "A004", "A007", "A008"} & found.keys()


def test_a_row_without_a_seed_that_another_row_of_the_task_has_is_found(
    mini_runs: Path, tmp_path: Path
) -> None:
    root = rewritten(mini_runs, tmp_path / "runs", lambda _: None)
    for folder in finished_runs(root):
        run = json.loads((folder / "run.json").read_text())["run"]
        if (run["plan"][-1]["method"]["id"], run["seed"]) == ("coal", 1):
            shutil.rmtree(folder)
    assert codes(root)["A008"] == ("mini/syn-uci (rs-ut), coal: without seed 1",)


def test_an_empty_class_an_unfinished_run_an_unsure_mix_and_mixed_machines_are_found(
    mini_runs: Path, tmp_path: Path
) -> None:
    def change(folder: Path) -> None:
        scores = json.loads((folder / "scores.json").read_text())
        scores["whole"]["per_class"][3] = None
        (folder / "scores.json").write_text(json.dumps(scores))
        edit(folder / "reweighted.json", unsure=True)
        edit(folder / "run.json", device=folder.name)

    root = rewritten(mini_runs, tmp_path / "runs", change)
    begun = finished_runs(root)[0]
    shutil.copytree(begun, root / "begun")
    (root / "begun" / "done").unlink()
    found = codes(root)
    assert found["A003"][0].endswith(": 3 (whole test split)")
    assert len(found["A004"]) == 1
    assert found["A004"][0].endswith("(begun)")
    assert found["A006"][0].endswith("seed 0, 1")
    assert len(found["A007"]) == 2
    text = Page(make_report(root)).text
    assert "A004 A run that did not finish" in text
    assert "What to do: start the command that made it again" in text


@pytest.mark.parametrize(("lead", "thin"), [(0.5, True), (30.0, False)])
def test_a_lead_within_the_standard_deviation_is_found(
    mini_runs: Path, tmp_path: Path, lead: float, thin: bool
) -> None:
    def change(folder: Path) -> None:
        run = json.loads((folder / "run.json").read_text())["run"]
        better = lead if run["plan"][-1]["method"]["id"] == "coal" else 0.0
        scores = json.loads((folder / "scores.json").read_text())
        scores["whole"]["per_class_mean"] = 50.0 + better + 4 * run["seed"]
        (folder / "scores.json").write_text(json.dumps(scores))

    found = codes(rewritten(mini_runs, tmp_path / "runs", change))
    assert ("A005" in found) == thin
    if thin:
        assert found["A005"] == ("mini/syn-uci (rs-ut): coal leads source by 0.50, std 2.83",)


# --- in a browser ---


@pytest.fixture
def browse(tmp_path: Path) -> Callable[..., str]:
    """The page as headless Chromium leaves it, after a script of the test's own where one is
    given."""
    program = next(
        (
            p
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (p := shutil.which(name))
        ),
        None,
    )
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")

    def open_page(text: str, script: str = "", guarded: bool = True) -> str:
        if script or not guarded:  # the page's own policy would not let the test's script in
            text = re.sub(r"script-src '[^']+'", "script-src 'unsafe-inline'", text)
        file = tmp_path / "page.html"
        file.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
        options = (
            "headless no-sandbox disable-gpu disable-background-networking "
            "disable-component-update disable-sync "
            "no-first-run disable-extensions dump-dom virtual-time-budget=3000"
        )
        ask = [
            program,
            *(f"--{option}" for option in options.split()),
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        done = subprocess.run(
            [*ask, file.as_uri()], capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return open_page


TELL = "const out = document.createElement('pre'); out.id = 'told'; document.body.append(out);"


def told(dom: str) -> Any:
    (text,) = re.findall(r'<pre id="told">(.*?)</pre>', dom, flags=re.S)
    return json.loads(text.replace("&quot;", '"').replace("&amp;", "&"))


def test_a_click_on_a_heading_sorts_and_another_turns_it_around(
    page: str, browse: Callable[..., str]
) -> None:
    script = f"""{TELL}
const table = document.querySelector('table.sortable');
const head = table.tHead.rows[0].cells[1];
const values = () => [...table.tBodies[0].rows].map((row) => +row.cells[1].dataset.v);
const seen = [];
for (let i = 0; i < 2; i++) {{
  head.querySelector('button').click();
  seen.push([head.getAttribute('aria-sort'), values()]);
}}
table.tHead.rows[0].cells[0].querySelector('button').click();
seen.push([head.getAttribute('aria-sort'), [...table.tBodies[0].rows].map((row) => row.cells[0].textContent)]);
out.textContent = JSON.stringify(seen);"""
    down, up, names = told(browse(page, script))
    assert down == ["descending", sorted(down[1], reverse=True)]
    assert up == ["ascending", sorted(down[1])]
    assert len(set(up[1])) > 1
    assert names == [None, ["coal", "source"]]


def test_a_tab_shows_its_panel_alone_and_arrows_move_on(
    mini_runs: Path, tmp_path: Path, browse: Callable[..., str]
) -> None:
    root = rewritten(mini_runs, tmp_path / "runs", lambda folder: None)
    for folder in finished_runs(root)[:2]:
        record = json.loads((folder / "run.json").read_text())
        record["run"]["task"] = "other/task"
        (folder / "run.json").write_text(json.dumps(record))
        RunFolder(folder).finish()
    script = f"""{TELL}
const tabs = [...document.querySelectorAll('[role="tab"]')];
const shown = () => [...document.querySelectorAll('[role="tabpanel"]')].map((p) => p.offsetHeight > 0);
const seen = [tabs.map((t) => t.textContent), shown()];
tabs[1].click();
seen.push(shown());
tabs[1].dispatchEvent(new KeyboardEvent('keydown', {{ key: 'ArrowRight' }}));
seen.push(shown(), tabs.map((t) => t.getAttribute('aria-selected')));
out.textContent = JSON.stringify(seen);"""
    names, *states = told(browse(make_report(root), script))
    assert names == ["mini", "other"]
    assert states == [[True, False], [False, True], [True, False], ["true", "false"]]


def poisoned(source: Path, root: Path) -> Path:
    """Runs in which everything that has a name is called EVIL."""

    def change(folder: Path) -> None:
        record = json.loads((folder / "run.json").read_text())
        run = record["run"]
        run |= {"task": EVIL, "shift": EVIL, "sampler": EVIL}
        run["plan"][-1]["method"] |= {"id": EVIL, "options": {EVIL: f"{EVIL}{run['seed']}"}}
        record |= {"classes": [f"{EVIL}{i}" for i in range(10)], "notes": [EVIL], "device": EVIL}
        record["versions"] = {EVIL: EVIL}
        (folder / "run.json").write_text(json.dumps(record))
        trace = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
        lines = [entry | {"losses": {EVIL: 1.0}} for entry in trace]
        (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return rewritten(source, root, change)


def test_names_stay_names(mini_runs: Path, tmp_path: Path) -> None:
    found = Page(make_report(poisoned(mini_runs, tmp_path / "runs")))
    assert found.count("script") == 1
    assert found.count("img") == 0
    assert not [a for _, a in found.tags if any(name.startswith("on") for name in a)]
    assert found.text.count("document.title='owned'") > 50


@pytest.mark.parametrize("guarded", [True, False], ids=["with the page's policy", "without it"])
def test_a_name_that_is_a_script_does_nothing_in_a_browser(
    mini_runs: Path, tmp_path: Path, browse: Callable[..., str], guarded: bool
) -> None:
    dom = browse(make_report(poisoned(mini_runs, tmp_path / "runs")), guarded=guarded)
    title = re.findall(r"<title>(.*?)</title>", dom, flags=re.S)[0]
    assert title.startswith("askew: ")  # not replaced
    assert "<img" not in dom
    assert 'class="js"' in dom, "the page's own script did run"
