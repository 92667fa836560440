"""Office-Home (Venkateswara et al., CVPR 2017): Real World, Product, Clipart, and Art.

`<data>/office_home/<Domain>/<Class>/*.jpg`. The paper leaves Art out, since it is too small to draw
from; its pairs are development tasks, which no table reports. Under a label shift Art is drawn by
the rule, since no lists of it were published.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from askew.data.benchmarks.image_trees import DataSet, load_pair
from askew.data.task import Info, Shift, Task

OFFICE_HOME = DataSet(
    name="office-home",
    folders=("office_home", "OfficeHomeDataset_10072016"),
    domains={"rw": ("Real World",), "pr": ("Product",), "cl": ("Clipart",), "ar": ("Art",)},
    classes=65,
    lists=True,
)

TASKS = {
    f"{s}-{t}": Info(
        source=s, target=t, network="resnet50", role="development" if "ar" in (s, t) else "reported"
    )
    for s, t in permutations(("rw", "pr", "cl", "ar"), 2)
}


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """Load a task of this benchmark under a label shift; see `load_pair` for what is scored."""
    return load_pair(OFFICE_HOME, name, TASKS[name], shift, draw, data)
