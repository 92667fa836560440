from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from leftovers import left_by_dead_process

from askew.core.errors import UserError
from askew.core.files import Damaged, Unwritable, write_json, write_tensors
from askew.runs.claims import Taken
from askew.runs.root import MARKER, check_out, finished_runs, open_root
from askew.runs.store import RunFolder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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


def test_a_folder_whose_first_process_died_before_marking_it_is_swept(tmp_path: Path) -> None:
    left_by_dead_process(tmp_path / MARKER)
    assert open_root(tmp_path) == tmp_path
    assert names(tmp_path) == [MARKER]


def test_only_runs_that_are_done_and_scored_are_finished(tmp_path: Path) -> None:
    root = open_root(tmp_path / "runs")
    for name, files in {
        "done": ["scores.json", "done"],
        "scored": ["scores.json"],
        "pretraining": ["done"],
    }.items():
        (root / name).mkdir()
        for file in files:
            (root / name / file).write_text("{}")
    assert finished_runs(root) == [root / "done"]
    with pytest.raises(UserError, match="is not a folder of askew runs"):
        finished_runs(tmp_path)


def test_what_killed_processes_left_in_run_folders_is_swept_by_the_next_command(
    tmp_path: Path,
) -> None:
    root = open_root(tmp_path / "runs")
    for name in ("done", "waiting", "held"):
        (root / name).mkdir()
        (root / name / "run.json").write_text("{}")
    RunFolder(root / "done").finish()
    for left in (
        root / "done" / "last.safetensors",
        root / "done" / "claim.1",
        root / "waiting" / "claim.2",
    ):
        left.touch()
    left_by_dead_process(root / "done" / "run.json")
    write_json(root / "waiting" / "failed.json", {"reason": "no luck"})
    with RunFolder(root / "held").claimed():
        open_root(root)
        assert names(root / "held") == [".lock", "claim.1", "run.json"]
    assert names(root / "done") == [".lock", "done", "run.json"]
    assert names(root / "waiting") == [".lock", "failed.json", "run.json"]


# --- a run's folder ---


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    tensors = {
        "w": torch.randn(3, 4),
        "n": torch.tensor([7]),
        "view": torch.arange(12.0).view(3, 4).T,
    }
    folder.save_checkpoint(5, tensors, ["label", "self"])
    resume = folder.resume()
    assert resume is not None
    assert (resume.step, resume.loss_names) == (5, ["label", "self"])
    assert all(torch.equal(resume.tensors[name], tensors[name]) for name in tensors)


def test_the_trace_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_trace({"step": 1, "losses": {}})
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    folder.add_trace({"step": 2, "losses": {}})
    with (tmp_path / "trace.jsonl").open("a") as file:
        file.write('{"step": 3, "los')  # killed while it was being written
    folder.resume()
    assert folder.trace() == [{"step": 1, "losses": {}}]


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
    assert folder.intact(whole=True)
    assert names(tmp_path) == ["done"]


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.claimed(), pytest.raises(Taken), folder.claimed():
        pass
    with folder.claimed():
        assert names(folder.path) == [".lock", "claim.1"]
    assert names(folder.path) == [".lock"]


def test_claiming_a_folder_sweeps_what_a_killed_process_left_half_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    folder.fail("no idea")
    left_by_dead_process(tmp_path / "last.safetensors")
    with folder.claimed():
        assert names(tmp_path) == [".lock", "claim.1", "failed.json", "last.safetensors"]
        folder.reopen()
        assert names(tmp_path) == [".lock", "claim.1", "last.safetensors"]


def test_a_vanished_mount_is_not_written_beneath(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mount" / "run")
    with pytest.raises(Unwritable, match="No such file or directory"), folder.claimed():
        pass
    with pytest.raises(Unwritable, match="No such file or directory"):
        write_json(folder.path / "scores.json", {})
    folder.fail("nowhere to say so")
    assert names(tmp_path) == []


# --- damage ---


def finished(path: Path) -> RunFolder:
    """A folder as a run leaves it."""
    folder = RunFolder(path)
    path.mkdir(exist_ok=True)
    test = {
        "images": 2,
        "per_class_mean": 50.0,
        "per_class": [50.0, 50.0],
        "confusion": [[1, 1], [1, 1]],
    }
    folder.describe({"run": {"task": "toy", "seed": 3}, "notes": []})
    write_json(path / "scores.json", {"whole": test})
    write_json(path / "reweighted.json", {"target_shares": [0.5, 0.5], "scores": {"whole": test}})
    for name in ("weights", "outputs"):
        write_tensors(
            path / f"{name}.safetensors", {"w": torch.arange(6.0).view(2, 3)}, {"form": "1"}
        )
    folder.finish()
    return folder


RESULTS = [
    "run.json",
    "scores.json",
    "reweighted.json",
    "weights.safetensors",
    "outputs.safetensors",
]


def damaged(content: bytes, how: str, place: int) -> bytes:
    if how == "cut":
        return content[:place]
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize("name", [*RESULTS, "done"])
def test_damage_at_any_place_of_a_result_is_found(tmp_path: Path, name: str, how: str) -> None:
    folder = finished(tmp_path / "run")
    content = (folder.path / name).read_bytes()
    assert folder.intact(whole=True)
    places = range(
        1 if name == "done" else 0, len(content), max(1, len(content) // 40)
    )  # an empty `done` is an old one
    for place in places:
        (folder.path / name).write_bytes(damaged(content, how, place))
        assert not folder.intact(whole=True), place
        if not name.endswith(".safetensors") or how == "cut":
            assert not folder.intact(), place
    (folder.path / name).write_bytes(content)
    assert folder.intact(whole=True)


def test_what_was_removed_to_save_room_is_missed_only_where_others_build_on_it(
    tmp_path: Path,
) -> None:
    folder = finished(tmp_path / "run")
    (folder.path / "weights.safetensors").unlink()
    assert folder.intact()
    assert not folder.intact(whole=True)
    (folder.path / "scores.json").unlink()
    assert not folder.intact()


def test_runs_from_before_hashes_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    (folder.path / "done").write_bytes(b"")
    assert folder.intact(whole=True)
    assert folder.summary()[1]["whole"]["per_class_mean"] == 50.0


def test_a_table_reads_the_scores_in_short(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run")
    for reweighted in (False, True):
        record, scores = folder.summary(reweighted=reweighted)
        assert record["run"]["seed"] == 3
        assert scores == {"whole": {"images": 2, "per_class_mean": 50.0}}
    assert folder.scores()["whole"]["confusion"] == [[1, 1], [1, 1]]
    (folder.path / "run.json").write_text("{}")
    with pytest.raises(Damaged):
        folder.summary()


@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_checkpoint_means_to_begin_anew(tmp_path: Path, how: str) -> None:
    folder = RunFolder(tmp_path)
    file = tmp_path / "last.safetensors"
    folder.save_checkpoint(5, {"w": torch.randn(3)}, ["label"])
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(damaged(content, how, place))
        folder.add_trace({"step": 5})
        assert folder.resume() is None
        assert folder.trace() == []


def test_a_trace_shorter_than_its_checkpoint_says_means_to_begin_anew(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add_trace({"step": 1})
    folder.save_checkpoint(1, {"w": torch.zeros(1)}, [])
    (tmp_path / "trace.jsonl").write_text("")
    assert folder.resume() is None


def test_a_damaged_trace_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe{"\n')
    with pytest.raises(Damaged, match=r"trace\.jsonl is damaged"):
        RunFolder(tmp_path).trace()


# --- whatever is in a file ---


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("sound") / "run")


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["files", "whole", "run", "x"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=20)
@given(st.binary(max_size=200) | plain_values.map(lambda value: json.dumps(value).encode()))
def test_no_content_of_a_run_s_files_raises_anything_but_a_user_error(
    sound: RunFolder, content: bytes
) -> None:
    for name in [*RESULTS, "done", "last.safetensors", "trace.jsonl"]:
        file = sound.path / name
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(content)
        for read in (sound.intact, sound.summary, sound.scores, sound.trace, sound.resume):
            with contextlib.suppress(UserError):
                read()
        file.unlink(missing_ok=True)
        if before is not None:
            file.write_bytes(before)
    assert sound.intact(whole=True)


def test_a_trace_that_finds_no_room_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(
        json, "dumps", full
    )  # stands for the write: any OSError inside is explained
    with pytest.raises(UserError, match=r"There is no room left on the disk for trace\.jsonl"):
        RunFolder(tmp_path).add_trace({"step": 1})


@pytest.mark.parametrize(("content", "why"), [('{"form": 1}', "of form 1"), ("[]", "damaged")])
def test_runs_of_another_layout_are_refused(tmp_path: Path, content: str, why: str) -> None:
    root = open_root(tmp_path / "runs")
    (root / MARKER).write_text(content)
    for use in (open_root, finished_runs, lambda _: check_out(tmp_path)):
        with pytest.raises(UserError, match=why):
            use(root)
