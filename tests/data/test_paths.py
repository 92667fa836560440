from __future__ import annotations

import sys
from pathlib import Path

import pytest

from askew.data.paths import cache_folder


@pytest.mark.parametrize(
    ("system", "module", "name"),
    [("linux", "unix", "Unix"), ("darwin", "macos", "MacOS"), ("win32", "windows", "Windows")],
)
@pytest.mark.parametrize(
    "environment", [{}, {"XDG_CACHE_HOME": "/x/cache", "LOCALAPPDATA": "/x/local"}]
)
def test_caches_are_where_platformdirs_puts_them(
    system: str,
    module: str,
    name: str,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dirs = pytest.importorskip(f"platformdirs.{module}", reason="compared with platformdirs")
    for variable in ("ASKEW_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(variable, raising=False)
    if system == "win32":  # platformdirs asks the registry or this
        environment = environment or {"LOCALAPPDATA": str(Path.home() / "AppData" / "Local")}
        local = environment["LOCALAPPDATA"]
        monkeypatch.setattr(dirs, "get_win_folder", lambda _: local)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "platform", system)
    assert cache_folder() == Path(getattr(dirs, name)("askew", appauthor=False).user_cache_dir)


def test_a_folder_of_one_s_own_overrides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASKEW_CACHE", "/elsewhere")
    assert cache_folder() == Path("/elsewhere")
