from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Answer, Command

from askew.data import load_task
from askew.errors import EmptyClassWarning

MINE = '''\
from dataclasses import dataclass
from typing import Annotated

import askew
from askew.losses import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Mine(askew.Method):
    """Learns from the source, at a weight."""

    id = "mine"
    weight: Annotated[float, askew.Between(0)] = 1.0
    """Weight of the loss."""

    def losses(self, net, batch, state, t):
        fs, _ = askew.both(net, batch)
        return {"label": self.weight * cross_entropy(net["head"](fs), batch.ys)}
'''

RUN = ("run", "mini/syn-uci", *TINY)


def files(folder: Path) -> dict[str, int]:
    """Every file with the time it was last written."""
    return {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def assert_refused(answer: Answer) -> None:
    """One sentence, a blank line, a hint; exit code 2, nothing on stdout."""
    assert answer.code == 2
    assert answer.out == ""
    assert re.fullmatch(r"[^\n]+\.\n\nhint: [^\n]+\n", answer.err), answer.err


# --- what there is ---


def test_help_does_not_import_torch() -> None:
    code = """
import sys
from askew.cli import main
sys.argv = ["askew", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    for args in (["--help"], ["run", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout


def test_a_bare_command_shows_the_help(cli: Command) -> None:
    answer = cli()
    assert "Usage:" in answer.out
    assert answer.err == ""


def test_tasks_are_listed(cli: Command) -> None:
    assert "mini/syn-uci" in cli("tasks").out
    listing = {t["task"]: t for t in json.loads(cli("tasks", "--json").out)}
    assert listing["mini/syn-uci"]["network"] == "mini"
    assert listing["digits/usps-uci"]["role"] == "development"


def test_methods_are_listed(cli: Command) -> None:
    assert "coal" in cli("methods").out
    assert {"source", "coal"} <= {m["method"] for m in json.loads(cli("methods", "--json").out)}


def test_a_method_is_explained(cli: Command) -> None:
    text = cli("methods", "coal").out
    assert "L_H  = E_t −Σ_i h_i(x) log h_i(x)" in text
    assert "pseudo-class" in text
    told = json.loads(cli("methods", "coal", "--json").out)
    assert {o["option"] for o in told["options"]} >= {"alpha", "k0", "k_step", "k_max"}
    assert all(o["help"] for o in told["options"] + told["training"])


def test_an_explanation_is_printed_as_it_is_written(cli: Command) -> None:
    assert "E_s −log h(x)[y]." in cli("methods", "source").out  # [y] is no markup


# --- run, bench, table ---


def test_a_run_prints_its_scores_and_says_where_it_lies(cli: Command, tmp_path: Path) -> None:
    answer = cli("run", "mini/syn-uci", *TINY)
    assert answer.code == 0
    assert "whole test part" in answer.out
    assert "the paper's exam" in answer.out
    (key,) = re.findall(r"^run ([0-9a-f]{16}) in runs/\1$", answer.err, re.MULTILINE)
    assert (tmp_path / "runs" / key / "done").exists()


def test_the_installed_command_prints_json_alone_and_is_quiet_in_a_pipe(shell: Command, tmp_path: Path) -> None:
    answer = shell("run", "mini/syn-uci", *TINY, "--json")
    assert answer.code == 0
    told = json.loads(answer.out)
    assert set(told) == {"key", "folder", "scores"}
    assert json.loads((tmp_path / told["folder"] / "scores.json").read_text()) == told["scores"]
    assert answer.err == ""


def test_a_bench_in_a_pipe_shows_no_bars_and_no_escapes(shell: Command) -> None:
    answer = shell("bench", "mini", "--tasks", "syn-uci", "--methods", "source", "--seeds", 2, "--jobs", 1, *TINY)
    assert answer.code == 0
    assert answer.err == ""
    assert "\x1b" not in answer.out
    assert re.search(r"mini/syn-uci +source +2 +\d", answer.out)


def test_a_bench_run_again_runs_nothing_and_a_seed_more_runs_that_seed_alone(cli: Command, tmp_path: Path) -> None:
    ask = ["bench", "mini", "--tasks", "syn-uci", "--methods", "source,coal", "--jobs", 1, *TINY]
    first = cli(*ask, "--seeds", 1, "--json")
    assert first.code == 0
    assert [(r["method"], r["n"]) for r in json.loads(first.out)] == [("source", 1), ("coal", 1)]
    before = files(tmp_path)
    assert cli(*ask, "--seeds", 1, "--json").out == first.out
    assert files(tmp_path) == before
    more = cli(*ask, "--seeds", 2, "--json")
    assert [r["seeds"] for r in json.loads(more.out)] == [[0, 1], [0, 1]]
    after = files(tmp_path)
    assert after | before == after
    folders = {name.split("/")[1] for name in after.keys() - before.keys() if name.count("/") > 1}
    assert len(folders) == 4  # two runs, and a pre-training for either head
    assert all(json.loads((tmp_path / "runs" / f / "run.json").read_text())["run"]["seed"] == 1 for f in folders)
    assert json.loads(cli("table", "--json").out) == json.loads(more.out)
    assert "source" in cli("table").out


def test_a_method_from_a_file_is_explained_run_and_compared(shell: Command, cli: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    told = json.loads(cli("methods", "mine.py:Mine", "--json").out)
    assert told["options"][0]["help"] == "Weight of the loss."
    one = json.loads(cli("run", "mini/syn-uci", "-m", "mine.py:Mine", "-o", "weight=1", *TINY, "--json").out)
    both = ["bench", "mini", "--tasks", "syn-uci", "--methods", "source,mine.py:Mine", "--seeds", 2, "--jobs", 2]
    answer = shell(*both, *TINY, "--json")
    assert answer.code == 0, answer.err
    rows = {r["method"]: r for r in json.loads(answer.out)}
    assert rows["mine"]["whole"]["values"][0] == one["scores"]["whole"]["per_class_mean"]
    assert rows["mine"]["n"] == rows["source"]["n"] == 2
    # another text is another method
    (tmp_path / "mine.py").write_text(MINE + "# changed\n")
    again = json.loads(cli("run", "mini/syn-uci", "-m", "mine.py:Mine", *TINY, "--json").out)
    assert again["key"] != one["key"]


def test_settings_of_one_s_own_are_used(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text("[train]\nlr = 0.125\n[task.syn-uci.method.coal]\nalpha = 0.5\n")
    told = json.loads(cli("run", "mini/syn-uci", "--settings", "my.toml", *TINY, "--json").out)
    run = json.loads((tmp_path / told["folder"] / "run.json").read_text())["run"]
    assert run["plan"][1]["optim"]["lr"] == 0.125
    assert run["plan"][1]["method"]["options"]["alpha"] == 0.5


def test_a_shift_has_one_name_however_it_is_typed(cli: Command) -> None:
    lower, upper = (json.loads(cli(*RUN, "--shift", shift, "--json").out)["key"] for shift in ("rs-ut", "RS-UT"))
    assert lower == upper


# --- what a user did wrong ---

WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "unknown task": (("run", "mini/uci-sin"), "There is no task 'mini/uci-sin'."),
    "task without its benchmark": (("run", "syn-uci"), "There is no task 'syn-uci'."),
    "unknown method": ((*RUN, "-m", "cola"), "There is no method 'cola'."),
    "method file missing": ((*RUN, "-m", "my.py:M"), "The method file my.py does not exist."),
    "unknown option": ((*RUN, "-o", "alhpa=1"), "There is no option of method coal 'alhpa'."),
    "option without value": ((*RUN, "-o", "alpha"), "An option of the method reads name=value, found 'alpha'."),
    "ill-typed option": ((*RUN, "-o", "alpha=big"), "The option 'alpha' of method coal must be a number, found 'big'."),
    "option not a number": ((*RUN, "-o", "alpha=nan"), "The option 'alpha' of method coal must be at least 0, found "),
    "option out of range": ((*RUN, "-o", "k0=2"), "The option 'k0' of method coal must be between 0 and 1, found 2."),
    "unknown setting": ((*RUN, "-t", "lrr=1"), "There is no option of training 'lrr'."),
    "ill-typed setting": ((*RUN, "-t", "batch=1.5"), "The option 'batch' of training must be a whole number, found"),
    "unknown network": ((*RUN, "-t", "net=resnet5"), "There is no network 'resnet5'."),
    "network of another size": (
        (*RUN, "-t", "net=digits-28"),
        "The network digits-28 takes 1 x 28 x 28, found 3 x 32 x 32.",
    ),
    "batch of one": ((*RUN, "-t", "batch=1"), "The option 'batch' of training must be at least 2, found 1."),
    "round of no steps": ((*RUN, "-t", "round=0"), "The option 'round' of training must be at least 1, found 0."),
    "negative seed": ((*RUN, "--seed", "-1"), "--seed must be at least 0, found -1."),
    "negative draw": ((*RUN, "--draw", "-1"), "The draw must be 0 or more, found -1."),
    "no seeds": (("bench", "mini", "--seeds", 0), "--seeds must be at least 1, found 0."),
    "unknown shift": ((*RUN, "--shift", "rsut"), "There is no label shift 'rsut'."),
    "unknown device": ((*RUN, "--device", "gpu"), "There is no device 'gpu'."),
    "unknown benchmark": (("bench", "minni"), "There is no benchmark 'minni'."),
    "unknown task of a benchmark": (("bench", "mini", "--tasks", "uci"), "There is no task 'mini/uci'."),
    "unknown method of a benchmark": (("bench", "mini", "--methods", "dan,cola"), "There is no method "),
    "settings file missing": ((*RUN, "--settings", "my.toml"), "The settings file my.toml does not exist."),
    "no data folder": (("run", "digits/usps-mnist"), "This task needs real images, and no data folder was given."),
    "data folder missing": (("run", "digits/usps-mnist", "--data", "no"), "The data folder no does not exist."),
    "weights file missing": ((*RUN, "-t", "weights=w.safetensors"), "The weights file w.safetensors does not exist."),
    "table of nothing": (("table",), "runs is not a folder of askew runs."),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_is_answered_in_a_sentence_with_a_hint_and_nothing_is_written(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.delenv("ASKEW_DATA", raising=False)
    args, sentence = WRONG[case]
    answer = cli(*args)
    assert_refused(answer)
    assert answer.err.startswith(sentence)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "near"),
    [
        (("run", "mini/uci-sin"), "mini/uci-syn"),
        (("run", "usps-mnist"), "digits/usps-mnist"),
        ((*RUN, "-m", "cola"), "coal"),
        ((*RUN, "-o", "alhpa=1"), "alpha"),
        ((*RUN, "-t", "roundss=1"), "rounds"),
        (("bench", "minni"), "mini"),
    ],
)
def test_the_hint_names_what_was_probably_meant(cli: Command, args: tuple[str, ...], near: str) -> None:
    assert f"hint: did you mean '{near}'?" in cli(*args).err


@pytest.mark.parametrize(
    "args", [("frobnicate",), ("run",), (*RUN, "--frob"), (*RUN, "--seed", "x"), (*RUN, "--checkpoint-every", "-1")]
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
        ("[method]\ncoal = 1", "The settings file my.toml holds 'method.coal' = 1 where a table belongs."),
        ("[trian]\nlr = 1", "The settings file my.toml has a table 'trian' that means nothing."),
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


def test_an_output_folder_that_is_not_ours_is_refused_and_left_alone(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "text").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = files(tmp_path)
    for out, sentence in (("thesis", "The folder thesis holds other things"), ("file", "file is a file, not a")):
        for ask in (RUN, ("bench", "mini")):
            answer = cli(*ask, "--out", out)
            assert_refused(answer)
            assert answer.err.startswith(sentence)
    assert files(tmp_path) == before


def test_a_table_of_a_foreign_or_empty_folder_is_refused(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert_refused(cli("table", "other"))
    from askew.store import open_root

    open_root(tmp_path / "empty")
    answer = cli("table", "empty")
    assert_refused(answer)
    assert answer.err.startswith("The folder empty holds no finished run yet.")


def test_a_rate_that_breaks_training_ends_in_a_sentence(cli: Command) -> None:
    answer = cli(*RUN, "-m", "source", *TINY, "-t", "lr=1e30")
    assert_refused(answer)
    assert re.match(r"mini/syn-uci pre-training seed 0: the loss 'label' is not finite after step 20", answer.err)
    assert "hint: lower the learning rate" in answer.err


def test_a_bench_counts_each_failed_run_once_and_shows_the_others(cli: Command) -> None:
    ask = ["bench", "mini", "--tasks", "syn-uci", "--methods", "source", "--jobs", 1, *TINY]
    assert cli(*ask, "--seeds", 1).code == 0
    answer = cli(*ask, "--seeds", 2, "-t", "lr=1e30")
    assert answer.code == 2
    assert answer.err.endswith("2 of 2 runs failed and are missing from the table.\n\nhint: see above.\n")
    assert "Traceback" not in answer.err


# --- data folders that are not as they should be ---


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
    assert answer.err.startswith(f"The data folder is incomplete: {data}/digits/usps/test.npz is missing.")
    assert not Path("runs").exists()


def broken(data: Path, how: str) -> None:
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
        "empty", "text", "cut", "flipped", "npy", "no labels", "floats", "pickles", "lengths", "digits",
        "labels with NaN", "words",
    ],
)  # fmt: skip
def test_a_data_file_that_is_not_as_it_should_be_is_named(cli: Command, data: Path, how: str) -> None:
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
    assert task.study.source.sizes(10)[3] == 0


def test_the_command_line_turns_no_other_warning_into_an_error(cli: Command) -> None:
    before = list(warnings.filters)
    cli("tasks")
    assert list(warnings.filters) == before
