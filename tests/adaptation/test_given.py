"""What a user knows of the target: labels that choose and teach, a prior, and a choice that can be
changed."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from adaptations import LENGTH, NAMES, drawn
from commands import assert_refused
from conftest import Command

from askew.adaptation import report
from askew.adaptation.given import TargetLabels, read_prior, taught
from askew.core.errors import UserError
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, make_unlabeled_task
from askew.inference.predictor import load

SHORT = [word for name, value in LENGTH.items() for word in ("-t", f"{name}={value}")]
TRUTH = np.arange(300) % 3


def right_on(share: float, seed: int) -> np.ndarray:
    wrong = np.random.default_rng(seed).random(300) > share
    return np.where(wrong, (TRUTH + 1) % 3, TRUTH)


# --- labels ---


def test_many_labels_overrule_the_choice_without_labels_and_a_handful_do_not() -> None:
    networks = [right_on(0.6, 0), right_on(0.7, 1), right_on(0.75, 2)]
    rows = np.random.default_rng(0).permutation(300)
    assert TargetLabels(rows, TRUTH[rows], 3).choose(networks, 0) == 2
    assert TargetLabels(rows[:1], TRUTH[rows[:1]], 3).choose(networks, 0) == 0
    equal = TargetLabels(rows, TRUTH[rows], 3)
    assert [equal.choose([networks[2]] * 3, k) for k in range(3)] == [0, 1, 2], (
        "of equals, the preferred one"
    )


def toy() -> Task:
    x = np.arange(120, dtype=np.float32)[:, None]
    source = Labeled(x[:60], np.repeat([0, 1, 2], [40, 15, 5]))
    return make_unlabeled_task("own/embeddings", source, Unlabeled(x[60:]), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("share", "times"), [(1.0, (18, 18, 4)), (0.25, (4, 4, 1)), (0.1, (2, 2, 1))]
)
def test_labelled_target_images_are_repeated_until_a_class_has_its_share_of_them(
    share: float, times: tuple[int, ...]
) -> None:
    task = toy()
    before = task.training_data.source
    assert before.sizes(3).tolist() == [36, 13, 4]
    labels = TargetLabels(np.array([3, 4, 7]), np.array([0, 0, 2]), 3)
    after = taught(task, labels, share).training_data
    x = np.asarray(after.source.x)[:, 0]
    assert [int((x == row).sum()) for row in (63.0, 64.0, 67.0)] == list(times)
    assert after.source.y[x < 60].tolist() == before.y.tolist()
    assert set(after.source.y[x == 67.0].tolist()) == {2}
    assert after.source_val is task.training_data.source_val, "nothing that is held out is taught"


# --- a prior ---


@pytest.mark.parametrize(
    "text",
    [
        "cat,0.2\ndog,0.8\n",
        "class;share\ndog;80,0\ncat;20,0\n",
        '{"dog": 4, "cat": 1}',
        "cat 1\ndog 4\n",
    ],
)
def test_shares_come_in_any_unit_order_and_notation(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text)
    assert read_prior(tmp_path / "p", ("cat", "dog")).tolist() == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cat,1\n", "has no share of dog"),
        ("cat,1\ndog,-1\n", "negative"),
        ("cat,1\nowl,1\n", "There is no class 'owl'"),
        ("[1, 2]", "has no share of cat"),
        ("cat\ndog\n", "something else"),
        ('{"cat": {}, "dog": 1}', "something else"),
    ],
)
def test_what_is_no_prior_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(UserError, match=why):
        read_prior(tmp_path / "p", ("cat", "dog"))


# --- through the command ---


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Two domains with a few labels and a prior beside them; the words of a command that adapts."""
    monkeypatch.setattr(report, "_map", lambda *_: "")  # which takes seconds
    xs, ys = drawn(120, [0.6, 0.3, 0.1], 0.0, 0)
    xt, yt = drawn(102, [0.1, 0.3, 0.6], 0.4, 1)
    np.savez(tmp_path / "source.npz", x=xs, y=NAMES[ys])
    np.savez(tmp_path / "target.npz", x=xt)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("row", "species"), *((i, NAMES[yt[i]]) for i in range(0, 102, 4))]
        )
    (tmp_path / "prior.json").write_text(json.dumps({"ant": 0.1, "bee": 0.3, "cat": 0.6}))
    return lambda *words: ["adapt", "source.npz", "target.npz", "-o", "out", *SHORT, *words]


def record(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads((folder / "out" / "summary.json").read_text())
    return told


def test_labels_choose_teach_and_another_network_is_handed_out_without_training(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    columns = ("--path-column", "row", "--label-column", "species")
    answer = cli(*own("--labels", "labels.csv", *columns, "--train-labels", "-m", "coal"))
    assert answer.code == 0, answer.err
    told = record(tmp_path)
    # type: ignore[attr-defined]
    assert [m["name"] for m in told["methods"]] == ["source", "coal", "coal, with labels"]
    assert told["chosen"] == "coal, with labels"
    assert told["labels"]["count"] == 26  # type: ignore[index]
    # type: ignore[index]
    assert set(told["labels"]["accuracy"]) == {"source", "coal"}, "its own teachers cannot judge it"
    assert "was trained with 26 labels of the target" in answer.out
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("*")}
    first = (tmp_path / "out" / "predictions.csv").read_text()
    switched = cli("choose", "out", "source")
    assert switched.code == 0, switched.err
    assert "The network of source was saved because it was asked for." in switched.out
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "runs").rglob("*")} == before, (
        "nothing is trained"
    )
    assert record(tmp_path)["chosen"] == "source"
    assert load(tmp_path / "out", "cpu").card.made["method"] == "source"
    assert (tmp_path / "out" / "predictions.csv").read_text() != first
    back = cli("choose", "out", "coal, with labels")
    assert back.code == 0, back.err
    assert (tmp_path / "out" / "predictions.csv").read_text() == first
    wrong = cli("choose", "out", "dann")
    assert_refused(wrong)
    assert "There is no method 'dann'." in wrong.err


def test_labels_teach_each_member_of_an_ensemble_and_the_ensemble_of_those_is_handed_out(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    answer = cli(
        *own(
            "--labels",
            "labels.csv",
            "--path-column",
            "row",
            "--label-column",
            "species",
            "--train-labels",
        )
    )
    assert answer.code == 0, answer.err
    # type: ignore[attr-defined]
    methods = {m["name"]: m["members"] for m in record(tmp_path)["methods"]}
    assert list(methods)[-1] == record(tmp_path)["chosen"] == "ensemble, with labels"
    assert len(methods["ensemble"]) > 1
    assert methods["ensemble, with labels"] == [
        f"{name}, with labels" for name in methods["ensemble"]
    ]
    assert set(methods["ensemble, with labels"]) <= set(methods)
    assert cli("audit", "out", "target.npz").code == 2, (
        "there are no labels in it, but the methods can be read"
    )
    first = (tmp_path / "out" / "predictions.csv").read_text()
    assert cli("choose", "out", "ensemble").code == 0
    assert (tmp_path / "out" / "predictions.csv").read_text() != first
    assert cli("choose", "out", "ensemble, with labels").code == 0
    assert (tmp_path / "out" / "predictions.csv").read_text() == first


@pytest.mark.parametrize("method", ["source", "coal"])  # heads with and without a bias of their own
def test_predictions_have_the_known_shares_and_so_does_the_model(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path, method: str
) -> None:
    answer = cli(*own("--target-prior", "prior.json", "-m", method))
    assert answer.code == 0, answer.err
    assert record(tmp_path)["known_mix"] == [0.1, 0.3, 0.6]
    model = load(tmp_path / "out", "cpu")
    assert model.card.target_prior is not None
    assert (model.card.target_prior.prior, model.card.target_prior.estimator) == (
        (0.1, 0.3, 0.6),
        "known",
    )
    with (tmp_path / "out" / "predictions.csv").open(newline="") as lines:
        p = np.array([[float(row[f"p_{name}"]) for name in NAMES] for row in csv.DictReader(lines)])
    np.testing.assert_allclose(p.mean(axis=0), [0.1, 0.3, 0.6], atol=1e-3)
    rows = np.load(tmp_path / "target.npz")["x"]
    np.testing.assert_allclose(p, model.predict_proba(rows, prior="target"), atol=5e-3)


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
def test_what_are_no_shares_of_the_classes_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "shares").write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_prior(tmp_path / "shares", ("a", "b"))
    assert caught.value.hint


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
def test_shares_are_read_however_they_are_written(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "shares").write_bytes(content)
    assert read_prior(tmp_path / "shares", ("a", "b")).tolist() == [0.25, 0.75]


def test_a_stranger_s_adaptation_runs_no_file_that_it_names(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert cli(*own("-m", "source")).code == 0
    code = "from pathlib import Path\nPath('ran').touch()\nfrom torch.nn import Identity as Evil\n"
    (tmp_path / "out" / "evil.py").write_text(code)
    summary = tmp_path / "out" / "summary.json"
    told = json.loads(summary.read_text())
    for what in ("method", "backbone"):
        summary.write_text(
            json.dumps(told | {"request": told["request"] | {what: "out/evil.py:Evil"}})
        )
        answer = cli("choose", "out", "source")
        assert_refused(answer)
        assert "out/evil.py:Evil, which is code of somebody's file." in answer.err
        assert not (tmp_path / "ran").exists()
    cli("choose", "out", "source", "--allow-code")
    assert (tmp_path / "ran").exists(), "it was read and allowed"


def test_a_known_prior_changes_no_training(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    assert cli(*own("-m", "coal")).code == 0
    before = sorted(p.name for p in (tmp_path / "out" / "runs").iterdir())
    assert cli(*own("--target-prior", "prior.json", "-m", "coal")).code == 0
    assert sorted(p.name for p in (tmp_path / "out" / "runs").iterdir()) == before


def test_labels_that_do_not_fit_are_refused_before_anything_is_trained(
    cli: Command, own: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "wrong.csv").write_text("path,label\n0,zebra\n")
    for words, why in (
        (("--labels", "wrong.csv"), "'zebra', which is not a class of the source"),
        (("--train-labels",), "no labels to train with"),
        (("--target-prior", "wrong.csv"), "something else than the shares"),
    ):
        answer = cli(*own(*words))
        assert_refused(answer)
        assert why in answer.err
        assert not (tmp_path / "out").exists()
