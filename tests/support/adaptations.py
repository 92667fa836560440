"""Adaptations that take seconds: how long they train, and the way to their end."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import torch

from askew.runs.execute import Progress

CPU = torch.device("cpu")
LENGTH = {"pretrain": 30, "rounds": 2, "round": 15, "batch": 16}

Done = TypeVar("Done")


def finish(work: Generator[Progress, None, Done]) -> Done:
    while True:
        try:
            next(work)
        except StopIteration as end:
            done: Done = end.value
            return done
