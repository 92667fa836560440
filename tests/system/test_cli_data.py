"""Data folders on the command line: a complete one is used, and any other is refused with the
reason."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import assert_refused
from conftest import TINY, Command

from askew.core.errors import EmptyClassWarning
from askew.data.benchmarks import load_task


def part(data: Path, name: str, x: Any, y: Any) -> None:
    path = data / "digits" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, x=x, y=y)


def fake(n: int, side: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, side, side), np.uint8), (np.arange(n) % 10).astype(np.uint8)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """USPS as it should be, but of noise."""
    folder = tmp_path / "data"
    part(folder, "usps/train", *fake(400, 16))
    part(folder, "usps/test", *fake(100, 16, 1))
    return folder


def usps(data: Path) -> tuple[Any, ...]:
    # a whole path, since what was read from a folder is remembered by its name
    return "run", "digits/usps-uci", "--data", data, *TINY


def test_a_task_with_real_data_runs_from_its_folder(cli: Command, data: Path) -> None:
    part(data, "mnist/train", *fake(5_400, 8))
    part(data, "mnist/test", *fake(100, 8, 1))
    answer = cli("run", "digits/usps-mnist", "--data", data, *TINY, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["scores"]["whole"]["images"] == 100


def test_an_incomplete_data_folder_is_refused(cli: Command, data: Path) -> None:
    (data / "digits" / "usps" / "test.npz").unlink()
    answer = cli(*usps(data))
    assert_refused(answer)
    assert answer.err.startswith(
        f"The data folder is incomplete: {data}/digits/usps/test.npz is missing."
    )
    assert not Path("runs").exists()


def broken(data: Path, how: str) -> None:  # noqa: C901
    path = data / "digits" / "usps" / "train.npz"
    x, y = fake(400, 16)
    content = path.read_bytes()
    match how:
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("not an archive")
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "flipped":
            path.write_bytes(content[:1000] + bytes(200) + content[1200:])
        case "npy":
            with path.open("wb") as file:
                np.save(file, x)
        case "no labels":
            np.savez(path, x=x)
        case "floats":
            part(data, "usps/train", x / 255, y)
        case "pickles":
            part(data, "usps/train", x, np.array([{"digit": 1}] * 400))
        case "lengths":
            part(data, "usps/train", x, y[:-1])
        case "digits":
            part(data, "usps/train", x, y + 1)
        case "labels with NaN":
            part(data, "usps/train", x, np.full(400, np.nan))
        case "words":
            part(data, "usps/train", x, y.astype(str))


@pytest.mark.parametrize(
    "how",
    [
        "empty",
        "text",
        "cut",
        "flipped",
        "npy",
        "no labels",
        "floats",
        "pickles",
        "lengths",
        "digits",
        "labels with NaN",
        "words",
    ],
)
def test_a_data_file_that_is_not_as_it_should_be_is_named(
    cli: Command, data: Path, how: str
) -> None:
    broken(data, how)
    answer = cli(*usps(data))
    assert_refused(answer)
    assert answer.err.startswith(f"{data}/digits/usps/train.npz ")
    assert not Path("runs").exists()


def test_images_larger_than_the_network_takes_are_refused(cli: Command, data: Path) -> None:
    part(data, "mnist/train", *fake(5_400, 40))
    part(data, "mnist/test", *fake(100, 40, 1))
    answer = cli("run", "digits/usps-mnist", "--data", data, *TINY)
    assert_refused(answer)
    assert "found 40 x 40" in answer.err


def test_a_class_without_images_is_an_error_on_the_command_line_and_a_warning_in_the_library(
    cli: Command, data: Path
) -> None:
    x, y = fake(400, 16)
    part(data, "usps/train", x, np.where(y == 3, 4, y))
    answer = cli(*usps(data))
    assert_refused(answer)
    assert answer.err.startswith("The source has no image of class 3.")
    assert not Path("runs").exists()
    with pytest.warns(EmptyClassWarning, match="The source has no image of class 3"):
        task = load_task("digits/usps-uci", data=data)
    assert task.training_data.source.sizes(10)[3] == 0


def test_the_command_line_turns_no_other_warning_into_an_error(cli: Command) -> None:
    before = list(warnings.filters)
    cli("tasks")
    assert list(warnings.filters) == before
