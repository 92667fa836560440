"""Marks of domains in the scikit-learn class, and class shares that name a class twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from askew import AdaptiveClassifier
from askew.adaptation.request import GivenShares, read_shares
from askew.core.errors import UserError


def test_a_sample_domain_of_0_and_1_is_refused() -> None:
    x, y = np.ones((6, 2), np.float32), np.arange(6) % 2
    with pytest.raises(ValueError, match="sample_domain holds 0"):
        AdaptiveClassifier("source").fit(x, y, sample_domain=[0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize("text", ['{"ant": 1, "bee": 2, "ant": 3}', "ant,1\nbee,2\nant,3"])
def test_shares_that_name_a_class_twice_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.txt").write_text(text)
    with pytest.raises(UserError, match="something else than the shares"):
        read_shares(tmp_path / "s.txt", ("ant", "bee"))
    both: dict[object, float] = {1: 0.5, "1": 0.5}
    with pytest.raises(UserError, match="something else than the shares"):
        read_shares(GivenShares(both), ("1",))  # type: ignore[arg-type]
