"""What a user did wrong on the command line is answered in a sentence with a hint, and nothing is
written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commands import RUN, assert_refused, assert_refuses, files
from conftest import TINY, Command

WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "unknown task": (("run", "mini/uci-sin"), "There is no task 'mini/uci-sin'."),
    "task without its benchmark": (("run", "syn-uci"), "There is no task 'syn-uci'."),
    "unknown method": ((*RUN, "-m", "cola"), "There is no method 'cola'."),
    "method file missing": ((*RUN, "-m", "my.py:M"), "The method file my.py does not exist."),
    "unknown option": ((*RUN, "-p", "alhpa=1"), "There is no option of method coal 'alhpa'."),
    "option without value": (
        (*RUN, "-p", "alpha"),
        "An option of the method reads name=value, found 'alpha'.",
    ),
    "ill-typed option": (
        (*RUN, "-p", "alpha=big"),
        "The option 'alpha' of method coal must be a number, found 'big'.",
    ),
    "option not a number": (
        (*RUN, "-p", "alpha=nan"),
        "The option 'alpha' of method coal must be at least 0, found ",
    ),
    "option out of range": (
        (*RUN, "-p", "k0=2"),
        "The option 'k0' of method coal must be between 0 and 1, found 2.",
    ),
    "unknown setting": ((*RUN, "-t", "lrr=1"), "There is no option of training 'lrr'."),
    "ill-typed setting": (
        (*RUN, "-t", "batch=1.5"),
        "The option 'batch' of training must be a whole number, found",
    ),
    "unknown network": ((*RUN, "-t", "net=resnet5"), "There is no network 'resnet5'."),
    "network of another size": (
        (*RUN, "-t", "net=digits-28"),
        "The network digits-28 takes 1 x 28 x 28, found 3 x 32 x 32.",
    ),
    "batch of one": (
        (*RUN, "-t", "batch=1"),
        "The option 'batch' of training must be between 2 and 65,536, found 1.",
    ),
    "round of no steps": (
        (*RUN, "-t", "round=0"),
        "The option 'round' of training must be between 1 and 1,000",
    ),
    "negative seed": ((*RUN, "--seed", "-1"), "--seed must be at least 0, found -1."),
    "negative draw": ((*RUN, "--draw", "-1"), "The draw must be 0 or more, found -1."),
    "no seeds": (("bench", "mini", "--seeds", 0), "--seeds must be at least 1, found 0."),
    "unknown shift": ((*RUN, "--shift", "rsut"), "There is no label shift 'rsut'."),
    "unknown device": ((*RUN, "--device", "gpu"), "There is no device 'gpu'."),
    "unknown benchmark": (("bench", "minni"), "There is no benchmark 'minni'."),
    "unknown task of a benchmark": (
        ("bench", "mini", "--tasks", "uci"),
        "There is no task 'mini/uci'.",
    ),
    "unknown method of a benchmark": (
        ("bench", "mini", "--methods", "dan,cola"),
        "There is no method ",
    ),
    "settings file missing": (
        (*RUN, "--settings", "my.toml"),
        "The settings file my.toml does not exist.",
    ),
    "no data folder": (
        ("run", "digits/usps-mnist"),
        "This task needs real images, and no data folder was given.",
    ),
    "data folder missing": (
        ("run", "digits/usps-mnist", "--data", "no"),
        "The data folder no does not exist.",
    ),
    "weights file missing": (
        (*RUN, "-t", "weights=w.safetensors"),
        "The weights file w.safetensors does not exist.",
    ),
    "table of nothing": (("table",), "runs is not a folder of askew runs."),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_is_answered_in_a_sentence_with_a_hint_and_nothing_is_written(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    assert_refuses(cli, tmp_path, *WRONG[case])


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("run", "mini/uci-sin"), "mini/uci-syn"),
        (("run", "usps-mnist"), "digits/usps-mnist"),
        ((*RUN, "-m", "cola"), "coal"),
        ((*RUN, "-p", "alhpa=1"), "alpha"),
        ((*RUN, "-t", "roundss=1"), "rounds"),
        (("bench", "minni"), "mini"),
    ],
)
def test_the_hint_names_what_was_probably_meant(
    cli: Command, args: tuple[str, ...], near: str
) -> None:
    assert f"hint: did you mean '{near}'?" in cli(*args).err


@pytest.mark.parametrize(
    "args",
    [
        ("frobnicate",),
        ("run",),
        (*RUN, "--frob"),
        (*RUN, "--seed", "x"),
        (*RUN, "--checkpoint-every", "-1"),
    ],
)
def test_a_command_that_cannot_be_parsed_is_answered_in_the_same_form(
    cli: Command, tmp_path: Path, args: tuple[str, ...]
) -> None:
    answer = cli(*args)
    assert answer.code == 2
    assert answer.out == ""
    assert re.fullmatch(r"[^\n]+\n\nhint: [^\n]+\n", answer.err), answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr = = 1", "The settings file my.toml is not TOML: "),
        (b"\xff\xfe", "The settings file my.toml is not TOML: "),
        ("train = 3", "The settings file my.toml holds 'train' = 3 where a table belongs."),
        (
            "[method]\ncoal = 1",
            "The settings file my.toml holds 'method.coal' = 1 where a table belongs.",
        ),
        ("[trian]\nlr = 1", "The settings file my.toml has an unknown table 'trian'."),
        ("[train]\nlrr = 1", "There is no option of training 'lrr'."),
    ],
)
def test_a_settings_file_that_makes_no_sense_is_refused(
    cli: Command, tmp_path: Path, text: str | bytes, sentence: str
) -> None:
    (tmp_path / "my.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    answer = cli(*RUN, "--settings", "my.toml")
    assert_refused(answer)
    assert answer.err.startswith(sentence)
    assert [p.name for p in tmp_path.iterdir()] == ["my.toml"]


def test_a_folder_is_refused_as_settings(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "my.toml").mkdir()
    assert_refused(cli(*RUN, "--settings", "my.toml"))


def test_an_output_folder_that_is_not_ours_is_refused_and_left_alone(
    cli: Command, tmp_path: Path
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = files(tmp_path)
    for out, sentence in (
        ("thesis", "The folder thesis holds other things"),
        ("file", "file is a file, not a"),
    ):
        for ask in (RUN, ("bench", "mini")):
            answer = cli(*ask, "--out", out)
            assert_refused(answer)
            assert answer.err.startswith(sentence)
    assert files(tmp_path) == before


def test_a_table_of_a_foreign_or_empty_folder_is_refused(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert_refused(cli("table", "other"))
    from askew.runs.root import open_root

    open_root(tmp_path / "empty")
    answer = cli("table", "empty")
    assert_refused(answer)
    assert answer.err.startswith("The folder empty holds no finished run yet.")


def test_a_rate_that_breaks_training_ends_in_a_sentence(cli: Command) -> None:
    answer = cli(*RUN, "-m", "source", *TINY, "-t", "lr=1e30")
    assert_refused(answer)
    assert re.match(
        r"mini/syn-uci pre-training seed 0: the loss 'label' is not finite after step 6", answer.err
    )
    assert "hint: lower the learning rate" in answer.err


def test_a_bench_counts_each_failed_run_once_and_shows_the_others(cli: Command) -> None:
    ask = ["bench", "mini", "--tasks", "syn-uci", "--methods", "source", "--jobs", 1, *TINY]
    assert cli(*ask, "--seeds", 1).code == 0
    answer = cli(*ask, "--seeds", 2, "-t", "lr=1e30")
    assert answer.code == 2
    assert answer.err.endswith(
        "2 of 2 runs failed and are missing from the table.\n\nhint: see above.\n"
    )
    assert "Traceback" not in answer.err
