"""The folders of data and caches, and folder names however people spell them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from askew.core.errors import UserError

_HOW = "use --data DIR or set ASKEW_DATA."


def data_folder(given: Path | None) -> Path:
    """The folder of real data: as given, or ASKEW_DATA."""
    folder = named_data_folder(given)
    if folder is None:
        raise UserError("This task needs real images, and no data folder was given.", _HOW)
    if not folder.is_dir():
        raise UserError(f"The data folder {folder} does not exist.", _HOW)
    return folder


def named_data_folder(given: Path | None) -> Path | None:
    """The same, whether it exists or not; None if neither is set."""
    text = str(given) if given else os.environ.get("ASKEW_DATA", "")
    return expanded(text, "data folder") if text else None


def expanded(text: str, what: str) -> Path:
    """A path in which ~ stands for a home folder; UserError if there is no such user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # ~nobody
        raise UserError(
            f"The {what} {text} is that of a user who does not exist.", "write the whole path."
        ) from None


def require_file(path: Path) -> None:
    """OSError if a path is no regular file: a pipe would be waited for, and a device has no end."""
    if not path.is_file():
        path.stat()  # which says so if it is not there
        raise OSError("it is not a regular file")


def readable(path: Path | str) -> str:
    """A path as text that can be written anywhere, and is the same in every locale; odd bytes are
    written as \\xff."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def cache_folder() -> Path:
    """Where rendered digits and decoded pictures are kept: ASKEW_CACHE, or where the system keeps a
    user's caches.

    The same places as platformdirs', which would be one more thing to install.
    """
    if given := os.environ.get("ASKEW_CACHE"):
        return Path(given)
    system: str = sys.platform
    if system == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home() / "AppData" / "Local") / "askew" / "Cache"
    if usual := os.environ.get("XDG_CACHE_HOME"):
        return Path(usual) / "askew"
    return _home() / ("Library/Caches" if system == "darwin" else ".cache") / "askew"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # containers run as users without an entry in the system's list
        raise UserError(
            "The user has no home folder, so there is no place for the cache.",
            "set ASKEW_CACHE to a folder that is yours and has room.",
        ) from None


def plain(name: str) -> str:
    """A name reduced to its letters and digits: "Real World", "Real_World" and "RealWorld" are
    one."""
    return "".join(c for c in name.casefold() if c.isalnum())


def find_folder(parent: Path, names: Iterable[str]) -> Path | None:
    """The sub-folder that has one of the names, however it is spelled; earlier names go first."""
    if not parent.is_dir():
        return None
    folders = {plain(p.name): p for p in sorted(parent.iterdir(), reverse=True) if p.is_dir()}
    return next((folders[plain(name)] for name in names if plain(name) in folders), None)
