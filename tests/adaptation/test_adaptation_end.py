"""What `askew adapt` prints at the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adaptations import Made

from askew.cli.adaptation_end import print_end


def printed(made: Made, capsys: pytest.CaptureFixture[str], *, verbose: bool = False) -> list[str]:
    """Lines of stdout, then those of stderr."""
    print_end(made.found, Path("out"), verbose=verbose)
    shown = capsys.readouterr()
    return [*shown.out.splitlines(), *shown.err.splitlines()]


def test_the_end_has_at_most_15_lines_in_order(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(made, capsys)
    assert len(lines) <= 15
    begins = (
        "Adaptation",
        "Expected accuracy: ",
        "Class shares",
        "  ant",
        "Next: `askew",
        "report in out",
    )
    places = [next(i for i, line in enumerate(lines) if word in line) for word in begins]
    assert lines[0] == made.found.sentence
    assert places[:3] == sorted(places[:3])
    assert places[4:] == sorted(places[4:])
    assert places[4] > places[3] > places[2]
    assert "predictions in out/predictions.csv" in lines[-1]


def test_the_class_whose_share_changes_most_comes_first(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(made, capsys)
    change = np.abs(made.found.diagnosis.target_prior.prior - made.found.data.source_prior)
    first = next(line for line in lines if " → " in line)
    assert first.strip().startswith(made.found.classes[int(change.argmax())])


def test_only_the_verbose_end_has_a_table_of_scores(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not any("against source" in line for line in printed(made, capsys))
    lines = printed(made, capsys, verbose=True)
    assert any("against source" in line for line in lines)
    assert any(line.strip().startswith("class ") and "interval" in line for line in lines)
