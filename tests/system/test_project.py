"""What lets others take the project over: workflow, hooks, images, citation, addresses to fill
in."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import askew

yaml: Any = pytest.importorskip("yaml", reason="several development tools bring it")

ROOT = Path(__file__).parents[2]
TARGETS = set(
    re.findall(r"^([a-z]+)(?: [a-z ]+)?:", (ROOT / "Makefile").read_text(), flags=re.M)
) | {"soak"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    return found


def steps() -> list[str]:
    return [
        step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step
    ]


def test_the_workflow_tests_on_three_systems_and_builds_wheel_and_docs() -> None:
    jobs = workflow()["jobs"]
    assert {"lint", "test", "wheel", "docs"} <= jobs.keys()
    systems = jobs["test"]["strategy"]["matrix"]["os"]
    assert {name.partition("-")[0] for name in systems} == {"ubuntu", "macos", "windows"}
    assert set(jobs["release"]["needs"]) == {"lint", "test", "wheel", "docs"}


def test_the_workflow_names_targets_and_extras_that_there_are() -> None:
    asked = [step.split()[1] for step in steps() if step.startswith("make ")]
    assert asked == ["lint", "docs"]
    assert set(asked) <= TARGETS
    (extras,) = re.findall(r"\.\[([\w,]+)\]", " ".join(steps()))
    assert set(extras.split(",")) <= EXTRAS.keys()


def test_every_yaml_file_of_the_project_can_be_read() -> None:
    files = [
        *ROOT.glob(".github/**/*.yml"),
        ROOT / ".pre-commit-config.yaml",
        ROOT / "CITATION.cff",
    ]
    assert len(files) >= 6
    assert all(isinstance(yaml.safe_load(path.read_text()), dict) for path in files)


def test_a_commit_is_checked_by_tools_that_the_environment_has() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    tools = {hook["entry"].split()[0] for hook in hooks}
    assert tools == {".venv/bin/ruff", ".venv/bin/mypy", ".venv/bin/pytest"}
    tests = [word for hook in hooks for word in hook["entry"].split() if word.startswith("tests/")]
    assert tests
    assert all((ROOT / name).is_file() for name in tests)


def test_the_citation_names_the_paper_and_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == askew.__version__
    (paper,) = citation["references"]
    assert paper["title"] == "Class-imbalanced Domain Adaptation: An Empirical Odyssey"
    assert [author["family-names"] for author in paper["authors"]] == ["Tan", "Peng", "Saenko"]


def test_addresses_of_the_project_are_placeholders_that_one_search_finds() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert {"Homepage", "Source", "Issues", "Changelog"} <= urls.keys()
    assert all("OWNER" in url for url in urls.values())
    assert "git grep OWNER" in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_an_image_is_made_from_the_wheel_alone_and_by_a_user_without_rights(name: str) -> None:
    """No builder is at hand where the tests run, so this reads the file."""
    text = (ROOT / "docker" / f"{name}.Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    (copied,) = (line.split()[1:-1] for line in lines if line.startswith("COPY "))
    kept = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert copied == ["constraints.txt", "dist/askew-*.whl"]
    assert kept == ["constraints.txt", "dist/*.whl"]
    assert set(re.findall(r"\[([\w,]+)\]", text)[0].split(",")) <= EXTRAS.keys()
    assert "USER askew" in lines
    assert 'ENTRYPOINT ["askew"]' in lines


@pytest.mark.soak
def test_what_is_built_for_a_release_passes_the_check_of_its_index(tmp_path: Path) -> None:
    pytest.importorskip("twine", reason="a development tool")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    built = sorted(tmp_path.iterdir())
    assert [path.name for path in built] == [
        f"askew-{askew.__version__}-py3-none-any.whl",
        f"askew-{askew.__version__}.tar.gz",
    ]
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
