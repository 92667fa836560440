from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from askew.errors import UserError
from askew.store import MARKER, RunFolder, finished_runs, open_root, read_tensors, write_bytes, write_json


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


def test_a_disk_that_is_really_full_leaves_the_old_content_and_no_temporary_file(small_disk: Path) -> None:
    write_bytes(small_disk / "a", b"old")
    with pytest.raises(UserError) as caught:
        write_bytes(small_disk / "a", bytes(2_000_000))
    assert caught.value.sentence == f"There is no room left on the disk for a in {small_disk}."
    assert (small_disk / "a").read_bytes() == b"old"
    assert names(small_disk) == ["a"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        write_json(tmp_path / "missing" / "a.json", {})
    assert caught.value.sentence == f"Cannot write {tmp_path / 'missing' / 'a.json'}: No such file or directory."
    assert caught.value.hint == "choose another folder with --out."


# --- a folder of runs ---


def test_a_new_or_empty_folder_becomes_ours_and_stays_so(tmp_path: Path) -> None:
    for path in (tmp_path / "deep" / "new", tmp_path / "deep" / "new"):
        assert open_root(path) == path
    assert names(tmp_path / "deep" / "new") == [MARKER]
    (tmp_path / "empty").mkdir()
    open_root(tmp_path / "empty")


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other things and was not made by askew"):
        open_root(tmp_path)
    assert names(tmp_path) == ["thesis.txt"]


def test_a_file_is_refused_as_a_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file, not a folder"):
        open_root(tmp_path / "file")
    with pytest.raises(UserError, match="Cannot write"):
        open_root(tmp_path / "file" / "runs")


def test_a_folder_whose_first_process_died_before_marking_it_is_still_ours(tmp_path: Path) -> None:
    (tmp_path / f".{MARKER}.123").write_text("{")
    assert open_root(tmp_path) == tmp_path
    assert (tmp_path / MARKER).exists()


def test_only_runs_that_are_done_and_scored_are_finished(tmp_path: Path) -> None:
    root = open_root(tmp_path / "runs")
    for name, files in {"done": ["scores.json", "done"], "scored": ["scores.json"], "pretraining": ["done"]}.items():
        (root / name).mkdir()
        for file in files:
            (root / name / file).write_text("{}")
    assert finished_runs(root) == [root / "done"]
    with pytest.raises(UserError, match="is not a folder of askew runs"):
        finished_runs(tmp_path)


# --- a run's folder ---


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    tensors = {"w": torch.randn(3, 4), "n": torch.tensor([7]), "view": torch.arange(12.0).view(3, 4).T}
    folder.save_checkpoint(5, tensors, ["label", "self"])
    resume = folder.resume()
    assert resume is not None
    assert (resume.step, resume.loss_names) == (5, ["label", "self"])
    assert all(torch.equal(resume.tensors[name], tensors[name]) for name in tensors)


def test_the_trace_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_trace({"step": 1})
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    folder.add_trace({"step": 2})
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('{"step": 3, "los')  # killed while it was being written
    folder.resume()
    assert folder.trace() == [{"step": 1}]


def test_without_a_checkpoint_there_is_no_trace_either(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_trace({"step": 1})
    assert folder.resume() is None
    assert folder.trace() == []


def test_a_finished_run_keeps_no_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    assert not folder.done
    folder.finish()
    assert folder.done
    assert names(tmp_path) == ["done"]


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        waiting.set()
        with folder.claimed():
            order.append("second")

    other = threading.Thread(target=second)
    with folder.claimed():
        other.start()
        waiting.wait(10)
        other.join(0.2)  # time enough to take it, if it could
        order.append("first")
    other.join(10)
    assert order == ["first", "second"]


def test_claiming_a_folder_sweeps_what_a_killed_process_left_half_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    (tmp_path / ".last.safetensors.4242").write_bytes(b"half")
    with folder.claimed():
        assert names(tmp_path) == [".lock", "last.safetensors"]


def test_tensors_carry_their_notes(tmp_path: Path) -> None:
    from askew.store import write_tensors

    write_tensors(tmp_path / "t.safetensors", {"a": torch.ones(2)}, {"form": "1"})
    tensors, notes = read_tensors(tmp_path / "t.safetensors")
    assert (tensors["a"].tolist(), notes) == ([1, 1], {"form": "1"})


def test_a_trace_that_finds_no_room_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        no_room()

    monkeypatch.setattr(json, "dumps", full)  # stands for the write: any OSError inside is explained
    with pytest.raises(UserError, match=r"There is no room left on the disk for trace\.jsonl"):
        RunFolder(tmp_path).add_trace({"step": 1})
