from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from askew.runs import claims
from askew.runs.claims import SILENCE, Claim, Taken, Watch, claim, holder_of, last_holder


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def elsewhere(folder: Path, number: int = 1, **values: Any) -> Path:
    """A claim as a worker on another machine has it; its lock is not seen from here."""
    claim = {
        "id": "abc",
        "machine": "other",
        "host": "far",
        "pid": 7,
        "beat": 1,
        "label": "",
        "step": 0,
        "steps": 0,
    }
    file = folder / f"claim.{number}"
    file.write_text(json.dumps(claim | values))
    (folder / ".lock").touch()
    return file


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows no locks."""

    def flock(file: Any, kind: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("fcntl.flock", flock)


@pytest.fixture(params=["fcntl", "portable"])
def any_lock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of this system, then those of one without fcntl."""
    if request.param == "portable":
        monkeypatch.setattr("askew.core.locks.fcntl", None)


# --- on one machine ---


def test_one_holds_and_others_learn_who(tmp_path: Path, any_lock: None) -> None:
    held = claim(tmp_path)
    held.report("mini/syn-uci coal seed 0", 3, 10)
    held.beat()
    with pytest.raises(Taken):
        claim(tmp_path)
    holder = holder_of(tmp_path)
    assert holder is not None
    assert (holder.pid, holder.label, holder.step, holder.steps) == (
        os.getpid(),
        "mini/syn-uci coal seed 0",
        3,
        10,
    )
    held.release()
    assert holder_of(tmp_path) is None
    assert names(tmp_path) == [".lock"]
    claim(tmp_path).release()


def test_a_holder_that_is_killed_releases_its_claim_at_once(tmp_path: Path, any_lock: None) -> None:
    code = f"""
import sys, time
from pathlib import Path
from askew.runs.claims import claim
claim(Path({str(tmp_path)!r}))
print("held", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == "held\n"
        with pytest.raises(Taken):
            claim(tmp_path)
        assert not Watch().free(tmp_path)
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert holder_of(tmp_path) is None
    assert Watch().free(tmp_path)
    held = claim(tmp_path)
    assert names(tmp_path) == [".lock", "claim.2"]
    held.release()


def test_an_empty_claim_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "claim.4").touch()
    claim(tmp_path).release()
    assert names(tmp_path) == [".lock"]


# --- on several ---


def test_a_claim_from_another_machine_holds_though_its_lock_is_not_seen(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    with pytest.raises(Taken):
        claim(tmp_path)
    assert names(tmp_path) == [".lock", "claim.1"]
    holder = holder_of(tmp_path)
    assert holder is not None
    assert holder.host == "far"


def test_a_holder_is_taken_for_dead_after_silence_by_the_watcher_s_own_clock(
    tmp_path: Path,
) -> None:
    clock, file = Clock(), elsewhere(tmp_path)
    watch = Watch(clock=clock)
    for beat in (2, 3, 4):  # whatever the file's own times say: there, it may be next year or last
        os.utime(file, (beat * 1e9, beat * 1e9))
        assert not watch.free(tmp_path)
        clock.now += SILENCE - 1
        assert not watch.free(tmp_path)
        elsewhere(tmp_path, beat=beat)
    assert not watch.free(tmp_path)
    clock.now += SILENCE
    assert watch.free(tmp_path)
    claim(tmp_path, watch.dead).release()
    assert names(tmp_path) == [".lock"]


def test_only_the_holder_that_was_silent_is_taken_for_dead(tmp_path: Path) -> None:
    clock = Clock()
    elsewhere(tmp_path)
    watch = Watch(clock=clock)
    watch.free(tmp_path)
    clock.now = SILENCE
    assert watch.free(tmp_path)
    elsewhere(tmp_path, id="another")  # somebody else was faster
    assert not watch.free(tmp_path)
    with pytest.raises(Taken):
        claim(tmp_path, watch.dead)


def test_of_two_who_take_over_one_wins(tmp_path: Path, without_locks: None) -> None:
    elsewhere(tmp_path)
    dead = {"/".join((tmp_path.name, "claim.1", "abc"))}
    held = claim(tmp_path, dead)
    with pytest.raises(Taken):
        claim(tmp_path, dead)
    held.release()
    assert names(tmp_path) == [".lock"]


def test_without_locks_the_claim_alone_excludes(tmp_path: Path, without_locks: None) -> None:
    held = claim(tmp_path)
    with pytest.raises(Taken):
        claim(tmp_path)
    assert not Watch().free(tmp_path)
    held.release()
    assert Watch().free(tmp_path)


def test_a_holder_that_was_taken_for_dead_finds_out_and_leaves_the_other_alone(
    tmp_path: Path, without_locks: None
) -> None:
    slow = claim(tmp_path)
    other = claim(tmp_path, {"/".join((tmp_path.name, "claim.1", slow.holder.id))})
    assert not slow.lost
    slow.beat()
    assert slow.lost
    slow.release()
    assert names(tmp_path) == [".lock", "claim.2"]
    other.beat()
    assert not other.lost
    other.release()


def test_a_holder_s_heart_beats_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "BEAT", 0.01)
    clock = Clock()
    watch = Watch(clock=clock)
    monkeypatch.setattr(claims, "this_machine", lambda: "here")
    held = claim(tmp_path)
    monkeypatch.setattr(claims, "this_machine", lambda: "elsewhere")
    held._unlock()  # as another machine sees it
    for _ in range(3):
        before = last_holder(tmp_path)
        while last_holder(tmp_path) == before:
            pass
        assert not watch.free(tmp_path)
        clock.now += SILENCE
    held.release()


def test_a_full_disk_does_not_stop_heartbeats(tmp_path: Path) -> None:
    held = claim(tmp_path)
    size = held.path.stat().st_size
    held.report("ü" * 1000, 10**9, 10**9)
    held.beat()
    assert held.path.stat().st_size == size
    held.release()


@settings(max_examples=60)
@given(
    st.binary(max_size=300)
    | st.dictionaries(st.text(max_size=8), st.integers()).map(lambda d: json.dumps(d).encode())
)
def test_no_content_of_a_claim_is_an_error(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "claim.1").write_bytes(content)
        assert last_holder(Path(scratch)) is None
        held: Claim = claim(Path(scratch))
        held.release()
