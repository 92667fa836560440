"""Locks on files, which end with the process that holds them."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from askew.core.files import open_own

fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Windows has none
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

Release = Callable[[], None]


class NoLocksError(Exception):
    """The file system has no locks."""


def try_lock(path: Path, *, shared: bool = False) -> Release | None:
    """Lock a file, which is created if need be; None if another process has locked it.

    A shared lock only asks whether an exclusive one is held, and needs no more than the right to
    read the file.
    """
    if fcntl is None:
        return _try_portable_lock(path)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with contextlib.ExitStack() as undo:
        file = undo.enter_context(open_own(path, "r" if shared else "a"))
        for pause in (0.01, 0.02, 0.0):  # a shared lock is held for an instant
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return undo.pop_all().close
            except BlockingIOError:
                time.sleep(pause)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    raise NoLocksError from error
                raise
    return None


def _try_portable_lock(path: Path) -> Release | None:
    """The same without `fcntl`: always exclusive."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0.03, poll_interval=0.01)
    except Timeout:
        return None
    return lock.release


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock, waiting for it as long as it takes; without effect where the file system
    has no locks."""
    release: Release | None = None
    with contextlib.suppress(NoLocksError):
        while (release := try_lock(path)) is None:
            time.sleep(0.1)
    try:
        yield
    finally:
        if release is not None:
            release()
