"""Auto: the recipe of `askew adapt` as a method of the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from askew.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class Auto(Method):
    """Several methods are combined into one network, as `askew adapt` does it.

    Assumes: what the candidates assume; they fail for different reasons, so their mean is safer
        than each of them.
    Minimises: nothing itself. It trains candidates, averages their calibrated predictions, smooths
        these over mutual nearest neighbours, and trains one network on the resulting soft labels.
        If that network looks harmful without target labels, source-only is saved.
    Cites: G. Hinton, O. Vinyals, J. Dean, Distilling the knowledge in a neural network, 2015;
        D. Zhou et al., Learning with local and global consistency, NIPS 2003.
    Use when: you want a good network and do not know which method suits the data.
    """

    id = "auto"
    runner: ClassVar[str] = "askew.adaptation.bench:run_auto"

    fine_tune: bool = True
    """Whether a pre-trained backbone is fine-tuned, or only embeds the images."""
