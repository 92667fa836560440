"""Pictures in a stream, decoded ahead of whoever takes them: by threads, or by processes where
those feed a GPU."""

from __future__ import annotations

import ctypes
import itertools
import math
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from mmap import mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.processes import end_with_parent
from askew.data.decode import DECODERS, Room, Row, reason, use_room

_MANY = 512  # pictures from which on it pays to start processes
_TOGETHER = 16  # pictures in a task; more would save no time
_CORES = 4  # from which on threads keep each other waiting

Name = TypeVar("Name", bound=Hashable)
Get = Callable[[], Row]


def processes_for(pictures: int, device: str) -> int:
    """How many processes decode so many picture files for a network on a device; 0 where threads
    do.

    Pillow decodes and resizes outside of Python's lock, but files are opened and pixels copied
    under it, and whoever launches hundreds of kernels per batch needs it for each of them.
    """
    if (
        device == "cpu"
        or pictures < _MANY
        or sys.platform != "linux"
        or multiprocessing.current_process().daemon
    ):
        return 0  # other systems do not fork safely, and a daemon may have no children
    cores = min(DECODERS, len(os.sched_getaffinity(0)))
    return cores if cores >= _CORES else 0


def load_ahead(
    inputs: Iterable[tuple[Name, Get]], most: int, processes: int = 0, shape: tuple[int, ...] = ()
) -> Generator[tuple[Name, Row | str], None, None]:
    """Every input's name with its array, or with why it cannot be read; at most so many are decoded
    ahead.

    Threads decode; or so many processes, to which pickle takes what gets an array, uint8 of the
    shape. These use the array's memory again once `most` others have followed it.
    """
    pool = _pool(processes, most, shape)
    rest, waiting = iter(inputs), deque[tuple[list[Name], Callable[[], list[Row | str]]]]()
    try:
        while some := list(islice(rest, pool.together)):
            waiting.append(([name for name, _ in some], pool.load([get for _, get in some])))
            if len(waiting) * pool.together >= most:
                names, loaded = waiting.popleft()
                yield from zip(names, loaded(), strict=True)
        while waiting:
            names, loaded = waiting.popleft()
            yield from zip(names, loaded(), strict=True)
    except BrokenProcessPool:
        raise UserError(
            "A process that decodes pictures was killed.", "see whether memory is short."
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _load(get: Get) -> Row | str:
    """The input, or why it cannot be read."""
    try:
        return get()
    except UserError as error:
        return error.sentence
    except Exception as error:  # a broken file can fail anywhere in its decoder
        return reason(error)


class _Threads(ThreadPoolExecutor):
    together = 1

    def load(self, some: Sequence[Get]) -> Callable[[], list[Row | str]]:
        return self.submit(lambda: [_load(get) for get in some]).result


def _pool(processes: int, most: int, shape: tuple[int, ...]) -> _Threads | _Processes:
    """So many processes; threads for none, and where the system refuses them."""
    if processes:
        with suppress(
            ImportError, NotImplementedError, OSError
        ):  # no semaphores, no memory, or too many processes
            return _Processes(processes, most, shape)
    return _Threads(DECODERS, "decode")


# --- processes ---


@dataclass
class _Shared:
    """What the processes have in common."""

    rows: NDArray[np.uint8]
    """Where they put arrays: a block for each task. (blocks, together, …)"""
    room: Room
    stopped: Any
    """Whether no more arrays are needed."""


_shared: _Shared | None = None  # in a process that decodes


class _Processes(ProcessPoolExecutor):
    """Forked, since others would run a script without a main guard again. They leave the GPU alone.

    Arrays come back in memory that is shared without a file: /dev/shm is small in containers, and
    who writes more to it than it holds is killed.
    """

    def __init__(self, n: int, most: int, shape: tuple[int, ...]) -> None:
        fork = multiprocessing.get_context("fork")
        self.together = max(
            1, min(_TOGETHER, most // (2 * n))
        )  # so that each process has the next task waiting
        blocks = 2 * math.ceil(
            most / self.together
        )  # for those that are ahead, and for those that are in use
        size = (blocks, self.together, *shape)
        rows = np.frombuffer(mmap(-1, math.prod(size)), np.uint8).reshape(size)
        self.shared = _Shared(rows, Room(context=fork), fork.RawValue(ctypes.c_bool, False))
        self.blocks = itertools.cycle(range(blocks))
        super().__init__(n, fork, _begin, (self.shared,))
        others = multiprocessing.active_children()
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT}
        )  # children leave Ctrl-C to this process
        try:
            with warnings.catch_warnings():
                # Locks that threads hold at this moment stay locked in a child, which takes none of
                # them.
                warnings.filterwarnings(
                    "ignore", "This process .* is multi-threaded", DeprecationWarning
                )
                self.submit(int)  # the first task starts all processes
        except OSError:
            for child in set(multiprocessing.active_children()).difference(others):
                child.kill()
                child.join()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def load(self, some: Sequence[Get]) -> Callable[[], list[Row | str]]:
        block = next(self.blocks)
        problems = self.submit(_load_shared, block, some)
        return lambda: [
            why or x for why, x in zip(problems.result(), self.shared.rows[block], strict=False)
        ]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.shared.stopped.value = True
        super().shutdown(wait, cancel_futures=cancel_futures)


def _begin(shared: _Shared) -> None:
    """What a process does first."""
    global _shared
    _shared = shared
    use_room(shared.room)
    end_with_parent()


def _load_shared(block: int, some: Sequence[Get]) -> list[str]:
    """In a process: put arrays into a block; why those cannot be read that are missing, else
    empty."""
    assert _shared is not None
    problems = []
    for row, get in zip(_shared.rows[block], some, strict=False):
        if _shared.stopped.value:
            break
        x = _load(get)
        problems.append(x if isinstance(x, str) else "")
        if not isinstance(x, str):
            row[:] = x
    return problems
