"""What a model takes: the columns of a table by their names."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY, Command
from small_models import predictor, refused, rows

import askew
from askew.inference.model_card import card_hash
from askew.inference.predictor import Predictor, load

pd = pytest.importorskip("pandas")

NAMES = tuple("abcdefgh")
SHUFFLED = list("hagbfced")


@pytest.fixture(scope="module")
def model() -> Predictor:
    return predictor(columns=NAMES)


def frame() -> Any:
    return pd.DataFrame(rows(), columns=NAMES)


def test_a_table_s_columns_are_matched_by_name(model: Predictor) -> None:
    expected = model.logits(rows())
    for given in (frame(), frame()[SHUFFLED], frame()[SHUFFLED].assign(label="cat", note="?")):
        np.testing.assert_array_equal(model.logits(given), expected)


def test_a_table_that_lacks_a_column_or_has_another_is_refused(model: Predictor) -> None:
    assert "lacks the column 'c' of the model" in refused(
        lambda: model.predict(frame().drop(columns="c"))
    )
    assert "has the column 'id', which the model" in refused(
        lambda: model.predict(frame().assign(id=1))
    )


def test_a_model_without_names_takes_a_table_by_position() -> None:
    plain = predictor()
    np.testing.assert_array_equal(plain.logits(frame()), plain.logits(rows()))


def test_column_names_are_saved_with_the_model(model: Predictor, tmp_path: Path) -> None:
    model.save(tmp_path / "m")
    assert load(tmp_path / "m", "cpu").card.columns == NAMES
    assert "columns" not in predictor().card.as_json()["input"]


@pytest.mark.parametrize("names", [["a"], [1] * 8, ["a"] * 8, "abcdefgh", {"a": 1}])
def test_column_names_that_do_not_fit_the_input_are_refused(
    model: Predictor, tmp_path: Path, names: object
) -> None:
    model.save(tmp_path / "m")
    file = tmp_path / "m" / "model.json"
    card = json.loads(file.read_text())
    card["input"]["columns"] = names
    card["card_hash"] = card_hash(card)
    file.write_text(json.dumps(card))
    refused(lambda: load(tmp_path / "m", "cpu"))


def test_predict_matches_the_columns_of_a_parquet_file(
    model: Predictor, tmp_path: Path, cli: Command
) -> None:
    pytest.importorskip("pyarrow")
    model.save(tmp_path / "m")
    frame().to_parquet(tmp_path / "a.parquet")
    frame()[SHUFFLED].to_parquet(tmp_path / "b.parquet")
    frame().drop(columns="c").to_parquet(tmp_path / "c.parquet")
    tables = [
        json.loads(cli("predict", tmp_path / "m", tmp_path / f"{name}.parquet", "--json").out)
        for name in "ab"
    ]
    first, second = ([row["probabilities"] for row in t["predictions"]] for t in tables)
    assert first == second
    done = cli("predict", tmp_path / "m", tmp_path / "c.parquet")
    assert done.code == 2
    assert "lacks the column 'c'" in done.err


def test_an_adapted_model_knows_its_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 20)
    x = (rng.normal(size=(60, 3)) + 4 * np.eye(3)[y]).astype(np.float32)
    source = pd.DataFrame(x, columns=["p", "q", "r"])
    target = source[["r", "p", "q"]] + 0.1
    training = dict(pair.split("=") for pair in TINY[1::2])
    found = askew.adapt(
        (source, y), target, methods="source", training=training, out=tmp_path / "o"
    )
    kept = found.model
    assert kept.card.columns == ("p", "q", "r")
    np.testing.assert_array_equal(kept.predict(target), kept.predict(target[["q", "r", "p"]]))
    renamed = target.rename(columns={"q": "z"})
    assert "lacks the column 'q'" in refused(lambda: askew.adapt((source, y), renamed))
    assert "lacks the column 'q'" in refused(
        lambda: askew.diagnose((source.rename(columns={"q": "z"}), y), renamed, model=kept)
    )


def test_the_estimator_s_model_knows_its_columns() -> None:
    x = pd.DataFrame(rows(40), columns=NAMES)
    y = np.arange(40) % 2
    fitted = askew.AdaptiveClassifier(
        "source", training={"pretrain": 4, "batch": 8, "rounds": 1, "round": 2}
    )
    fitted.fit(x, y)
    assert dataclasses.asdict(fitted.predictor_.card)["columns"] == NAMES
