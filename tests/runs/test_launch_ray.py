"""The Ray cluster that is started on this machine: reachable from it alone, and by its own
token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import TINY
from grids import finished, kill, until
from sockets import is_loopback, listening

from askew.core.errors import UserError
from askew.runs.launch.ray import Ray

VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")


class FakeRay:
    """What `Ray.connect` uses of the library."""

    __version__ = "2.60.0"

    def __init__(self, node: str) -> None:
        self.util = SimpleNamespace(get_node_ip_address=lambda: node)
        self.environment: dict[str, str | None] = {}
        self.ended = False

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **options: Any) -> None:
        self.environment = {name: os.environ.get(name) for name in VARIABLES}

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_variables")
def test_a_cluster_of_this_machine_is_kept_on_loopback_with_a_token_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRay("127.0.0.1")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "known")
    Ray().connect()
    assert fake.environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert fake.environment["RAY_AUTH_MODE"] == "token"
    assert re.fullmatch("[0-9a-f]{64}", fake.environment["RAY_AUTH_TOKEN"] or "")
    assert not fake.ended


@pytest.mark.usefixtures("no_variables")
def test_a_cluster_that_others_could_reach_is_ended_and_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeRay("192.0.2.7")
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(
        UserError, match=r"^Ray listens on 192\.0\.2\.7, where other machines can reach it\."
    ) as caught:
        Ray().connect()
    assert "import ray after" in caught.value.hint
    assert fake.ended


@pytest.mark.usefixtures("no_variables")
def test_a_cluster_that_is_there_keeps_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay("192.0.2.7")
    monkeypatch.setitem(sys.modules, "ray", fake)
    Ray("192.0.2.7:6379").connect()
    assert set(fake.environment.values()) == {None}


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads open sockets from /proc")
def test_while_a_grid_runs_on_local_ray_every_open_socket_is_on_loopback(
    command: str, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    root = tmp_path / "runs"
    grid = (
        "bench",
        "mini",
        "--tasks",
        "syn-uci",
        "--methods",
        "source",
        "--seeds",
        "1",
        *TINY,
        "-t",
        "rounds=40",
    )
    process = subprocess.Popen(
        [command, *grid, "--on", "ray", "--jobs", "1", "--out", root],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: list(root.glob("*/trace.jsonl")) or process.poll() is not None)
        found = listening(process.pid)
        _, err = process.communicate(timeout=300)
    finally:
        kill([process.pid])
    assert process.returncode == 0, err
    assert finished(root) == 2
    assert any("gcs" in name for name in found.values()), found
    assert [listener for listener in found if not is_loopback(listener)] == []


ENTER = """
import ray, sys
try:
    ray.init(sys.argv[1], log_to_driver=False)
    print("entered")
except Exception as error:
    print(type(error).__name__)
"""
HOST = """
import os, subprocess, sys
from askew.runs.launch.ray import Ray
host = Ray(workers=1)
host.connect()
import ray
enter = [sys.executable, "-c", sys.argv[1], ray.get_runtime_context().gcs_address]
print("printed from here:")
for hidden in (["RAY_AUTH_TOKEN"], []):
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | {"HOME": sys.argv[2]}
    print(subprocess.run(enter, env=environment, capture_output=True, text=True).stdout)
host.close()
"""


@pytest.mark.soak
def test_nobody_enters_a_local_cluster_without_its_token(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    host = [sys.executable, "-c", HOST, ENTER, str(tmp_path)]
    done = subprocess.run(host, capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout.partition("here:")[2].split() == ["AuthenticationError", "entered"], done
