"""Every name that `askew` offers has a docstring with an example, and the example runs."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import askew
from askew.methods import COAL

ALIASES = {"Losses", "State"}
"""Types of dictionaries, which have no docstring of their own."""
PACKAGES: list[tuple[ModuleType, Iterable[str]]] = [
    (askew, askew.__all__),
    (askew.data, askew.data.__all__),
    (askew.methods, askew.methods.FOR_AUTHORS),
    (askew.runs, askew.runs.__all__),
]
PUBLIC = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package, names in PACKAGES
    for name in names
    if name not in ALIASES
}


def surroundings() -> dict[str, Any]:
    """What the examples take for granted."""
    rng = np.random.default_rng(0)
    y, names = np.arange(60) % 3, np.array(["cat", "dog", "owl"])
    xs, xt = (3 * np.eye(3, 6)[y] + rng.normal(size=(60, 6)) for _ in range(2))
    short = {"pretrain": 5, "rounds": 1, "round": 5, "batch": 16}
    labels = {"ys": names[y], "yt": names[y]}
    return {
        "askew": askew,
        "np": np,
        "torch": torch,
        "COAL": COAL,
        "xs": xs,
        "xt": xt,
        "short": short,
    } | labels


@pytest.mark.filterwarnings(
    "ignore::askew.evaluation.priors.UnsurePriorWarning"
)  # five steps teach little
@pytest.mark.parametrize("place", sorted(PUBLIC))
def test_the_example_of_a_public_name_runs(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    name = place.rpartition(".")[2]
    if name in ("TestLabels", "run"):  # which show their number
        request.getfixturevalue("all_test_images")
    if name in ("AdaptationResult", "BenchResult", "DiagnosisResult", "adapt", "diagnose"):
        pytest.importorskip("pandas", reason="tables are DataFrames")
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(PUBLIC[place]) or ""
    example = doctest.DocTestParser().get_doctest(text, surroundings(), name, None, None)
    assert example.examples, f"{place} has no example"
    printed: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=printed.append)
    assert result.failed == 0, "".join(printed)


def test_a_star_import_brings_the_public_names_and_dir_lists_them() -> None:
    names: dict[str, Any] = {}
    exec("from askew import *", names)
    assert set(askew.__all__) <= names.keys()
    assert set(dir(askew)) == {*askew.__all__, "__version__"}
    assert askew.__all__ == sorted(askew.__all__, key=lambda name: (name.islower(), name))


def test_a_package_offers_the_names_that_it_lists() -> None:
    for package in (askew.data, askew.methods, askew.runs):
        assert all(getattr(package, name) is not None for name in package.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            package.nonsense  # noqa: B018
    assert set(askew.methods.FOR_AUTHORS) <= set(askew.methods.__all__)


def test_names_for_authors_are_not_at_the_top_level() -> None:
    assert not set(askew.methods.FOR_AUTHORS) & set(askew.__all__)
