"""What askew is built from: every version has hashes, nothing is missing, and an audit says so if
it was none."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
AUDIT = ROOT / ".ci" / "audit.py"
LOCK = runpy.run_path(str(ROOT / ".ci" / "lock.py"))
EXTRAS = re.search(r"-e '\.\[(.+)\]'", (ROOT / "Makefile").read_text())


# --- hashes ---


def locked() -> dict[str, tuple[str, list[str]]]:
    """Version and hashes by name."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = {}
    for line in (line for line in text.splitlines() if not line.startswith("#")):
        pin, *digests = line.split()
        name, _, version = pin.partition("==")
        found[name] = (version, digests)
    return found


def test_every_pinned_version_has_hashes() -> None:
    """If this fails after a change of constraints.txt: python .ci/lock.py"""
    assert {name: version for name, (version, _) in locked().items()} == LOCK["pins"]()
    for name, (_, digests) in locked().items():
        assert digests, name
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in digests), name


def test_the_file_of_hashes_names_no_host() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_whatever_the_extras_install_is_pinned() -> None:
    from packaging.requirements import Requirement

    assert EXTRAS is not None
    todo, seen = [("askew", tuple(EXTRAS[1].split(",")))], set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue  # of another system
        for one in map(Requirement, lines):
            if one.marker is None or any(
                one.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                todo.append((LOCK["canonical"](one.name), tuple(sorted(one.extras))))
    assert {name for name, _ in seen} - {"askew"} - set(locked()) == set()


def test_the_checkout_is_installed_with_nothing_but_what_has_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make LOCKED=1` builds without isolation, where hatchling's usual way would miss the package
    editables."""
    hatchling = pytest.importorskip("hatchling.build", reason="a development tool")
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "editables", None)
    with zipfile.ZipFile(tmp_path / hatchling.build_editable(str(tmp_path))) as wheel:
        (path,) = (
            wheel.read(name).decode().strip() for name in wheel.namelist() if name.endswith(".pth")
        )
    assert Path(path) == ROOT / "src"


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl", True),
        ("numpy-2.4.6-cp311-cp311-macosx_14_0_arm64.whl", False),
        ("numpy-2.4.6-cp310-cp310-manylinux_2_27_x86_64.whl", False),
        ("numpy-2.4.60-cp311-cp311-manylinux_2_27_x86_64.whl", False),
        ("numpy-2.4.6.tar.gz", False),
        ("numpy-2.4.6-py3-none-any.whl", True),
    ],
)
def test_hashes_are_those_of_wheels_for_ci_s_system(file: str, kept: bool) -> None:
    assert LOCK["fits"](file, "numpy", "2.4.6") is kept


# --- audit ---


class Handler(BaseHTTPRequestHandler):
    answer: bytes = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def database() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def audited(database: str, tmp_path: Path) -> tuple[int, str, str]:
    (tmp_path / "pins.txt").write_text("# two\nsafe==1.0\nweak==0.9\n")
    ask = [sys.executable, AUDIT, "--database", database, "--constraints", tmp_path / "pins.txt"]
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("results", "code", "last"),
    [
        ([{}, {}], 0, "2 versions were audited, 0 of them have advisories."),
        (
            [{}, {"vulns": [{"id": "PYSEC-1"}]}],
            1,
            "2 versions were audited, 1 of them have advisories.",
        ),
    ],
)
def test_an_audit_names_versions_with_advisories(
    database: str, tmp_path: Path, results: list[Any], code: int, last: str
) -> None:
    Handler.answer = json.dumps({"results": results}).encode()
    found, out, _ = audited(database, tmp_path)
    assert (found, out.splitlines()[-1]) == (code, last)
    assert ("weak 0.9: PYSEC-1" in out) == (code == 1)


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"results": [{}]}', b'{"results": [{"vulns": [1]}, {}]}']
)
def test_an_audit_without_a_sensible_answer_says_that_nothing_was_audited(
    database: str, tmp_path: Path, answer: bytes
) -> None:
    Handler.answer = answer
    code, out, err = audited(database, tmp_path)
    assert (code, out) == (3, "")
    assert err.endswith("NOTHING WAS AUDITED.\n")


def test_an_audit_without_its_database_says_that_nothing_was_audited(tmp_path: Path) -> None:
    code, out, err = audited("http://127.0.0.1:9/", tmp_path)
    assert (code, out) == (3, "")
    assert re.fullmatch(
        r"The database http://127\.0\.0\.1:9/ cannot be asked: .+\. NOTHING WAS AUDITED\.\n", err
    )


# --- the threat model ---


def test_every_promise_names_a_test_that_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    promises = re.findall(
        r"^\| .+ \| (`.+`.*) \|$", text.partition("## What we do not promise")[0], flags=re.M
    )
    code = "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    assert len(promises) > 10
    for named in (name for promise in promises for name in re.findall(r"`([^`]+)`", promise)):
        if named.endswith(".py"):
            assert (ROOT / named).exists(), named
        elif named.startswith("test_"):
            assert f"def {named}(" in code, named
