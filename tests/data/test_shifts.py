"""Shifts beside the paper's: turned round, with absent classes, with few target images."""

from __future__ import annotations

import numpy as np
import pytest

from askew.core.errors import UserError
from askew.data.benchmarks import load_task
from askew.data.task import Shift


def test_turned_round_each_domain_has_the_proportions_of_the_other() -> None:
    one, other = (load_task("mini/uci-syn", shift) for shift in ("rs-ut", "ut-rs"))
    sizes = one.training_data.source.sizes(10), other.training_data.source.sizes(10)
    assert sizes[0][0] < sizes[0][-1]
    assert sizes[1][0] > sizes[1][-1]
    assert other.test_labels.target_sizes is not None
    assert other.test_labels.target_sizes[0] < other.test_labels.target_sizes[-1]


@pytest.mark.parametrize("absent", [1, 3, 8])
def test_a_target_lacks_the_classes_that_are_absent_in_training_and_in_the_test(
    absent: int,
) -> None:
    task, plain = load_task("mini/syn-uci", f"absent:{absent}"), load_task("mini/syn-uci")
    sizes, all_sizes = task.test_labels.target_sizes, plain.test_labels.target_sizes
    assert sizes is not None
    assert all_sizes is not None
    assert (sizes[-absent:] == 0).all()
    assert (sizes[:-absent] == all_sizes[:-absent]).all()
    assert set(task.test_labels.y) == set(range(10 - absent))
    assert task.training_data.source.sizes(10).min() > 0, "the source has them all"


def test_few_target_images_keep_the_proportions_and_the_test_stays_whole() -> None:
    task, plain = load_task("mini/syn-uci", "few:50"), load_task("mini/syn-uci")
    sizes = task.test_labels.target_sizes
    assert sizes is not None
    assert sizes.sum() == len(task.training_data.target) == 50
    assert (np.diff(sizes) <= 0).all()
    assert (task.test_labels.y == plain.test_labels.y).all()
    assert task.test_labels.paper is not None
    assert plain.test_labels.paper is not None
    assert (task.test_labels.paper == plain.test_labels.paper).all()


@pytest.mark.parametrize(
    "text", ["absent:0", "absent:-1", "absent:x", "few:0", "few", "ut-rs:1", "absent:1.5"]
)
def test_what_is_no_shift_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="no label shift"):
        Shift.parse(text)


def test_a_target_keeps_one_class_at_least() -> None:
    with pytest.raises(UserError, match="cannot lack 10 of 10"):
        load_task("mini/syn-uci", "absent:10")


@pytest.mark.parametrize("text", ["ut-rs", "absent:3", "few:200"])
def test_a_shift_is_written_as_it_is_read(text: str) -> None:
    assert str(Shift.parse(text)) == text
