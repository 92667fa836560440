"""Paths, class folders and terminals whose encoding is not UTF-8, and a stdout that takes
nothing."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Command
from generated_trees import own_cache, picture
from small_models import predictor

from askew.core.errors import UserError
from askew.data.custom import load_custom_data
from askew.inference.model_card import read_card
from askew.inference.predictor import load

ODD = os.fsdecode("caf\u00e9".encode("latin-1"))
"""A name whose bytes are not UTF-8."""

MAIN = "import sys\nfrom askew.cli import main\nsys.argv[0] = 'askew'\nmain()"


def can_be_named(folder: Path) -> bool:
    try:
        (folder / ODD).mkdir()
        (folder / ODD).rmdir()
    except (OSError, UnicodeError):
        return False
    return True


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    if not can_be_named(tmp_path):
        pytest.skip("the file system takes no name but UTF-8")
    return tmp_path


def askew(*args: str, locale: str = "C.UTF-8", **how: object) -> subprocess.CompletedProcess[bytes]:
    """The command line in a process of its own, with a terminal of another encoding."""
    coding = (
        {"PYTHONIOENCODING": locale} if "." not in locale and locale != "C" else {"LC_ALL": locale}
    )
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"} if locale == "C" else {}
    environment = {**os.environ, **coding, **ascii_only}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *args],
        env=environment,
        timeout=120,
        check=False,
        # type: ignore[call-overload]
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how,
    )


# --- names on the disk ---


def test_class_folders_of_any_bytes_are_classes(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_cache(odd, monkeypatch)
    for folder in (odd / ODD / ODD, odd / ODD / "th\u00e9"):
        folder.mkdir(parents=True)
        for i in range(3):
            picture(odd / f"{i}.png", 8)
            (odd / f"{i}.png").rename(folder / f"{ODD}{i}.png")
    for i in range(3):
        picture(odd / "target" / f"{i}.png", 9)
        (odd / "target" / f"{i}.png").rename(odd / "target" / f"{ODD}{i}.png")
    data = load_custom_data(odd / ODD, odd / "target")
    classes = data.task.training_data.classes
    assert set(classes) == {"caf\\xe9", "th\u00e9"}
    assert data.task.origin
    assert "".join(classes).encode()


def test_a_model_is_saved_to_and_read_from_a_folder_of_any_bytes(odd: Path) -> None:
    predictor().save(odd / ODD)
    assert load(odd / ODD, "cpu").classes == predictor().classes


def test_predictions_go_to_a_file_of_any_name_in_any_locale(odd: Path, cli: Command) -> None:
    import numpy as np

    predictor().save(odd / ODD)
    np.save(odd / f"{ODD}.npy", np.zeros((2, 8), np.float32))
    predict = ("predict", str(odd / ODD), str(odd / f"{ODD}.npy"), "-o")
    assert cli(*predict, odd / f"{ODD} here.csv").code == 0
    answer = askew(*predict, str(odd / f"{ODD} elsewhere.csv"), locale="C")
    assert answer.returncode == 0, answer.stderr
    for locale in ("here", "elsewhere"):
        with (odd / f"{ODD} {locale}.csv").open(encoding="utf-8") as file:
            assert [row["path"] for row in csv.DictReader(file)] == [
                f"{odd}/caf\\xe9.npy:{i}" for i in range(2)
            ]


@pytest.mark.parametrize("name", ["\ud800", "a\udfff"])
def test_a_class_that_is_half_a_character_is_refused(tmp_path: Path, name: str) -> None:
    predictor().save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps(card | {"classes": [name, *card["classes"][1:]]}))
    with pytest.raises(UserError, match="half a character"):
        read_card(file)


# --- terminals ---


@pytest.mark.parametrize("locale", ["latin-1", "cp1252", "C"])
def test_results_are_printed_in_any_encoding(tmp_path: Path, locale: str, mini_runs: Path) -> None:
    table = askew("table", str(mini_runs), locale=locale)
    assert table.returncode == 0, table.stderr
    assert b"mini/syn-uci" in table.stdout
    answer = askew("table", str(mini_runs), "--json", locale=locale)
    assert (
        json.loads(answer.stdout.decode("ascii" if locale == "C" else locale))[0]["task"]
        == "mini/syn-uci"
    )
    refusal = askew("table", str(tmp_path / "\u4e2d"), locale=locale)
    assert refusal.returncode == 2
    assert refusal.stderr.count(b"\n") == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command", [("table",), ("status", "--json")], ids=["at once", "in the buffer until the end"]
)
def test_a_full_stdout_is_one_sentence(mini_runs: Path, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        answer = askew(*command, str(mini_runs), stdout=full)
    assert answer.returncode == 2
    assert answer.stderr.startswith(
        b"Standard output cannot be written: No space left on device.\n\nhint: "
    )
    assert answer.stderr.count(b"\n") == 3


def test_a_closed_stdout_is_refused_before_any_work(tmp_path: Path) -> None:
    command = 'exec "$0" -c "$1" run mini/syn-uci --out "$2" >&-'
    answer = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, MAIN, str(tmp_path / "runs")],
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith(b"Standard output is closed")
    assert not (tmp_path / "runs").exists()


def test_a_closed_stderr_changes_nothing(mini_runs: Path) -> None:
    command = 'exec "$0" -c "$1" status "$2" 2>&-'
    for folder, end in ((mini_runs, (0, b"4 done")), (mini_runs / "nowhere", (2, b""))):
        answer = subprocess.run(
            ["/bin/sh", "-c", command, sys.executable, MAIN, str(folder)],
            capture_output=True,
            check=False,
        )
        assert (answer.returncode, answer.stdout[:6]) == end


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stderr_changes_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        answer = askew("status", str(tmp_path), stderr=full)
    assert (answer.returncode, answer.stdout) == (2, b"")


def test_no_file_gets_the_number_of_a_closed_stderr() -> None:
    look = (
        "import os; from askew.cli.terminal import open_output; open_output(); "
        "print(os.path.realpath('/dev/fd/2'))"
    )
    answer = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, look],
        capture_output=True,
        check=False,
    )
    assert answer.stdout == b"/dev/null\n"


def test_a_reader_that_has_seen_enough_gets_no_message(mini_runs: Path) -> None:
    command = '"$0" -c "$1" table "$2" --json; echo "code $?" >&2'
    pipe = subprocess.Popen(
        ["/bin/sh", "-c", command, sys.executable, MAIN, str(mini_runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    assert pipe.stderr.read() in (b"code 0\n", b"code 1\n")  # 1 where it was noticed in the middle
    pipe.stderr.close()
    pipe.wait()
