"""Columns of tables are matched by name, and no column of numbers is lost or taken for another."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_files import cache, rows  # noqa: F401 -- cache is a fixture

from askew.core.errors import UserError
from askew.data.array_files import read_array
from askew.data.custom import CustomData, load_custom_data
from askew.data.objects import as_domain

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

NAMES = ("width", "height", "mass")
Load = Callable[[Path, Any, Any], CustomData]


def in_memory(folder: Path, source: Any, target: Any) -> CustomData:
    return load_custom_data(as_domain(source, "source"), as_domain(target, "target"))


def in_files(folder: Path, source: Any, target: Any) -> CustomData:
    source.to_parquet(folder / "s.parquet")
    target.to_parquet(folder / "t.parquet")
    return load_custom_data(folder / "s.parquet", folder / "t.parquet")


both = pytest.mark.parametrize("load", [in_memory, in_files])


def frames() -> tuple[Any, Any]:
    source = pd.DataFrame(rows(12, 3), columns=NAMES).assign(label=["a", "b"] * 6)
    return source, pd.DataFrame(rows(8, 3, seed=1), columns=NAMES)


@both
def test_columns_in_another_order_give_the_same_task(tmp_path: Path, load: Load) -> None:
    source, target = frames()
    plain = load(tmp_path, source, target)
    shuffled = load(tmp_path, source, target[["mass", "width", "height"]])
    assert plain.columns == shuffled.target.columns == NAMES
    assert plain.task.origin == shuffled.task.origin
    np.testing.assert_array_equal(shuffled.target.x, target.to_numpy())


@both
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.drop(columns="mass"), "lacks the column 'mass' of the source"),
        (lambda t: t.assign(id=1.0), "has the column 'id', which the source"),
        (lambda t: t.rename(columns={"mass": "weight"}), "lacks the column 'mass' of the source"),
        (lambda t: t.assign(mass="heavy"), "lacks the column 'mass' of the source"),
    ],
)
def test_missing_and_extra_columns_are_refused(
    tmp_path: Path, load: Load, change: Callable[[Any], Any], told: str
) -> None:
    source, target = frames()
    with pytest.raises(UserError, match=re.escape(told)) as error:
        load(tmp_path, source, change(target))
    assert "matched by name" in error.value.hint


def test_an_array_beside_a_table_is_taken_by_position() -> None:
    source, target = frames()
    found = load_custom_data(as_domain(source, "source"), as_domain(target.to_numpy(), "target"))
    assert found.columns == NAMES


@both
def test_truth_values_and_numbers_as_objects_are_features(tmp_path: Path, load: Load) -> None:
    source, target = frames()
    source, target = (
        one.assign(wet=[True, False] * (len(one) // 2), age=np.arange(len(one)))
        for one in (source, target)
    )
    if load is in_memory:
        source, target = (one.astype({"age": object}) for one in (source, target))
    assert load(tmp_path, source, target).columns == (*NAMES, "wet", "age")


def test_the_index_of_a_stored_table_is_no_feature(tmp_path: Path) -> None:
    source, _ = frames()
    source.iloc[::-1].to_parquet(tmp_path / "plain.parquet")
    source.rename_axis("id").to_parquet(tmp_path / "named.parquet", index=True)
    for name in ("plain", "named"):
        assert read_array(tmp_path / f"{name}.parquet").columns == NAMES


def test_a_feature_called_x_is_no_column_of_lists(tmp_path: Path) -> None:
    pd.DataFrame(rows(4, 2), columns=["x", "z"]).to_parquet(tmp_path / "t.parquet")
    assert read_array(tmp_path / "t.parquet").columns == ("x", "z")


def test_two_columns_of_one_name_are_refused() -> None:
    source, _ = frames()
    with pytest.raises(UserError, match="two columns 'mass'"):
        as_domain(pd.concat([source, source[["mass"]]], axis=1), "source")
    with pytest.raises(UserError, match="two columns '1'"):
        as_domain(pd.DataFrame(rows(4, 2), columns=[1, "1"]), "target")


def test_a_table_of_pyarrow_has_names_too() -> None:
    import pyarrow as arrow

    source, target = frames()
    table = arrow.Table.from_pandas(target[["mass", "width", "height"]])
    found = load_custom_data(as_domain(source, "source"), as_domain(table, "target"))
    np.testing.assert_array_equal(found.target.x, target.to_numpy())
