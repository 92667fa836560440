from __future__ import annotations

import contextlib
import errno
import inspect
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from leftovers import left_by_dead_process

from askew.core import files
from askew.core.errors import UserError
from askew.core.files import (
    Damaged,
    is_temporary,
    read_tensors,
    sweep,
    temporary_folder,
    whole_file,
    whole_folder,
    write_bytes,
    write_json,
    write_tensors,
)
from askew.core.locks import try_lock
from askew.runs.journal import Journal
from askew.runs.root import open_root
from askew.runs.store import RunFolder


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


# --- one file ---


def test_a_file_is_written_whole_under_its_name_alone(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"one")
    write_bytes(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), no_room)
    with pytest.raises(UserError, match="There is no room left on the disk for a in"):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_write_that_is_interrupted_leaves_the_old_content_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write_bytes(tmp_path / "a", b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_disk_that_is_really_full_leaves_the_old_content_and_no_temporary_file(
    small_disk: Path,
) -> None:
    write_bytes(small_disk / "a", b"old")
    with pytest.raises(UserError) as caught:
        write_bytes(small_disk / "a", bytes(2_000_000))
    assert caught.value.sentence == f"There is no room left on the disk for a in {small_disk}."
    assert (small_disk / "a").read_bytes() == b"old"
    assert names(small_disk) == ["a"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        write_json(tmp_path / "missing" / "a.json", {})
    assert (
        caught.value.sentence
        == f"Cannot write {tmp_path / 'missing' / 'a.json'}: No such file or directory."
    )
    assert caught.value.hint.endswith("choose another folder with --out.")


def test_temporary_names_cannot_be_foreseen_and_are_never_followed_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for _ in range(3):
        with whole_file(tmp_path / "a", "") as temporary:
            seen.add(temporary.name)
            assert is_temporary(temporary)
    assert len(seen) == 3
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "0" * 2 * n)
    with whole_file(tmp_path / "a", "") as temporary:
        pass
    victim = tmp_path / "victim"
    temporary.symlink_to(victim)  # planted by somebody who could foresee the name
    with pytest.raises(UserError, match="File exists"):
        write_bytes(tmp_path / "a", b"secret")
    assert not victim.exists()


def test_a_link_that_was_planted_under_a_name_of_ours_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("trace.jsonl", ".lock", "log.txt"):
        (tmp_path / name).symlink_to(victim)
    open_root(tmp_path / "runs")
    Journal(tmp_path, trainings=0).note("not followed")
    with pytest.raises(UserError, match="Cannot write"):
        RunFolder(tmp_path).add_trace({"step": 1})
    with pytest.raises(OSError, match="symbolic link"):
        try_lock(tmp_path / ".lock")
    assert victim.read_text() == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_that_was_planted_under_a_name_of_ours_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("trace.jsonl", "log.txt"):
        os.mkfifo(tmp_path / name)
    open_root(tmp_path / "runs")
    Journal(tmp_path, trainings=0).note("not waited for")
    with pytest.raises(UserError, match="Cannot write"):
        RunFolder(tmp_path).add_trace({"step": 1})


def test_a_temporary_folder_is_nobody_else_s_and_is_swept_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left_by_dead_process(tmp_path / "work")
    with temporary_folder("work") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert names(tmp_path) == [folder.name]
    assert names(tmp_path) == []


def test_a_file_with_the_longest_name_is_written(tmp_path: Path) -> None:
    file = tmp_path / ("ä" * 127)
    write_bytes(file, b"x")
    left = left_by_dead_process(tmp_path / ("ä" * 100))
    write_bytes(file, b"y")
    assert not left.exists()
    assert file.read_bytes() == b"y"


# --- what killed processes leave ---


def test_what_a_dead_process_left_is_swept_and_what_a_living_one_writes_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / ".hidden.1").write_text("mine")
    (tmp_path / ".bashrc").write_text("mine")
    dead, alive = (
        left_by_dead_process(tmp_path / "a"),
        left_by_dead_process(tmp_path / "b", os.getpid()),
    )
    sweep(tmp_path)
    assert names(tmp_path) == sorted([".bashrc", ".hidden.1", alive.name])
    assert not dead.exists()


def test_what_a_process_of_another_machine_left_is_swept_after_a_day(tmp_path: Path) -> None:
    left = left_by_dead_process(tmp_path / "a", space="01234567")
    sweep(tmp_path)
    assert left.exists()
    long_ago = time.time() - files.FORGOTTEN - 60
    os.utime(left, (long_ago, long_ago))
    sweep(tmp_path)
    assert not left.exists()


def test_the_next_write_of_a_file_sweeps_what_a_killed_one_left_of_it_alone(tmp_path: Path) -> None:
    left_by_dead_process(tmp_path / "a.csv")
    other = left_by_dead_process(tmp_path / "b.csv")
    write_bytes(tmp_path / "a.csv", b"x")
    assert names(tmp_path) == sorted(["a.csv", other.name])


def test_a_folder_that_is_not_there_is_swept_without_a_word(tmp_path: Path) -> None:
    sweep(tmp_path / "nowhere")


# --- a folder of files ---


def write_model(path: Path, content: str) -> None:
    with whole_folder(path, "card", "no hint") as folder:
        (folder / "card").write_text(content)
        (folder / f"weights-{content}").write_text(content)


KILL = """
import os, sys
from pathlib import Path
from askew.core.files import whole_folder

calls, fsync, replace, write = 0, os.fsync, Path.replace, Path.write_text

def count():
    global calls
    calls += 1
    if calls == int(sys.argv[3]):
        os._exit(9)

def killing_fsync(file):
    count()
    fsync(file)

def killing_replace(self, target):
    count()
    done = replace(self, target)
    count()
    return done

def killing_write(self, text):
    count()
    write(self, text[: len(text) // 2])
    count()
    return write(self, text)

os.fsync, Path.replace, Path.write_text = killing_fsync, killing_replace, killing_write
write_model(Path(sys.argv[1]), sys.argv[2])
"""


def killed(path: Path, content: str, number: int) -> bool:
    """Write a folder in a process that is killed at its n-th step; False if it had fewer."""
    code = f"from __future__ import annotations\n{inspect.getsource(write_model)}\n{KILL}"
    return (
        subprocess.run(
            [sys.executable, "-c", code, path, content, str(number)], check=False
        ).returncode
        == 9
    )


def test_a_folder_is_whole_or_absent_wherever_its_writer_is_killed(tmp_path: Path) -> None:
    for number in range(1, 30):
        path = tmp_path / str(number) / "model"
        again = killed(path, "a", number)
        assert not path.exists() or names(path) == ["card", "weights-a"]
        write_model(path, "a")
        assert names(path) == ["card", "weights-a"]
        assert names(path.parent) == ["model"]
        if not again:
            break
    assert number > 8


def test_a_folder_that_is_replaced_is_the_old_or_the_new_one_and_keeps_other_files(
    tmp_path: Path,
) -> None:
    for number in range(1, 30):
        path = tmp_path / str(number)
        write_model(path, "a")
        (path / "notes.txt").write_text("mine")
        again = killed(path, "b", number)
        card = (path / "card").read_text()
        assert (path / f"weights-{card}").read_text() == card
        write_model(path, "b")
        assert set(names(path)) - {"weights-a"} == {"card", "notes.txt", "weights-b"}
        if not again:
            break
    assert number > 10


def test_a_folder_that_cannot_be_written_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(UserError, match="There is no room left on the disk for model in"):
        write_model(tmp_path / "model", "a")
    assert names(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Cannot write"):
        write_model(tmp_path / "file" / "model", "a")
    with contextlib.suppress(KeyboardInterrupt), whole_folder(tmp_path / "model", "card", ""):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["file"]


# --- tensors ---


def damaged(content: bytes, how: str, place: int) -> bytes:
    if how == "cut":
        return content[:place]
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_tensors_that_are_damaged_anywhere_are_not_read(tmp_path: Path, how: str) -> None:
    file = tmp_path / "t.safetensors"
    write_tensors(
        file, {"a": torch.randn(5), "b": torch.ones((), dtype=torch.bfloat16)}, {"form": "1"}
    )
    content = file.read_bytes()
    for place in range(0, len(content), 3):
        file.write_bytes(damaged(content, how, place))
        with pytest.raises(Damaged, match="is damaged"):
            read_tensors(file)
    file.write_bytes(content)
    assert set(read_tensors(file)[0]) == {"a", "b"}


def test_one_element_out_of_many_is_written_as_well(tmp_path: Path) -> None:
    """The sum of a lane's only loss: contiguous to torch, whatever its stride."""
    write_tensors(
        tmp_path / "t.safetensors", {"sums": torch.arange(5.0)[None, :][:, 2]}, {"form": "1"}
    )
    assert read_tensors(tmp_path / "t.safetensors")[0]["sums"].tolist() == [2.0]


def test_tensors_carry_their_notes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(2)}, {"form": "1"})
    tensors, notes = read_tensors(tmp_path / "t.safetensors")
    assert (tensors["a"].tolist(), notes) == ([1, 1], {"form": "1"})
