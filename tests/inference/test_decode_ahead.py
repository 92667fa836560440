"""Pictures in a stream: the same by threads and by processes, which end when nobody needs them any
more."""

from __future__ import annotations

import errno
import functools
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from askew.core.errors import UserError
from askew.data.decode import Room, decode, decoding
from askew.inference import decode_ahead
from askew.inference.decode_ahead import load_ahead, processes_for

SHAPE = (3, 24, 32)
forks = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with decoding():
        yield


@pytest.fixture
def album(tmp_path: Path) -> list[Path]:
    """Pictures of which some are broken, and one is not there."""
    rng = np.random.default_rng(0)
    paths = [tmp_path / f"{i:02}.jpg" for i in range(41)]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (*rng.integers(20, 90, 2), 3), dtype=np.uint8)).save(
            path
        )
    paths[3].write_bytes(paths[3].read_bytes()[:200])
    paths[17].write_text("no picture")
    paths[40].unlink()
    return paths


def refuse() -> Any:
    raise UserError("It is refused.", "take another.")


def loaded(paths: list[Path], processes: int, most: int = 12) -> list[tuple[object, Any]]:
    inputs = ((str(path), functools.partial(decode, path, SHAPE)) for path in paths)
    found = load_ahead(inputs, most, processes, SHAPE)
    return [(name, x if isinstance(x, str) else x.copy()) for name, x in found]


def gone(pids: list[int]) -> bool:
    """Whether processes end within some seconds."""
    for _ in range(500):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


@forks
@pytest.mark.parametrize(("processes", "most"), [(1, 1), (2, 12), (3, 200)])
def test_processes_give_the_same_pixels_and_reasons_in_the_same_order(
    album: list[Path], processes: int, most: int
) -> None:
    by_threads, by_processes = loaded(album, 0, most), loaded(album, processes, most)
    assert (
        [name for name, _ in by_processes]
        == [name for name, _ in by_threads]
        == list(map(str, album))
    )
    for (_, x), (_, y) in zip(by_threads, by_processes, strict=True):
        assert np.array_equal(x, y)
    assert [i for i, (_, x) in enumerate(by_processes) if isinstance(x, str)] == [3, 17, 40]
    assert multiprocessing.active_children() == []


@forks
def test_a_refusal_is_a_reason_in_a_process_too() -> None:
    for processes in (0, 2):
        assert list(load_ahead([("a", refuse)], 8, processes, SHAPE)) == [("a", "It is refused.")]


@forks
def test_an_array_is_kept_until_the_next_ones_are_decoded(album: list[Path]) -> None:
    inputs = ((i, functools.partial(decode, album[i % 3], SHAPE)) for i in range(90))
    kept: list[Any] = []
    for i, x in load_ahead(inputs, 10, 2, SHAPE):
        kept = [*kept, (i, x)][-10:]
        assert all(np.array_equal(y, decode(album[j % 3], SHAPE)) for j, y in kept)


@forks
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_processes_wait_for_each_other_until_there_is_room_for_their_pixels() -> None:
    fork = multiprocessing.get_context("fork")
    room, inside, most = Room(100, fork), fork.Value("q", 0), fork.RawValue("q", 0)

    def enter(n: int) -> None:
        for _ in range(4):
            with room.for_pixels(n):
                with inside:
                    inside.value += n
                    most.value = max(most.value, inside.value)
                time.sleep(0.002)
                with inside:
                    inside.value -= n

    children = [fork.Process(target=enter, args=(n,)) for n in (40, 40, 40, 250)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert most.value == 250, "the largest went alone, and no others were more than 100 together"
    assert room.taken.value == 0


@forks
def test_stopping_early_leaves_no_process_behind(album: list[Path]) -> None:
    stream = load_ahead(
        ((path, functools.partial(decode, path, SHAPE)) for path in album), 8, 2, SHAPE
    )
    next(stream)
    assert len(multiprocessing.active_children()) == 2
    stream.close()
    assert multiprocessing.active_children() == []


SCRIPT = """
import functools, multiprocessing, signal, sys
from pathlib import Path
from askew.data.decode import decode, decoding
from askew.inference.decode_ahead import load_ahead

# ignored in what a shell starts in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
with decoding():
    get = functools.partial(decode, Path(sys.argv[1]), (3, 256, 256))
    stream = load_ahead(((i, get) for i in range(10**9)), 20, 3, (3, 256, 256))
    next(stream)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    for _ in stream:
        pass
"""


@forks
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_quietly_with_the_one_that_started_them(
    album: list[Path], how: signal.Signals
) -> None:
    command = [sys.executable, "-c", SCRIPT, str(album[0])]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 3
        try:
            if how == signal.SIGINT:
                os.killpg(parent.pid, how)  # as a terminal sends Ctrl-C to all
            else:
                parent.kill()
            assert gone(pids)
            errors = parent.communicate(timeout=20)[1]
        finally:
            parent.kill()  # or a failure would wait for it forever
    assert errors.count("Traceback") == (how == signal.SIGINT), errors


@forks
def test_a_process_that_is_killed_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(UserError, match="was killed"):
        list(load_ahead([(i, functools.partial(os._exit, 1)) for i in range(8)], 4, 2, SHAPE))
    assert multiprocessing.active_children() == []


@forks
@pytest.mark.parametrize("lacking", ["memory", "semaphores", "processes"])
def test_threads_decode_where_the_system_refuses_processes(
    lacking: str, album: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, fork = itertools.count(), os.fork

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    expected = loaded(album, 0)
    if lacking == "processes":
        monkeypatch.setattr("os.fork", lambda: refused() if next(tries) else fork())  # the second
    else:
        monkeypatch.setattr(
            decode_ahead, {"memory": "mmap", "semaphores": "Room"}[lacking], refused
        )
    found = loaded(album, 3)
    assert all(
        a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(found, expected, strict=True)
    )
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("pictures", "device", "cores", "processes"),
    [
        (10**6, "cuda", 16, 16),
        (512, "cuda", 16, 16),
        (511, "cuda", 16, 0),
        (10**6, "cpu", 16, 0),
        (10**6, "cuda", 2, 0),
    ],
)
@forks
def test_processes_decode_many_pictures_for_a_gpu_beside_several_cores(
    pictures: int, device: str, cores: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_ahead, "DECODERS", 32)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    assert processes_for(pictures, device) == processes
