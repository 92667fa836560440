"""The mini benchmark: handwritten digits (scikit-learn's) and rendered ones; nothing to
download."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from askew.data import label_shift
from askew.data.benchmarks.digits import CLASSES, halves, shaped, syn_pool, uci
from askew.data.task import Info, Pool, Shift, Task, make_task

SYN_SIZE = 1_000
"""Rendered digits per class to draw from."""
SYN_TEST_SIZE = 100
"""Rendered digits per class to score on."""

UCI_BOX = 24
"""Height of a handwritten digit in its 32 x 32 frame: as tall as most rendered ones."""

TASKS = {
    "syn-uci": Info(source="syn", target="uci", network="mini", draws_differ=True),
    "uci-syn": Info(source="uci", target="syn", network="mini", draws_differ=True),
}


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark under a label shift; `data` is not needed."""
    rendered = syn_pool(SYN_SIZE, seed=draw)
    written = shaped(uci(box=UCI_BOX, size=32), 32, 3)
    if TASKS[name].source == "syn":
        adapt, test = halves(written, seed=draw)
        source, target = rendered, Pool.of(adapt, len(CLASSES))
    else:
        source, target = Pool.of(written, len(CLASSES)), rendered
        # Another seed, so that no test image is adapted on.
        test = syn_pool(SYN_TEST_SIZE, seed=draw + 1_000_000).images(
            np.full(len(CLASSES), SYN_TEST_SIZE)
        )
    return make_task(
        f"mini/{name}", CLASSES, label_shift.DIGITS_TAIL, shift, draw, source, target, test
    )
