"""The example package, installed: askew finds its method and its benchmark; a broken package harms
nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

ASK = """
import contextlib, io, json, sys
import askew
from askew.cli import main
from askew.methods import method_class
from askew.runs.recipes import read_settings

cls = method_class("entmin")
askew.methods.check_method(cls())
result = askew.run("rings/plain-noisy", method="entmin", params={"weight": 0.05}, device="cpu", log=["journal"])
try:
    askew.run("rings/plain-noisy", method="lost")
except askew.UserError as error:
    lost = str(error)
try:
    askew.run("rings/plain-noisy", method="entmim")
except askew.UserError as error:
    near = error.hint
def output_of(*command):
    sys.argv = ["askew", *command]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main()
    return out.getvalue()
print(json.dumps({
    "tasks": json.loads(output_of("tasks", "--json")), "methods": output_of("methods"),
    "score": result.scores["whole"]["per_class_mean"], "lost": lost, "near": near, "revision": cls.revision,
    "settings": read_settings("rings")["train"]["rounds"],
    "journal": (result.folder.parent / "logs" / f"{result.key}.txt").read_text(),
}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package in it, and one whose module is missing."""
    build = pytest.importorskip("hatchling.build", reason="a development tool")
    folder, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    with contextlib.chdir(ROOT / "examples" / "plugin"):
        wheel = build.build_wheel(str(wheels))
    with zipfile.ZipFile(wheels / wheel) as file:  # which is all that an installer does with it
        file.extractall(folder)
    broken = folder / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    lost = (
        "[askew.methods]\nlost = no_such_module:Lost\n[askew.benchmarks]\nlost = no_such_module\n"
    )
    (broken / "entry_points.txt").write_text(lost)
    return folder


@pytest.fixture(scope="module")
def answer(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process sees in which the package is installed."""
    paths = os.pathsep.join([str(site), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        cwd=tmp_path_factory.mktemp("user"),
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_an_installed_package_adds_a_method_a_benchmark_and_a_tracker(
    answer: dict[str, Any],
) -> None:
    assert answer["score"] > 50
    assert answer["settings"] == 4
    assert len(answer["revision"]) == 12, "a change of its code is another run"
    lines = answer["journal"].splitlines()
    assert lines[0] == "started rings/plain-noisy entmin seed 0"
    assert lines[1].startswith("step 25 ")
    assert lines[-1] == "finished"
    assert "The plug-in lost of the package broken cannot be loaded" in answer["lost"]
    assert "did you mean 'entmin'" in answer["near"]


def test_the_command_line_lists_what_packages_add(answer: dict[str, Any]) -> None:
    assert "rings/plain-noisy" in [task["task"] for task in answer["tasks"]]
    assert "Makes predictions on the target confident." in answer["methods"]
    assert "FROM OTHER PACKAGES" in answer["methods"]
