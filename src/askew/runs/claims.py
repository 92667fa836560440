"""Claims: one worker at a time in a run's folder, on one machine or on many that share a file system.

A holder locks `.lock` and keeps a file `claim.N` that it writes to every few seconds. On its own machine the lock tells
who is alive: the kernel drops it with the process. Other machines may not see the lock, and their clocks may differ, so
they watch the file: content that has not changed for a while *by the watcher's own clock* is that of a dead holder.
Whoever takes over creates `claim.N+1`, which a file system lets only one of them do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO

BEAT = 2.0
"""Seconds between a holder's signs of life."""
SILENCE = 60.0
"""Seconds without one after which a holder on another machine is taken for dead."""

_SIZE = 1024  # bytes of a claim: always the same, so that a full disk cannot stop a sign of life
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


@functools.cache
def this_machine() -> str:
    """The machine since it was started; containers on it are the same machine, and share its locks."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


@dataclass(frozen=True)
class Holder:
    """Who is at a run, and how far, as its claim tells."""

    id: str
    machine: str
    host: str
    pid: int
    beat: int = 0
    label: str = ""
    step: int = 0
    steps: int = 0


class Taken(Exception):
    """Somebody else is at the run in this folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder


class Claim:
    """A folder that this process holds, until `release`."""

    def __init__(self, path: Path, file: int, lock: IO[str], holder: Holder) -> None:
        self.path, self.holder, self.lost = path, holder, False
        self._file, self._lock = file, lock
        self._writing, self._released = threading.Lock(), threading.Event()
        self._written = 0.0
        self._write()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def tell(self, label: str, step: int, steps: int) -> None:
        """Say how far the run is, to whoever reads the claim."""
        self.holder = replace(self.holder, label=label[:60], step=step, steps=steps)
        if time.monotonic() - self._written >= BEAT / 4:
            self.beat()

    def beat(self) -> None:
        """A sign of life; or the insight that others took this holder for dead, and the folder over."""
        try:
            self.lost = self.lost or os.fstat(self._file).st_nlink == 0
            if not self.lost:
                self._write()
        except OSError:
            self.lost = True  # the file system is gone, or the file on it: others will see no sign of life

    def _write(self) -> None:
        with self._writing:
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            os.pwrite(self._file, json.dumps(asdict(self.holder), ensure_ascii=False).encode().ljust(_SIZE), 0)
            self._written = time.monotonic()

    def _live(self) -> None:
        while not self._released.wait(BEAT):
            self.beat()

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if os.fstat(self._file).st_nlink:  # otherwise the name may be another holder's by now
                self.path.unlink(missing_ok=True)
        os.close(self._file)
        self._lock.close()


def claim(folder: Path, dead: Collection[str] = ()) -> Claim:
    """Hold a folder; Taken if somebody else does. `dead` are holders that a `Watch` took for dead."""
    with contextlib.ExitStack() as undo:
        lock = undo.enter_context((folder / ".lock").open("a"))
        if (locked := _lock(lock, fcntl.LOCK_EX)) is False:
            raise Taken(folder)
        old = _claims(folder)
        for path in old:
            holder, _ = _read(path)
            if not (locked and _ours(holder)) and _id(path, holder) not in dead:
                raise Taken(folder)
        own = folder / f"claim.{1 + max((_number(path) for path in old), default=0)}"
        try:
            file = os.open(own, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            raise Taken(folder) from None
        undo.callback(own.unlink, missing_ok=True)
        undo.callback(os.close, file)
        if set(_claims(folder)) - {own, *old}:  # somebody came in between, over a number that had become free
            raise Taken(folder)
        holder = Holder(uuid.uuid4().hex[:12], this_machine(), socket.gethostname()[:60], os.getpid())
        held = Claim(own, file, lock, holder)
        for path in old:
            path.unlink(missing_ok=True)
        undo.pop_all()
        return held


def last_holder(folder: Path) -> Holder | None:
    """Who was last at the run in a folder, alive or not."""
    return next((holder for path in reversed(_claims(folder)) if (holder := _read(path)[0])), None)


def holder_of(folder: Path) -> Holder | None:
    """Who is at the run in a folder, as far as one look can tell; None if nobody is."""
    holder = last_holder(folder)
    return None if holder is None or (_ours(holder) and _locked(folder) is False) else holder


class Watch:
    """Watches claims over time, by this process's own clock."""

    def __init__(self, silence: float = SILENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self.dead: set[str] = set()
        """Holders that were silent for too long."""
        self._silence, self._clock = silence, clock
        self._seen: dict[str, tuple[bytes, float]] = {}

    def free(self, folder: Path) -> bool:
        """Whether nobody seems to be at the run in a folder any more."""
        locked = _locked(folder)
        silent = [self._silent(path, locked is False) for path in _claims(folder)]  # all are looked at
        return not locked and all(silent)

    def _silent(self, path: Path, unlocked: bool) -> bool:
        holder, content = _read(path)
        if unlocked and _ours(holder):
            return True
        id, now = _id(path, holder), self._clock()
        before, since = self._seen.setdefault(id, (content, now))
        if content != before:
            self._seen[id] = (content, now)
        elif now - since >= self._silence:
            self.dead.add(id)
        return id in self.dead


def _claims(folder: Path) -> list[Path]:
    """The claims in a folder, the latest last; normally one or none."""
    try:
        found = [path for path in folder.iterdir() if path.name.startswith("claim.") and path.name[6:].isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.name[6:])


def _read(path: Path) -> tuple[Holder | None, bytes]:
    """What a claim says, and its bytes; None where it was left before its first word, or is no claim of ours."""
    content = b""
    try:
        content = path.read_bytes()  # opened anew each time: a network file system may answer `stat` from memory
        values = json.loads(content)
        holder = Holder(**{field.name: values[field.name] for field in fields(Holder)})
        return (holder if all(isinstance(v, str | int) for v in asdict(holder).values()) else None), content
    except (OSError, ValueError, KeyError, TypeError):
        return None, content


def _ours(holder: Holder | None) -> bool:
    """Whether the lock tells if it lives; one without a word was killed as it began, most likely here."""
    return holder is None or holder.machine == this_machine()


def _id(path: Path, holder: Holder | None) -> str:
    return f"{path.parent.name}/{path.name}/{holder.id if holder else ''}"


def _lock(file: IO[str], kind: int) -> bool | None:
    """True: the lock is ours; False: it is somebody else's; None: there are no locks on this file system."""
    for pause in (0.01, 0.02, 0.0):  # whoever only looks has it for an instant
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return None
            raise
    return False


def _locked(folder: Path) -> bool | None:
    """Whether somebody has the lock; None where that cannot be seen."""
    try:
        with (folder / ".lock").open() as file:
            free = _lock(file, fcntl.LOCK_SH)
    except OSError:
        return None
    return None if free is None else not free
