"""The shape of the code: imports point one way, torch waits until it is needed, and files stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import askew

ROOT = Path(askew.__file__).parent
LONGEST = 400

# From left to right; a module may import from the lines above its own. A star stands for modules yet to come.
ORDER = (
    ("errors",),
    ("chance", "options", "page", "paper", "svg"),
    ("data.folders", "data.pictures", "data.protocol", "data.views"),
    ("data.digit_files", "data.fetch", "data.lists", "data.picture_cache", "data.syn", "data.task"),
    ("data.digits", "data.trees"),
    ("data.*",),
    ("data",),
    ("data.feed", "data.mixes", "data.own"),
    ("data.figure", "data.inventory"),
    ("ahead", "kernels", "losses", "optim", "priors", "said"),
    ("mixtures",),
    ("diagnosis", "validators"),
    ("alarm",),
    ("stacked",),
    ("layers",),
    ("nets",),
    ("method",),
    ("methods.*",),
    ("methods",),
    ("plan",),
    ("loop",),
    ("engine",),
    ("lanes",),
    ("recipe", "settings"),
    ("spread",),
    ("claims",),
    ("store", "metrics"),
    ("execute",),
    ("card",),
    ("inputs",),
    ("predictor",),
    ("estimator", "export", "stream"),
    ("launch.jobs",),
    ("launch.remote",),
    ("launch.*",),
    ("launch",),
    ("parts",),
    ("status", "table"),
    ("insight", "layout"),
    ("checks", "figures", "formats", "grid", "tune"),
    ("embed",),
    ("adapt",),
    ("audit", "remarks"),
    ("letter",),
    ("handover",),
    ("report",),
    ("api", "check"),
    ("show",),
    ("cli.common",),
    ("cli.*",),
    ("cli",),
    ("__main__",),
    ("",),  # the package itself: it offers names of all the others, and imports none until asked
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def modules() -> dict[str, Path]:
    """Every module below askew, by its name without `askew.`."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def rank(name: str) -> int | None:
    package, dot, _ = name.rpartition(".")
    return RANK.get(name, RANK.get(f"{package}{dot}*") if dot else None)


def imported(tree: ast.Module, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of askew, wherever it stands: at the top, in a function, for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            base = node.module or ""
            # `from askew import chance` names a module, `from askew import __version__` does not.
            names = [base if f"{base}.{a.name}".removeprefix("askew.") not in known else f"{base}.{a.name}"
                     for a in node.names if (base, a.name) != ("askew", "__version__")]  # fmt: skip
        else:
            continue
        for name in names:
            if name == "askew" or name.startswith("askew."):
                yield node.lineno, name.removeprefix("askew").removeprefix(".")


def breaches(name: str, tree: ast.Module, known: set[str]) -> list[str]:
    own = rank(name)
    assert own is not None
    found = []
    for line, other in imported(tree, known):
        its = rank(other)
        if its is None or its >= own:
            found.append(f"askew.{name}, line {line}, imports askew.{other}")
    return found


def test_every_module_has_a_place_in_the_order() -> None:
    assert not [name for name in modules() if rank(name) is None]


@pytest.mark.parametrize("name", [name for name in modules() if name])
def test_imports_only_point_to_the_left(name: str) -> None:
    known = set(modules())
    assert not breaches(name, ast.parse(modules()[name].read_text()), known)


@pytest.mark.parametrize(
    "source",
    [
        "from askew.engine import fit",
        "import askew.cli",
        "import askew",
        "from askew import engine",
        "def f():\n    from askew.api import run",
        "if TYPE_CHECKING:\n    from askew.plan import Run",
        "from askew.nets import NetSpec",
        "from askew.no_such_module import x",
    ],
)
def test_an_import_to_the_right_would_be_found(source: str) -> None:
    assert breaches("nets", ast.parse(source), set(modules()))


@pytest.mark.parametrize(
    "source",
    ["from askew import chance", "from askew import __version__", "import torch", "from askew.data.feed import B"],
)
def test_an_import_to_the_left_is_no_breach(source: str) -> None:
    assert not breaches("nets", ast.parse(source), set(modules()))


def test_the_package_itself_imports_nothing_of_its_own_when_imported() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    outright = ast.Module([node for node in tree.body if not isinstance(node, ast.If)], [])
    assert not list(imported(outright, set(modules())))


def test_every_name_that_the_package_offers_is_there() -> None:
    assert all(getattr(askew, name) is not None for name in askew.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        askew.nonsense  # noqa: B018


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_importing_askew_does_not_import_torch() -> None:
    assert run("import sys, askew; print('torch' in sys.modules, 'numpy' in sys.modules)") == "False False\n"


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["bench", "--help"], ["tasks", "--json"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from askew.cli import main
sys.argv = ["askew", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print("torch" in sys.modules)
"""
    output = run(code)
    assert len(output.splitlines()) > 5, "it did answer"
    assert output.endswith("False\n")


@pytest.mark.parametrize("name", modules())
def test_no_file_is_longer_than_a_reader_likes(name: str) -> None:
    assert len(modules()[name].read_text().splitlines()) <= LONGEST
