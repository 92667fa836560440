"""What the documents say can be done is done."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, parsed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "askew"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def files(page: Path) -> dict[str, str]:
    """Python by the file it belongs to: blocks that begin with `# name.py` go there, one after
    another."""
    found: dict[str, str] = {}
    for block in blocks(page, "python"):
        named = re.match(r"# (\w+\.py)\n", block)
        name = named[1] if named else "page.py"
        found[name] = found.get(name, "") + block
    return found


def write_files(page: Path, folder: Path) -> list[str]:
    for name, text in files(page).items():
        (folder / name).write_text(text)
    return list(files(page))


def import_files(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> list[types.ModuleType]:
    """The modules of a page whose names begin so, from files: a method's help texts are read from
    its source."""
    names = write_files(page, folder)
    monkeypatch.syspath_prepend(folder)
    for name in names:
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    return [
        importlib.import_module(name.removesuffix(".py"))
        for name in names
        if name.startswith(prefix)
    ]


def commands(page: Path) -> list[tuple[list[str], list[str]]]:
    """Every command of a page in its words, and the lines that the page shows below it."""
    found = []
    for block in blocks(page, "console"):
        for command in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.M)[1:]:
            line, *shown = command.splitlines()
            found.append((shlex.split(line), shown))
    return found


GUIDES = [p for p in PAGES if files(p).keys() - {"page.py"}]


@pytest.mark.parametrize("page", [p for p in PAGES if "page.py" in files(p)], ids=lambda p: p.name)
def test_python_in_a_document_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # runs go to ./runs
    import_files(page, tmp_path, monkeypatch, "page.py")


def readme_method() -> str:
    """The README's example of a method, of which a help text is read from its source where there is
    one."""
    (block,) = (
        block for block in blocks(ROOT / "README.md", "python") if "(askew.methods.Method)" in block
    )
    return block


def test_the_readme_s_method_runs_from_standard_input(tmp_path: Path) -> None:
    ask = [sys.executable, "-"]
    done = subprocess.run(
        ask,
        input=readme_method(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_s_method_runs_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook compiles a cell under a name that is no file, and runs it in `__main__`, which has
    no file either."""
    notebook = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec(compile(readme_method(), "<ipython-input-1>", "exec"), notebook.__dict__)


def test_there_is_a_guide_to_follow() -> None:
    assert [p.name for p in GUIDES] == ["add-a-method.md"]


def words(line: str) -> str:
    """A line of a table but for its numbers and spaces, which another machine may print
    otherwise."""
    return re.sub(r"\d[\d.]*", "0", " ".join(line.split())).removesuffix(" chosen")


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_a_guide_s_commands_end_well_and_print_what_it_shows(
    page: Path, cli: Command, tmp_path: Path
) -> None:
    write_files(page, tmp_path)
    ran = set()
    for (program, command, *rest), shown in commands(page):
        assert program == "askew"
        alone = (
            ["--jobs", "1"] if command in ("bench", "tune") else []
        )  # in this process, which has torch already
        answer = cli(command, *rest, *alone)
        assert answer.code == 0, answer.err
        printed = [words(line) for line in answer.out.splitlines()]
        assert [line for line in shown if words(line) not in printed] == [], answer.out
        if command == "bench":
            assert sum(line.startswith("mini/syn-uci coral 0 ") for line in printed) == 1, (
                answer.out
            )
        if command == "tune":
            rows = [
                line for line in answer.out.splitlines() if line.split()[:1] == ["coral.py:CORAL"]
            ]
            assert len(rows) == 2
            assert sum(line.rstrip().endswith("chosen") for line in rows) == 1
        ran.add(command)
    assert ran == {"methods", "bench", "tune"}


@pytest.mark.parametrize("page", GUIDES, ids=lambda p: p.name)
def test_a_guide_s_own_tests_pass(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = import_files(page, tmp_path, monkeypatch, "test_")
    tests = [
        test
        for module in modules
        for name, test in vars(module).items()
        if name.startswith("test_")
    ]
    assert len(tests) > 1
    for test in tests:
        test()


def anchors(page: Path) -> set[str]:
    """The links that a page's headings can be reached by, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


LINKING = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "results").rglob("*.md")),
]


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for path, _, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#([^)]+))?\)", prose):
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {path}, which is not there"
        assert not anchor or anchor in anchors(target), (
            f"{page.name} links to {path}#{anchor}, which is not there"
        )


IN_THE_HISTORY = {"results/digits-lanes.json"}
TO_WRITE = {"src/askew/methods/coral.py", "tests/methods/test_coral.py"}


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_files_that_a_document_names_exist(page: Path) -> None:
    found = re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|toml|md|json|svg))`", page.read_text())
    known = [name for name in found if name not in IN_THE_HISTORY | TO_WRITE]
    assert [
        name for name in known if not any((place / name).exists() for place in (ROOT, PACKAGE))
    ] == []


def test_documents_that_the_code_names_exist() -> None:
    named = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"docs/[\w-]+\.md", path.read_text())
    }
    assert named
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_a_newcomer_reads_the_first_command_within_25_lines() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert next(number for number, line in enumerate(lines, 1) if line.startswith("$ askew ")) <= 25


def test_every_guide_is_linked_from_the_readme_or_from_another_guide() -> None:
    texts = {page: page.read_text() for page in LINKING}
    for guide in PAGES[1:]:
        assert any(f"{guide.name})" in text for page, text in texts.items() if page != guide), (
            guide.name
        )


def test_the_tree_of_the_architecture_page_is_that_of_the_package() -> None:
    update = runpy.run_path(str(ROOT / "docs" / "update_architecture.py"))
    (shown,) = blocks(ROOT / "docs" / "architecture.md", "text")
    assert shown.splitlines() == ["src/askew", *update["tree"](PACKAGE)], (
        "run: python docs/update_architecture.py"
    )


def askew_commands(page: Path) -> list[list[str]]:
    """Every `askew` command of a page word by word, in a block, on an indented line or within a
    sentence."""
    text = page.read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ |    )(?:torchrun .* -m )?askew (.*)$", text, flags=re.M)
    within = re.findall(r"(?<!`)`askew ([^`]+)`", text)
    return [re.sub(r"\s#.*", "", line).split() for line in [*lines, *within]]


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_every_command_and_option_that_a_document_names_exists(page: Path) -> None:
    from askew.cli import app

    for command in askew_commands(page):
        known: Any = parsed(app)
        words = [word.strip("…") for word in command if re.match(r"[\w-]", word)]
        while hasattr(known, "commands") and words and words[0][0] != "-":
            assert words[0] in known.commands, f"{page.name}: askew {' '.join(command)}"
            known = known.commands[words.pop(0)]
        options = {
            option for param in known.params for option in (*param.opts, *param.secondary_opts)
        }
        used = {
            word.partition("=")[0]
            for word in words
            if word.startswith("-") and not word[1:].isdigit()
        }
        assert used <= options | {"--help", "--version"}, f"{page.name}: askew {' '.join(command)}"


def test_the_guide_to_views_lists_every_setting_with_its_default() -> None:
    from askew.core.options import options
    from askew.nets.augment import Views

    (table,) = re.findall(
        r"^\| setting \|.*\n(?:\|.*\n)+", (ROOT / "docs" / "views.md").read_text(), flags=re.M
    )
    rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", table, flags=re.M)
    assert dict(rows) == {
        name: option.default if isinstance(option.default, str) else f"{option.default:g}"
        for name, option in options(Views).items()
    }


def test_the_page_of_methods_and_the_readme_count_them_rightly() -> None:
    from askew.methods import GROUPS

    words = {5: "five", 7: "seven", 12: "twelve", 24: "Twenty-four"}
    sizes = [len(group) for group in GROUPS.values()]
    paper, further, ours = (words[size] for size in sizes)
    page = (ROOT / "docs" / "methods.md").read_text()
    assert f"{words[sum(sizes)]} methods in three groups: the {paper} that the paper" in page
    assert f"{further} others that were published, and {ours} of our own" in page
    others = words[sum(sizes[1:])]
    assert f"all {paper} methods" in (ROOT / "README.md").read_text()
    assert f"and {others} others" in (ROOT / "README.md").read_text()
