"""Claims: one worker at a time in a run's folder, on one machine or on many that share a file
system.

A holder locks `.lock` and keeps a file `claim.N` that it writes to every few seconds. On its own
machine the lock shows who is alive: the kernel drops it with the process. Other machines may not
see the lock, and their clocks may differ, so they watch the file: content that has not changed for
a while *by the watcher's own clock* is that of a dead holder. Whoever takes over creates
`claim.N+1`, which a file system lets only one of them do.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from askew.core.locks import NoLocksError, Release, try_lock
from askew.core.processes import this_machine
from askew.data.paths import require_file

BEAT = 2.0
"""Seconds between a holder's heartbeats."""
SILENCE = 60.0
"""Seconds without a heartbeat after which a holder on another machine counts as dead."""

_SIZE = 1024  # bytes of a claim: always the same, so that a full disk cannot stop a heartbeat


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that works on a run, and how far it is, as written in its claim."""

    id: str
    machine: str
    host: str
    pid: int
    beat: int = 0
    label: str = ""
    step: int = 0
    steps: int = 0


def run_label(task: str, method: str, seed: int) -> str:
    """How a run is named to people."""
    return f"{task} {method} seed {seed}"


class Taken(Exception):
    """Another process works on the run in this folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder


class Claim:
    """A folder that this process holds, until `release`."""

    def __init__(self, path: Path, file: int, unlock: Release, holder: Holder) -> None:
        self.path, self.holder, self.lost = path, holder, False
        self._file, self._unlock = file, unlock
        self._writing, self._released = threading.Lock(), threading.Event()
        self._written = 0.0
        self._write()
        self._thread = threading.Thread(target=self._keep_beating, daemon=True)
        self._thread.start()

    def report(self, label: str, step: int, steps: int) -> None:
        """Write into the claim how far the run is."""
        self.holder = replace(self.holder, label=label[:60], step=step, steps=steps)
        if time.monotonic() - self._written >= BEAT / 4:
            self.beat()

    def beat(self) -> None:
        """Show that this process is alive; or find out that another took it for dead, and took the
        folder over."""
        try:
            self.lost = self.lost or os.fstat(self._file).st_nlink == 0
            if not self.lost:
                self._write()
        except OSError:
            self.lost = (
                True  # the file system is gone, or the file on it: others will see no heartbeat
            )

    def _write(self) -> None:
        with self._writing:
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(
                self._file,
                json.dumps(asdict(self.holder), ensure_ascii=False).encode().ljust(_SIZE),
            )
            self._written = time.monotonic()

    def _keep_beating(self) -> None:
        while not self._released.wait(BEAT):
            self.beat()

    def release(self) -> None:
        """Give the folder up."""
        self._released.set()
        self._thread.join()
        self.beat()
        os.close(self._file)  # first, since Windows removes no file that is open
        if not self.lost:  # otherwise the name may be another holder's by now
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
        self._unlock()


def claim(folder: Path, dead: Collection[str] = ()) -> Claim:
    """Hold a folder; Taken if another process does. `dead` are holders that a `Watch` found to be
    dead."""
    with contextlib.ExitStack() as undo:
        unlock: Release | None
        try:
            unlock, locks_work = try_lock(folder / ".lock"), True
        except NoLocksError:
            unlock, locks_work = _no_lock, False
        if unlock is None:
            raise Taken(folder)
        undo.callback(unlock)
        old = _claims(folder)
        for path in old:
            holder, _ = _read(path)
            if not (locks_work and _on_this_machine(holder)) and _id(path, holder) not in dead:
                raise Taken(folder)
        own = folder / f"claim.{1 + max((_number(path) for path in old), default=0)}"
        try:
            file = os.open(own, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        except FileExistsError:
            raise Taken(folder) from None
        undo.callback(own.unlink, missing_ok=True)
        undo.callback(os.close, file)
        if set(_claims(folder)) - {
            own,
            *old,
        }:  # another came in between, over a number that had become free
            raise Taken(folder)
        holder = Holder(
            id=uuid.uuid4().hex[:12],
            machine=this_machine(),
            host=socket.gethostname()[:60],
            pid=os.getpid(),
        )
        held = Claim(own, file, unlock, holder)
        for path in old:
            path.unlink(missing_ok=True)
        undo.pop_all()
        return held


def _no_lock() -> None:
    """What releases a lock that there is not."""


def last_holder(folder: Path) -> Holder | None:
    """The process that last worked on the run in a folder, alive or not."""
    return next((holder for path in reversed(_claims(folder)) if (holder := _read(path)[0])), None)


def holder_of(folder: Path) -> Holder | None:
    """The process that works on the run in a folder, as far as one look can show; None if there is
    none."""
    holder = last_holder(folder)
    return (
        None
        if holder is None or (_on_this_machine(holder) and _locked(folder) is False)
        else holder
    )


class Watch:
    """Finds dead holders by watching their claims over time, by this process's own clock."""

    def __init__(
        self, silence: float = SILENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.dead: set[str] = set()
        """Holders that were silent for too long."""
        self._silence, self._clock = silence, clock
        self._seen: dict[str, tuple[bytes, float]] = {}

    def free(self, folder: Path) -> bool:
        """Whether no process seems to work on the run in a folder any more."""
        locked = _locked(folder)
        silent = [
            self._silent(path, locked is False) for path in _claims(folder)
        ]  # all are looked at
        return not locked and all(silent)

    def _silent(self, path: Path, unlocked: bool) -> bool:
        holder, content = _read(path)
        if unlocked and _on_this_machine(holder):
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
        found = [
            path
            for path in folder.iterdir()
            if path.name.startswith("claim.") and path.name[6:].isdecimal()
        ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.name[6:])


def _read(path: Path) -> tuple[Holder | None, bytes]:
    """The holder in a claim, and the claim's bytes; None where it was left empty, or is no claim of
    ours."""
    content = b""
    try:
        require_file(path)
        content = (
            path.read_bytes()
        )  # opened anew each time: a network file system may answer `stat` from memory
        values = json.loads(content)
        holder = Holder(**{field.name: values[field.name] for field in fields(Holder)})
        return (
            holder if all(isinstance(v, str | int) for v in asdict(holder).values()) else None
        ), content
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, content


def _on_this_machine(holder: Holder | None) -> bool:
    """Whether the lock shows if the holder is alive; an empty claim was left by one killed early,
    most likely here."""
    return holder is None or holder.machine == this_machine()


def _id(path: Path, holder: Holder | None) -> str:
    return f"{path.parent.name}/{path.name}/{holder.id if holder else ''}"


def _locked(folder: Path) -> bool | None:
    """Whether a process has locked the folder; None where that cannot be seen."""
    try:
        unlock = try_lock(folder / ".lock", shared=True)
    except (OSError, NoLocksError):
        return None
    if unlock is not None:
        unlock()
    return unlock is None
