"""Which machine and process this is, whether another process of it is still alive, and children
that end with it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import multiprocessing
import os
import socket
import threading
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path


@functools.cache
def this_machine() -> str:
    """The machine since it was started; containers on it are the same machine, and share its file
    locks."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


@functools.cache
def process_space() -> str:
    """Eight hex digits for everything that shares this process's numbering of processes: a machine
    or a container."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return hashlib.blake2b(f"{this_machine()} {namespace}".encode(), digest_size=4).hexdigest()


def is_alive(space: str, pid: int) -> bool | None:
    """Whether a process is alive; None if that cannot be seen from here."""
    if space != process_space() or os.name == "nt":  # on Windows, os.kill ends the process
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def end_with_parent() -> None:
    """From now on, this process of multiprocessing's ends when its parent is killed."""
    threading.Thread(
        target=_end_after, args=(multiprocessing.parent_process(),), daemon=True
    ).start()


def _end_after(parent: BaseProcess | None) -> None:
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
