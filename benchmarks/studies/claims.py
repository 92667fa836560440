"""How far what users are told without labels holds: verdicts, and label distributions with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from askew.evaluation.logits import Floats
from askew.evaluation.target_shares import TargetShares

MATTERS = 1.0
"""Points of accuracy from which a difference counts as help or harm."""


def truth_of(gain: float) -> str:
    """What a verdict should have been."""
    return "helped" if gain > MATTERS else "hurt" if gain < -MATTERS else "unclear"


def count(verdicts: Sequence[str], truths: Sequence[str]) -> tuple[int, int]:
    """How many verdicts are right, and how many say the opposite of the truth."""
    both = list(zip(verdicts, truths, strict=True))
    return sum(a == b for a, b in both), sum({a, b} == {"helped", "hurt"} for a, b in both)


def prior_errors(shown: TargetShares, truth: Floats) -> dict[str, float]:
    """L1 error of a label distribution and of an even one, and the share of classes whose interval holds the truth."""
    return {
        "l1": float(np.abs(shown.prior - truth).sum()),
        "l1_even": float(np.abs(1 / len(truth) - truth).sum()),
        "covered": float(((shown.low <= truth) & (truth <= shown.high)).mean()),
    }
