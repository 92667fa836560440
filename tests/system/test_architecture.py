"""The shape of the code: imports point one way, torch is imported late, files and functions stay
short."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import askew

ROOT = Path(askew.__file__).parent
LONGEST_FILE = 500
ROOMS = (
    "core",
    "data",
    "nets",
    "evaluation",
    "methods",
    "training",
    "runs",
    "inference",
    "reports",
    "adaptation",
    "cli",
)
"""From left to right: a room may import from those before it."""
ORDER = (*ROOMS[:6], "testing", *ROOMS[6:])
"""Runs check methods, so `testing` comes before them; the other modules come after all rooms."""


@functools.cache
def modules() -> dict[str, Path]:
    """Every module below askew, by its name without `askew.`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


def rank(name: str) -> int:
    """The place of a module's room; the package's own modules, but for `testing`, come after all
    rooms."""
    room = name.partition(".")[0]
    return ORDER.index(room) if room in ORDER else len(ORDER)


def imported(tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of askew, wherever it stands: at the top, in a function, for
    types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            # `from askew.core import random` names a module, `from askew import __version__` does
            # not.
            names = [
                base
                if f"{base}.{a.name}".removeprefix("askew.") not in known
                else f"{base}.{a.name}"
                for a in node.names
                if (base, a.name) != ("askew", "__version__")
            ]
        else:
            continue
        for name in names:
            if name == "askew" or name.startswith("askew."):
                yield node.lineno, name.removeprefix("askew").removeprefix(".")


def breaches(name: str, tree: ast.Module, known: set[str]) -> list[str]:
    """Imports of a room to the right of the module's own, of the package as a whole, or of what is
    not there."""
    return [
        f"askew.{name}, line {line}, imports askew.{other}"
        for line, other in imported(tree, known)
        if other not in known or not other or rank(other) > rank(name)
    ]


def test_every_folder_of_the_package_is_a_room() -> None:
    assert {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ROOMS)
    assert {p.stem for p in ROOT.glob("*.py")} == {"__init__", "__main__", "testing"}


def test_imports_only_point_to_the_left() -> None:
    known = set(modules())
    assert not [one for name in known if name for one in breaches(name, tree_of(name), known)]


def test_no_two_modules_import_each_other() -> None:
    known = set(modules())
    uses = {name: {other for _, other in imported(tree_of(name), known)} for name in known if name}
    done: set[str] = set()
    while ready := {
        name for name, others in uses.items() if name not in done and others & uses.keys() <= done
    }:
        done |= ready
    assert not uses.keys() - done


@pytest.mark.parametrize(
    "source",
    [
        "from askew.training.trainer import fit",
        "import askew.cli",
        "import askew",
        "from askew.training import trainer",
        "def f():\n    from askew.runs.api import run",
        "if TYPE_CHECKING:\n    from askew.training.run import Run",
        "from askew.no_such_module import x",
    ],
)
def test_an_import_to_the_right_would_be_found(source: str) -> None:
    assert breaches("nets.network", ast.parse(source), set(modules()))


@pytest.mark.parametrize(
    "source",
    [
        "from askew.core import random",
        "from askew import __version__",
        "import torch",
        "from askew.nets.spec import N",
    ],
)
def test_an_import_to_the_left_is_no_breach(source: str) -> None:
    assert not breaches("nets.network", ast.parse(source), set(modules()))


def test_the_package_itself_imports_nothing_of_its_own_when_imported() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    outright = ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])
    assert not list(imported(outright, set(modules())))


def test_every_name_that_the_package_offers_is_there() -> None:
    assert all(getattr(askew, name) is not None for name in askew.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        askew.nonsense  # noqa: B018


def test_dir_lists_the_public_names() -> None:
    assert dir(askew) == sorted([*askew.__all__, "__version__"])
    assert run(
        "import sys, askew; print('coal' in dir(askew), 'run' in dir(askew), 'torch' in "
        "sys.modules)"
    ) == ("False True False\n")


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_importing_askew_does_not_import_torch() -> None:
    assert (
        run("import sys, askew; print('torch' in sys.modules, 'numpy' in sys.modules)")
        == "False False\n"
    )


SLOW = ("torch", "numpy", "rich.progress", "askew.core.options")
"""Modules that make `askew --help` slower than 0.3 s, or come with those that do."""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["bench", "--help"], ["data", "show", "--help"]]
)
def test_help_imports_nothing_that_is_slow(arguments: list[str]) -> None:
    code = f"""
import sys
from askew.cli import main
sys.argv = ["askew", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in {SLOW!r} if name in sys.modules])
"""
    output = run(code)
    assert len(output.splitlines()) > 5, "it did answer"
    assert output.endswith("\n[]\n")


def test_no_file_has_more_than_500_lines() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}
