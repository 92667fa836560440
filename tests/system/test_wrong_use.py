"""Calls and commands that cannot work: names that the system refuses, numbers that are none, pipes
for files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from commands import RUN, assert_refused
from conftest import Command
from many_runs import make_runs
from PIL import Image
from safetensors.numpy import save_file
from small_models import predictor, rows

import askew
from askew.adaptation.artifacts import earlier_request
from askew.adaptation.audit import target_names
from askew.adaptation.request import AdaptRequest, read_shares, read_truth
from askew.cli.terminal import output_error
from askew.core.errors import UserError, from_os_error
from askew.core.files import Damaged, read_tensors, write_json
from askew.data.custom import read_domain
from askew.data.row_cache import RowCache, content_hashes
from askew.data.task import Shift
from askew.inference.predict_files import predict_sources
from askew.inference.predictor import load
from askew.runs.config import RunRequest
from askew.runs.root import open_root
from askew.runs.status import read_status
from askew.runs.store import RunFolder

# --- what the system refuses ---


@pytest.mark.parametrize("command", ["table", "status", "report", "predict"])
def test_a_loop_of_links_is_one_sentence(cli: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    more = ("a",) if command == "predict" else ()
    assert_refused(cli(command, "a", *more))
    assert {p.name for p in tmp_path.iterdir()} == {"a", "b"}


def test_source_and_target_may_not_be_a_loop_of_links(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    assert_refused(cli("adapt", "a", "a", "-o", "out"))


@pytest.mark.parametrize("command", ["table", "status", "report"])
def test_a_name_that_no_system_takes_is_one_sentence(
    cli: Command, tmp_path: Path, command: str
) -> None:
    answer = cli(command, "x" * 300)
    assert_refused(answer)
    assert "File name too long" in answer.err
    assert "a name may have 255 bytes" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error", [URLError("no route"), TimeoutError(), OSError(24, "Too many open files")]
)
def test_what_cannot_be_about_stdout_is_not_taken_for_it(error: OSError) -> None:
    assert output_error(error) is None


def test_a_user_who_does_not_exist_has_no_data_folder(
    cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASKEW_DATA", "~no-such-user/data")
    answer = cli("run", "digits/usps-mnist")
    assert_refused(answer)
    assert "a user who does not exist" in answer.err


def test_an_error_of_the_system_names_the_path_and_what_to_do() -> None:
    error = from_os_error(OSError(36, "File name too long", "x" * 300))
    assert error.sentence == f"Cannot use {'x' * 77}…: File name too long."
    assert error.hint == "a name may have 255 bytes; choose a shorter one."


@pytest.mark.parametrize(
    "error", [OSError(), OSError("plain text"), OSError(5, None), FileNotFoundError(2, "No", b"a")]
)
def test_any_error_of_the_system_is_a_sentence(error: OSError) -> None:
    found = from_os_error(error)
    assert found.sentence.endswith(".")
    assert found.hint


@pytest.mark.parametrize(
    ("argument", "why"), [("", "empty argument after '--out'"), ("a\tb", "control character")]
)
def test_an_argument_that_nobody_types_is_refused(
    cli: Command, tmp_path: Path, argument: str, why: str
) -> None:
    answer = cli(*RUN, "--out", argument)
    assert_refused(answer)
    assert why in answer.err
    assert list(tmp_path.iterdir()) == []


# --- numbers ---

NO_SEED = [float("nan"), 1.5, "x", "0", None, -1, 2**64, [0]]


@pytest.mark.parametrize("seed", NO_SEED, ids=repr)
@pytest.mark.parametrize(
    "ask",
    [
        lambda seed: askew.run("mini/syn-uci", seed=seed),
        lambda seed: RunRequest(task="mini/syn-uci", method="coal", draw=seed),
        lambda seed: AdaptRequest(source=Path("a"), target=Path("b"), seed=seed),
        lambda seed: askew.load_task("mini/syn-uci", draw=seed),
    ],
    ids=["run", "draw", "adapt", "load_task"],
)
def test_what_is_no_seed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], object], seed: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UserError, TypeError)) as caught:
        ask(seed)
    assert isinstance(caught.value, UserError) or isinstance(
        seed, list
    )  # a list is no key of a cache either
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batch", [-1, 1.5, "4", None, float("nan"), 10**30])
def test_what_is_no_batch_is_refused(batch: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows())
    model = predictor()
    for ask in (
        lambda: model.predict(rows(), batch=batch),
        lambda: model.logits(rows(), batch),
        lambda: list(predict_sources(model, [tmp_path / "rows.npy"], batch=batch)),
    ):
        with pytest.raises(UserError, match="batch"):
            ask()


@pytest.mark.parametrize(
    "shift",
    [
        "dirichlet:1e308",
        "dirichlet:inf",
        "dirichlet:nan",
        "dirichlet:1e-300",
        "few:1" + "0" * 30,
        "absent:1" + "0" * 30,
    ],
)
def test_a_shift_beyond_all_measure_is_refused(shift: str) -> None:
    with pytest.raises(UserError, match="There is no label shift"):
        Shift.parse(shift)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            ("bench", "mini", "--seeds", "1000000000"),
            "The number of seeds must be between 1 and 10,000",
        ),
        ((*RUN, "-t", "rounds=1e21"), "The option 'rounds' of training must be"),
        (
            (*RUN, "-t", "rounds=1000000000000"),
            "The option 'rounds' of training must be between 1 and 1,000,000,000",
        ),
        ((*RUN, "--shift", "dirichlet:1e308"), "There is no label shift 'dirichlet:1e308'."),
        (
            (*RUN, "--checkpoint-every", "1e9"),
            "--checkpoint-every must be at most 86,400, found 1e+09.",
        ),
    ],
)
def test_numbers_have_an_upper_limit(
    cli: Command, tmp_path: Path, more: tuple[str, ...], sentence: str
) -> None:
    answer = cli(*more)
    assert_refused(answer)
    assert answer.err.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


# --- pipes in place of files ---


def within(seconds: float, call: Callable[[], object]) -> BaseException | None:
    """What a call raises; AssertionError if it waits."""
    raised: list[BaseException | None] = []

    def run() -> None:
        try:
            call()
            raised.append(None)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert raised, "it waits for a pipe"
    return raised[0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("a.png", lambda file: predictor("mini", (3, 32, 32)).predict([file])),
        ("a.npy", lambda file: read_domain(file, "source")),
        ("a.csv", lambda file: read_domain(file, "target")),
        ("b.npy", lambda file: list(predict_sources(predictor(), [file]))),
        ("labels.csv", lambda file: read_truth(file, ["0"], ["cat"])),
        ("labels.npz", lambda file: read_truth(file, ["0"], ["cat"])),
        ("shares.csv", lambda file: read_shares(file, ["cat"])),
        ("predictions.csv", lambda file: target_names(file.parent)),
        ("summary.json", lambda file: earlier_request(file.parent)),
        ("w.safetensors", read_tensors),
        ("model.json", lambda file: load(file.parent, "cpu")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pipe_is_refused_and_not_waited_for(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / name)
    assert isinstance(within(20, lambda: read(tmp_path / name)), UserError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_among_pictures_is_a_broken_picture(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    model = predictor("mini", (3, 32, 32))
    assert within(20, lambda: list(predict_sources(model, [tmp_path]))) is None
    found: list[Any] = []
    assert within(20, lambda: found.extend(content_hashes([tmp_path / "a.png"]))) is None
    os.mkfifo(tmp_path / "rows.safetensors")
    assert within(20, lambda: RowCache(tmp_path).find([(1, 0)])) is None
    assert found == [["it is not a regular file"]], (
        "what `embed` and `adapt` look for in their cache"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
@pytest.mark.parametrize(
    "name", ["w.safetensors", "run.json", "scores.json", "trace.jsonl", "done"]
)
def test_a_pipe_among_a_run_s_files_is_damaged(tmp_path: Path, name: str) -> None:
    root = make_runs(tmp_path / "runs", 1, classes=2)
    (run,) = (path for path in root.iterdir() if path.is_dir())
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    for pipe in ("claim.1", "failed.json", "plan-1.json"):
        os.mkfifo((root if pipe.startswith("plan") else run) / pipe)
    folder = RunFolder(run)
    reads: dict[str, Callable[[], object]] = {
        "w.safetensors": lambda: read_tensors(run / name),
        "trace.jsonl": folder.trace,
        "scores.json": folder.scores,
    }
    assert isinstance(within(20, reads.get(name, folder.summary)), Damaged)
    assert within(20, lambda: read_status(root, check=True)) is None
    assert within(20, folder.failure) is None
    assert within(20, lambda: folder.describe({})) is None


# --- runs and weights ---


@pytest.mark.parametrize("names", ["none", "others"])
def test_a_weights_file_that_is_none_leaves_no_run(
    cli: Command, tmp_path: Path, names: str
) -> None:
    if names == "none":
        (tmp_path / "w.safetensors").write_bytes(b"not weights at all")
    else:
        save_file({"a": np.ones(2, np.float32)}, tmp_path / "w.safetensors")
    answer = cli(*RUN, "-t", "net=resnet18", "-t", "weights=w.safetensors")
    assert_refused(answer)
    assert (
        "is not a safetensors file" if names == "none" else "does not fit the network"
    ) in answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


HUB = ("-t", "net=resnet18", "-t", "weights=hub")


@pytest.mark.parametrize(
    "command",
    [
        (*RUN, *HUB),
        (
            "bench",
            "mini",
            "--tasks",
            "syn-uci",
            "--methods",
            "source,coal",
            "--seeds",
            "1",
            "--jobs",
            "2",
            *HUB,
        ),
        ("adapt", "source.npz", "target.npz", "-o", "out", "--backbone", "resnet18"),
        ("adapt", "source.npz", "target.npz", "-o", "out", "--backbone", "resnet18", "--fine-tune"),
        ("adapt", "pictures", "photos", "-o", "out", "--backbone", "resnet18"),
        ("embed", "pictures", "-o", "rows.npz", "--backbone", "resnet18"),
    ],
    ids=["run", "bench", "adapt", "fine-tune", "adapt pictures", "embed"],
)
def test_published_weights_without_a_network_are_one_sentence_and_nothing_is_written(
    cli: Command,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    def offline(*args: Any, **more: Any) -> Any:
        raise URLError(ConnectionRefusedError(111, "Connection refused"))

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    images = np.random.default_rng(0).integers(0, 255, (12, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "source.npz", x=images, y=np.arange(12) % 2)
    np.savez(tmp_path / "target.npz", x=images)
    for folder in ("pictures/0", "pictures/1", "photos"):
        (tmp_path / folder).mkdir(parents=True)
        for i, image in enumerate(images):
            Image.fromarray(image).save(tmp_path / folder / f"{i}.png")
    before = sorted(tmp_path.rglob("*"))
    answer = cli(*command)
    refusal = answer.err[answer.err.index("The weights") :]  # torch tells before what it downloads
    assert_refused(answer._replace(err=refusal))
    assert refusal.startswith(
        "The weights of resnet18 could not be fetched: [Errno 111] Connection refused."
    )
    assert "-t weights=FILE" in answer.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"x\n{}", b"{}"])
def test_status_checks_a_damaged_run_that_somebody_holds(
    cli: Command, tmp_path: Path, content: bytes
) -> None:
    root = open_root(tmp_path / "runs")
    folder = RunFolder(root / "key")
    with folder.claimed():
        folder.describe(
            {"run": {"task": "mini/syn-uci", "seed": 1, "plan": [{"method": {"id": "coal"}}]}}
        )
        write_json(folder.path / "scores.json", {})
        folder.finish()
        (folder.path / "scores.json").write_text("changed")
        if content:
            (folder.path / "done").write_bytes(content)
        answer = cli("status", root, "--check", "--json")
    assert answer.code == 0, answer
    assert [run["key"] for run in json.loads(answer.out)["damaged"]] == ["key"]
