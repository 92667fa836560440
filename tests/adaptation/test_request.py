"""What a user knows of the target: labels that networks are trained with, and class shares."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adaptations import LENGTH, NAMES, drawn
from commands import assert_refused, files
from conftest import Command

import askew
from askew import AdaptationResult, Task, UserError
from askew.adaptation.request import TargetLabels, add_target_labels, read_shares
from askew.data import Labeled, Unlabeled
from askew.data.task import make_unlabeled_task

pytestmark = pytest.mark.usefixtures("small_maps")

SHORT = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
XS, YS = drawn(120, [0.6, 0.3, 0.1], 0.0, 0)
XT, YT = drawn(60, [0.1, 0.3, 0.6], 0.4, 1)
SHARES = {"ant": 0.1, "bee": 0.3, "cat": 0.6}
LABELLED = np.arange(0, 60, 4)


# --- labels ---


@pytest.fixture(scope="module")
def labelled() -> AdaptationResult:
    """Two methods combined, every fourth target image labelled."""
    labels = {str(row): NAMES[YT[row]] for row in LABELLED}
    return askew.adapt(
        (XS, NAMES[YS]),
        XT,
        methods=["coal", "lda"],
        labels=labels,
        target_shares=SHARES,
        training=LENGTH,
        device="cpu",
    )


def test_source_only_is_trained_without_the_labels(labelled: AdaptationResult) -> None:
    first = labelled.adaptation.networks[0].task.training_data.source
    assert not {tuple(row) for row in np.asarray(first.x)} & {tuple(row) for row in XT}


def test_labelled_images_join_the_source_of_every_other_network(labelled: AdaptationResult) -> None:
    first, *others = labelled.adaptation.networks
    own = len(first.task.training_data.source)
    for one in others:
        source = one.task.training_data.source
        added = zip(np.asarray(source.x)[own:], source.y[own:], strict=True)
        expected = zip(XT[LABELLED], YT[LABELLED], strict=True)
        assert {(*x, y) for x, y in added} == {(*x, y) for x, y in expected}


def test_soft_labels_of_labelled_images_are_exact(labelled: AdaptationResult) -> None:
    soft = labelled.adaptation.networks[-1].task.training_data.soft_labels
    assert soft is not None
    assert soft[LABELLED].tolist() == np.eye(3)[YT[LABELLED]].tolist()
    assert (np.delete(soft, LABELLED, axis=0).max(axis=1) < 1).all()


def test_a_summary_tells_how_many_labels_were_trained_with(labelled: AdaptationResult) -> None:
    assert labelled.summary["labels"] == len(LABELLED)
    assert labelled.adaptation.how_chosen == f"trained with {len(LABELLED)} labels of the target"


def toy() -> Task:
    x = np.arange(120, dtype=np.float32)[:, None]
    source = Labeled(x[:60], np.repeat([0, 1, 2], [40, 15, 5]))
    return make_unlabeled_task("own/rows", source, Unlabeled(x[60:]), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("share", "times"), [(1.0, (18, 18, 4)), (0.25, (4, 4, 1)), (0.1, (2, 2, 1))]
)
def test_labelled_images_are_repeated_until_a_class_has_its_share(
    share: float, times: tuple[int, ...]
) -> None:
    task = toy()
    before = task.training_data.source
    assert before.sizes(3).tolist() == [36, 13, 4]
    labels = TargetLabels(np.array([3, 4, 7]), np.array([0, 0, 2]), 3)
    after = add_target_labels(task, labels, share).training_data
    x = np.asarray(after.source.x)[:, 0]
    assert [int((x == row).sum()) for row in (63.0, 64.0, 67.0)] == list(times)
    assert after.source.y[x < 60].tolist() == before.y.tolist()
    assert set(after.source.y[x == 67.0].tolist()) == {2}
    assert after.source_val is task.training_data.source_val, "no label is held out"


def test_labels_replace_only_the_soft_labels_of_their_images() -> None:
    soft = np.full((4, 3), 1 / 3)
    exact = TargetLabels(np.array([2]), np.array([1]), 3).set_in(soft)
    assert exact[2].tolist() == [0, 1, 0]
    assert (np.delete(exact, 2, axis=0) == 1 / 3).all()
    assert (soft == 1 / 3).all()


# --- class shares ---


def test_the_student_s_predictions_follow_known_shares(labelled: AdaptationResult) -> None:
    assert labelled.summary["saved"] == "student"
    assert labelled.summary["known_shares"] == pytest.approx(list(SHARES.values()))
    mean = labelled.adaptation.probabilities.mean(axis=0)
    assert mean == pytest.approx(list(SHARES.values()), abs=1e-3)


NO_SHARES = {
    "empty": b"",
    "nan": b"a,nan\nb,1\n",
    "negative": b"a,-1\nb,2\n",
    "none at all": b"a,0\nb,0\n",
    "too large together": b"a,1e308\nb,1e308\n",
    "too large alone": b'{"a": 1' + b"0" * 400 + b', "b": 1}',
    "too many digits": b'{"a": ' + b"1" * 5000 + b', "b": 1}',
    "another class": b"a,1\nb,1\nzebra,1\n",
    "a class missing": b"a,1\n",
    "a class twice": b"a,1\nb,1\na,3\n",
    "a cell without end": b'"' + b"x" * 200_000 + b",1\n",
    "nested without end": b"{" * 100_000,
    "nested in a list": b'{"a": ' + b"[" * 100_000,
    "a list": b"[1, 2]",
    "a tree": b'{"a": {"b": 1}, "b": 1}',
    "not text": b"\xff\xfe\x00",
    "control characters": b"\x1b[2J,1\n",
}


@pytest.mark.parametrize("content", NO_SHARES.values(), ids=NO_SHARES)
def test_a_file_without_sound_shares_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "shares").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_shares(tmp_path / "shares", ("a", "b"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cat,1\n", "has no share of dog"),
        ("cat,1\ndog,-1\n", "negative"),
        ("cat,1\nowl,1\n", "There is no class 'owl'"),
        ("cat\ndog\n", "something else"),
    ],
)
def test_a_refusal_of_shares_names_what_is_wrong(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(UserError, match=why):
        read_shares(tmp_path / "p", ("cat", "dog"))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfclass;share\r\na;0,25\r\nb;0,75\r\n",
        b"a\t1\nb\t3",
        b"b 3\na 1\n",
        b' {"b": 75, "a": 25}',
    ],
    ids=["spreadsheet", "tabs", "spaces", "JSON"],
)
def test_shares_are_read_in_any_unit_order_and_notation(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "shares").write_bytes(content)
    assert read_shares(tmp_path / "shares", ("a", "b")).tolist() == [0.25, 0.75]


# --- through the command ---


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., list[str]]:
    """Two domains, labels and shares in files, and the words of a command that adapts."""
    np.savez(tmp_path / "source.npz", x=XS, y=NAMES[YS])
    np.savez(tmp_path / "target.npz", x=XT)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("row", "species"), *((i, NAMES[YT[i]]) for i in LABELLED)])
    (tmp_path / "shares.json").write_text(json.dumps(SHARES))
    return lambda *words: ["adapt", "source.npz", "target.npz", "-o", "out", *SHORT, *words]


def test_the_command_trains_with_labels_by_default(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    columns = ("--path-column", "row", "--label-column", "species")
    answer = cli(*own("--labels", "labels.csv", *columns, "-m", "lda"))
    assert answer.code == 0, answer.err
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["labels"] == len(LABELLED)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"trained with {len(LABELLED)} labels of the target" in page


@pytest.mark.parametrize("method", ["source", "coal"])  # heads with and without a bias of their own
def test_a_model_with_known_shares_predicts_as_the_table_does(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path, method: str
) -> None:
    answer = cli(*own("--target-shares", "shares.json", "-m", method))
    assert answer.code == 0, answer.err
    model = askew.load(tmp_path / "out", "cpu")
    told = model.card.target_prior
    assert told is not None
    assert (told.prior, told.estimator) == ((0.1, 0.3, 0.6), "known")
    with (tmp_path / "out" / "predictions.csv").open(newline="") as lines:
        p = np.array([[float(row[f"p_{name}"]) for name in NAMES] for row in csv.DictReader(lines)])
    np.testing.assert_allclose(p.mean(axis=0), [0.1, 0.3, 0.6], atol=1e-3)
    np.testing.assert_allclose(p, model.predict_proba(XT, shares="target"), atol=5e-3)


def test_known_shares_change_no_training(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert cli(*own("-m", "lda")).code == 0
    before = files(tmp_path / "out" / "runs")
    again = own("--target-shares", "shares.json", "-m", "lda", "--overwrite")
    assert cli(*again).code == 0
    assert files(tmp_path / "out" / "runs") == before


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("--labels", "'zebra', which is not a class of the source"),
        ("--target-shares", "something else than the shares"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_trained(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path, option: str, why: str
) -> None:
    (tmp_path / "wrong.csv").write_text("path,label\n0,zebra\n")
    answer = cli(*own(option, "wrong.csv"))
    assert_refused(answer)
    assert why in answer.err
    assert not (tmp_path / "out").exists()
