"""Writes that fail, wherever they do: one sentence, nothing half there, and the next start goes
on."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from grids import results

from askew.core.errors import UserError
from askew.core.files import read_tensors
from askew.runs.config import RunRequest, prepare
from askew.runs.execute import Execution
from askew.runs.launch.jobs import Finished, launch_jobs, plan_jobs
from askew.runs.launch.local import Local
from askew.runs.root import open_root
from askew.runs.store import RunFolder

REQUEST = RunRequest(
    task="mini/syn-uci",
    method="coal",
    training={"pretrain": 20, "rounds": 2, "round": 20, "batch": 16},
)
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.ESTALE, errno.EDQUOT)


@contextmanager
def failing_write(number: int, error: int, when: str) -> Iterator[list[int]]:
    """The n-th write from now on fails: before it is on the disk, or when it should get its
    name."""
    calls = [0]
    fsync, replace = os.fsync, Path.replace

    def count() -> None:
        calls[0] += 1
        if calls[0] == number:
            raise OSError(error, os.strerror(error))

    def failing_fsync(file: int) -> None:
        if when == "fsync":
            count()
        fsync(file)

    def failing_replace(self: Path, target: Path) -> Path:
        if when == "replace":
            count()
        return replace(self, target)

    with (
        mock.patch.object(os, "fsync", failing_fsync),
        mock.patch.object(Path, "replace", failing_replace),
    ):
        yield calls


def start(root: Path) -> list[str]:
    """The grid of one run, started as a user does; the keys that it finished."""
    how = Execution(root=open_root(root), device=torch.device("cpu"), checkpoint_every=0)
    plan = plan_jobs([REQUEST], how)
    shared, rest = plan.pretrainings, plan.runs
    return [
        event.key
        for event in launch_jobs([*shared, *rest], how, Local())
        if isinstance(event, Finished)
    ]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("reference") / "runs"
    assert len(start(root)) == 2
    return results(root)


def check_sound(root: Path, reference: dict[str, bytes]) -> None:
    """Nothing is half there: no temporary file, and what has its name is what an undisturbed run
    wrote."""
    assert not [p for p in root.rglob(".*") if p.name != ".lock"]
    assert results(root).items() <= reference.items()
    for path in root.glob("*/last.safetensors"):
        read_tensors(path)
    assert all(RunFolder(p.parent).intact(whole=True) for p in root.glob("*/done"))


def test_a_grid_whose_writes_fail_again_and_again_ends_as_an_undisturbed_one(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    """Each life has a write that fails, a few writes further on than the last."""
    root, rng, failures = tmp_path / "runs", random.Random(0), 0
    while results(root) != reference:
        with (
            failing_write(
                2 + 2 * failures, rng.choice(ERRORS), rng.choice(("fsync", "replace"))
            ) as calls,
            contextlib.suppress(UserError),
        ):
            start(root)
            assert calls[0] < 2 + 2 * failures, "a write failed without an error"
        check_sound(root, reference)
        failures += 1
    assert failures >= 4


def test_a_write_that_fails_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    for error, sentence in (
        (errno.ENOSPC, "There is no room left on the disk for"),
        (errno.EROFS, "Cannot write"),
    ):
        with failing_write(2, error, "fsync"), pytest.raises(UserError, match=sentence) as caught:
            start(tmp_path / str(error))
        assert "start the same command again" in caught.value.hint


@pytest.mark.soak
def test_a_grid_survives_an_error_at_each_of_its_writes(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    for when in ("fsync", "replace"):
        for number in range(1, 100):
            root = open_root(tmp_path / f"{when}{number}")
            with failing_write(number, ERRORS[number % len(ERRORS)], when) as calls:
                try:
                    start(root)
                except UserError:
                    check_sound(root, reference)
            start(root)
            assert results(root) == reference
            if calls[0] < number:  # there were fewer: every one of them has failed once
                break
        assert number > 10


@pytest.mark.soak
def test_results_and_checkpoints_that_are_cut_or_flipped_anywhere_are_done_anew(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    rng, root = random.Random(0), tmp_path / "runs"
    start(root)
    for _ in range(30):
        file = rng.choice(
            sorted(
                p
                for p in root.glob("*/*")
                if p.name in ("weights.safetensors", "scores.json", "done")
            )
        )
        content, place = file.read_bytes(), 0
        place = rng.randrange(1, len(content))
        flipped = (
            content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        )
        file.write_bytes(rng.choice((content[:place], flipped)))
        for folder in {file.parent, *root.glob("*/")}:  # what `askew status --check` does
            if not RunFolder(folder).intact(whole=True):
                RunFolder(folder).reopen()
        start(root)
        # A damaged pre-training that no missing run needs stays undone; the run itself is always
        # whole.
        key = prepare(REQUEST).run.key
        assert {n: v for n, v in results(root).items() if n.startswith(key)} == {
            n: v for n, v in reference.items() if n.startswith(key)
        }
