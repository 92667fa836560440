from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from conftest import TINY

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `python -m build` asks for it, which a test of `make soak` does."""
    build = pytest.importorskip("hatchling.build", reason="a development tool")
    folder = tmp_path_factory.mktemp("dist")
    with contextlib.chdir(ROOT):
        return folder / str(build.build_wheel(str(folder)))


def test_the_wheel_holds_settings_numbers_licence_and_type_marker_but_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    wanted = {
        "runs/settings/mini.toml",
        "runs/settings/digits.toml",
        "reports/paper.json",
        "py.typed",
    }
    wanted |= {f"data/benchmarks/digit_glyphs.{kind}" for kind in ("png", "json")}
    wanted |= {
        f"reports/templates/{name}"
        for name in ("page.html.j2", "page.css", "page.js", "macros.html.j2")
    }
    assert {f"askew/{name}" for name in wanted} <= names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"askew"}
    assert not any(
        "test_" in name or name.endswith((".npz", ".safetensors", ".pyc")) for name in names
    )


def test_the_wheel_is_small_and_asks_for_no_font(wheel: Path) -> None:
    assert wheel.stat().st_size < 2_000_000
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("METADATA"))
        required = [
            line
            for line in file.read(name).decode().splitlines()
            if line.startswith("Requires-Dist")
        ]
    assert any("torch" in line for line in required)
    assert not any("font" in line for line in required)


def test_the_wheel_works_where_the_source_tree_is_not_and_its_command_prints_json_alone_in_a_pipe(
    wheel: Path, tmp_path: Path
) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
    ]
    subprocess.run([*pip, str(wheel)], check=True)
    # Everything else comes from here. A path in a .pth brings the packages, but not our editable
    # install's own .pth.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "rest.pth").write_text(
        f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def ask(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=clean, check=True, capture_output=True, text=True
        )
        assert done.stderr == ""
        return done.stdout

    assert Path(
        ask(str(python), "-c", "import askew; print(askew.__file__)").strip()
    ).is_relative_to(site)
    askew = str(home / "bin" / "askew")
    assert "mini/syn-uci" in [task["task"] for task in json.loads(ask(askew, "tasks", "--json"))]
    found = json.loads(ask(askew, "run", "mini/syn-uci", *TINY, "--json"))
    assert set(found) == {"key", "folder", "scores"}
    assert json.loads((tmp_path / found["folder"] / "scores.json").read_text()) == found["scores"]
    assert 0 <= found["scores"]["whole"]["per_class_mean"] <= 100
