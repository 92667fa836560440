from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import askew
from askew.cli.common import pairs
from askew.core.errors import EmptyClassWarning, UserError, unknown
from askew.core.options import checked
from askew.data.benchmarks import load_task
from askew.data.benchmarks.digit_files import read_npz
from askew.data.domains import Labeled, Unlabeled
from askew.data.paths import data_folder
from askew.data.task import Shift, TrainingData
from askew.methods import COAL, make_method, method_class
from askew.runs.config import Training
from askew.runs.recipes import read_settings


def test_an_error_reads_as_a_sentence_a_blank_line_and_a_hint() -> None:
    error = UserError("The moon is missing.", "look up at night.")
    assert str(error) == "The moon is missing.\n\nhint: look up at night."
    assert (error.sentence, error.hint) == ("The moon is missing.", "look up at night.")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("syn-usi", "did you mean 'syn-uci'?"),
        ("uci", "did you mean 'syn-uci'?"),
        ("zebra", "known: dan, mcd, syn-uci."),
        ("", "known: dan, mcd, syn-uci."),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_or_with_all(name: str, hint: str) -> None:
    error = unknown("thing", name, ["syn-uci", "mcd", "dan"])
    assert (error.sentence, error.hint) == (f"There is no thing '{name}'.", hint)


def test_a_name_among_none_says_that_there_is_none() -> None:
    assert unknown("option of method source", "alpha", []).hint == "there is none."


MESSAGES: list[tuple[Callable[[], Any], str, str]] = [
    (
        lambda: load_task("mini/syn-usi"),
        "There is no task 'mini/syn-usi'.",
        "did you mean 'mini/syn-uci'? `askew tasks` lists them.",
    ),
    (
        lambda: method_class("cola"),
        "There is no method 'cola'.",
        "did you mean 'coal'? `askew methods` lists them; your own is `file.py:Class`.",
    ),
    (
        lambda: make_method("coal", {"alhpa": "1"}),
        "There is no option of method coal 'alhpa'.",
        "did you mean 'alpha'?",
    ),
    (
        lambda: make_method("coal", {"alpha": "much"}),
        "The option 'alpha' of method coal must be a number, found 'much'.",
        "Weight α of the entropy that the classifier maximises and the features minimise.",
    ),
    (
        lambda: make_method("coal", {"k0": "1.5"}),
        "The option 'k0' of method coal must be between 0 and 1, found 1.5.",
        "Share of each pseudo-class that is trusted in the first round.",
    ),
    (
        lambda: checked(Training, {"head": "cosin"}, "training"),
        "The option 'head' of training must be 'method' or 'linear' or 'cosine', found 'cosin'.",
        "Classifier; `method` is the one that the method was published with.",
    ),
    (
        lambda: pairs(["alpha"], "the method"),
        "An option of the method reads name=value, found 'alpha'.",
        "for example: --param alpha=0.1",
    ),
    (
        lambda: Shift.parse("degree:2"),
        "There is no label shift 'degree:2'.",
        "rs-ut, ut-rs, bs-bt, natural, degree:D with D in [0, 1], dirichlet:S with S in [1e-6, "
        "1e6], "
        "absent:K (the target lacks the last K classes) or few:N (N target images).",
    ),
    (
        lambda: data_folder(Path("no/where")),
        "The data folder no/where does not exist.",
        "use --data DIR or set ASKEW_DATA.",
    ),
    (
        lambda: read_npz(Path("usps/test.npz")),
        "The data folder is incomplete: usps/test.npz is missing.",
        "expected an .npz with x: uint8 images (n, h, w) or (n, h, w, 3) and y: digits.",
    ),
    (
        lambda: read_settings("mini", Path("my.toml")),
        "The settings file my.toml does not exist.",
        "leave --settings out for the committed ones.",
    ),
    (
        lambda: Labeled(np.zeros((2, 3)), np.zeros(2, np.int64)),
        "Expected uint8 images (n, channels, height, width) or float32 rows (n, width), found "
        "float64 (2, 3).",
        "convert the array first, for example x.astype('float32').",
    ),
    (
        lambda: Unlabeled(np.array([[1, np.nan], [1, 1]], np.float32)),
        "1 of the 2 rows hold NaN or infinity.",
        "remove or impute them first.",
    ),
]


@pytest.mark.parametrize(("call", "sentence", "hint"), MESSAGES, ids=[m[1][:40] for m in MESSAGES])
def test_the_message_says_what_was_found_and_what_to_do(
    call: Callable[[], Any], sentence: str, hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert (caught.value.sentence, caught.value.hint) == (sentence, hint)


def test_a_class_without_images_is_a_warning_in_the_library() -> None:
    x, y = np.zeros((4, 2), np.float32), np.array([0, 0, 2, 2])
    with pytest.warns(EmptyClassWarning, match=r"^The source has no image of class b\.$"):
        TrainingData(
            source=Labeled(x, y),
            source_val=Labeled(x, y),
            target=Unlabeled(x),
            test_images=Unlabeled(x),
            classes=("a", "b", "c"),
        )


def test_a_study_without_target_images_is_refused() -> None:
    x, y = np.zeros((2, 2), np.float32), np.array([0, 1])
    with pytest.raises(UserError, match="The target of this task is empty"):
        TrainingData(
            source=Labeled(x, y),
            source_val=Labeled(x, y),
            target=Unlabeled(x[:0]),
            test_images=Unlabeled(x),
            classes=("a", "b"),
        )


# --- a method of one's own ---


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "The method file mine.py does not exist."),
        ("import askew\n", "mine.py defines no method class 'Mine'."),
        ("class Mine: pass\n", "mine.py defines no method class 'Mine'."),
        ("class Mine(\n", "mine.py cannot be loaded: '(' was never closed (mine.py, line 1)."),
        ("import no_such_module\n", "mine.py cannot be loaded: No module named 'no_such_module'."),
    ],
)
def test_a_method_file_that_cannot_be_used_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("mine.py").write_text(text)
    with pytest.raises(UserError) as caught:
        method_class("mine.py:Mine")
    assert caught.value.sentence == sentence


def test_a_method_without_an_id_is_called_by_its_class(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import askew\nclass Mine(askew.methods.Method):\n    '''Mine.'''\n"
    )
    assert method_class(f"{tmp_path / 'mine.py'}:Mine").id == "mine"


def test_the_package_offers_what_it_lists_and_nothing_else() -> None:
    assert all(hasattr(askew, name) for name in askew.__all__)
    assert not hasattr(askew, "nonsense")
    assert askew.methods.Method is COAL.__mro__[1]
