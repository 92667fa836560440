"""How far what users are told without labels holds: verdicts, and label distributions with their
intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from askew.evaluation.outputs import Floats
from askew.evaluation.priors import TargetShares

MATTERS = 1.0
"""Points of accuracy from which a difference counts as help or harm."""


def truth_of(gain: float) -> str:
    """What a verdict should have been."""
    return "helped" if gain > MATTERS else "hurt" if gain < -MATTERS else "unclear"


def count(verdicts: Sequence[str], truths: Sequence[str]) -> tuple[int, int]:
    """How many verdicts are right, and how many say the opposite of the truth."""
    both = list(zip(verdicts, truths, strict=True))
    return sum(a == b for a, b in both), sum({a, b} == {"helped", "hurt"} for a, b in both)


def off(said: Sequence[float], truth: Sequence[float]) -> dict[str, float]:
    """How far accuracies that are expected are off, by how much they are too high, how far nine in
    ten are off at most, and their correlation with the truth."""
    apart = np.subtract(said, truth)
    corr = np.corrcoef(said, truth)[0, 1] if len(apart) > 2 else np.nan
    nine = np.quantile(np.abs(apart), 0.9)
    return {"off": np.abs(apart).mean(), "high": apart.mean(), "within": nine, "correlation": corr}


def off_sentence(said: Sequence[float], truth: Sequence[float]) -> str:
    found = off(said, truth)
    return (
        f"{found['off']:.1f} points off, nine in ten within {found['within']:.0f}, too high by "
        f"{found['high']:.1f}, "
        f"correlation {found['correlation']:.2f}"
    )


def prior_errors(shown: TargetShares, truth: Floats) -> dict[str, float]:
    """L1 error of a label distribution and of an even one, and the share of classes whose interval
    holds the truth."""
    return {
        "l1": float(np.abs(shown.prior - truth).sum()),
        "l1_even": float(np.abs(1 / len(truth) - truth).sum()),
        "covered": float(((shown.low <= truth) & (truth <= shown.high)).mean()),
    }
