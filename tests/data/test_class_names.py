"""Class names: their order, which of them are one, and labels that are out of range."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from own_files import cache, npz, rows  # noqa: F401 -- cache is a fixture

from askew.core.errors import SimilarClassesWarning, UserError
from askew.data.array_files import label_names
from askew.data.custom import load_custom_data
from askew.data.objects import as_domain


def load(names: list[object], target_labels: list[str] | None = None) -> tuple[str, ...]:
    labels = names * 4
    source = as_domain((rows(len(labels)), labels), "source")
    target = as_domain(rows(6, seed=1), "target")
    if target_labels is not None:
        object.__setattr__(target, "labels", tuple(target_labels))
    return load_custom_data(source, target).task.training_data.classes


def test_equal_numbers_are_ordered_by_their_digits_in_every_process() -> None:
    code = (
        "from askew.data.custom import _classes; from pathlib import Path\n"
        "print(_classes(('1', '01', '001', '2', '10'), Path()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3, 4)
    }
    assert printed == {"('001', '01', '1', '2', '10')\n"}


def test_class_names_of_five_thousand_digits_are_ordered() -> None:
    long = "9" * 5000
    assert load([long, "12", "٣"]) == ("٣", "12", long)


@pytest.mark.parametrize(
    "label", [10**5000, -(10**5000), 2**64 + 1], ids=["digits", "negative", "65 bits"]
)
def test_a_number_too_large_for_a_label_is_refused(label: int) -> None:
    with pytest.raises(
        UserError, match=r"The label of row 1 .* is .* bits, which is out of range\."
    ):
        load([0, label])


def test_labels_of_different_bytes_stay_different() -> None:
    y = np.array([b"caf\xe9", b"caf\xe8", b" caf ", b"caf"])
    assert label_names(y, 4, Path("x.npz")) == (r"caf\xe9", r"caf\xe8", "caf", "caf")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cat", "cat"),
        ("caf\u00e9", "cafe\u0301"),
        ("ice cream", "ice  cream"),
        ("Straße", "STRASSE"),
    ],
)
def test_classes_that_differ_in_form_alone_are_warned_of(one: str, other: str) -> None:
    with pytest.warns(SimilarClassesWarning, match="if they are one class"):
        assert len(load([one, other])) == 2
    with pytest.warns(SimilarClassesWarning, match="if they are one class"):
        load([one, "dog"], [other, "dog"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load([one, "dog"], [one, "dog"])


def test_a_file_of_labels_in_bytes_is_read(tmp_path: Path) -> None:
    file = npz(tmp_path / "s.npz", rows(8), [b"a", b"b"] * 4)
    assert load_custom_data(
        file, npz(tmp_path / "t.npz", rows(4, seed=1))
    ).task.training_data.classes == ("a", "b")
