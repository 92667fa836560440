"""Office-Home (Venkateswara et al., CVPR 2017) as in the paper: Real World, Product and Clipart, 65
classes.

`<data>/office_home/<Domain>/<Class>/*.jpg`. Art is left out, as in the paper: too small to draw
from.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from askew.data.benchmarks.image_trees import DataSet, load_pair
from askew.data.task import Info, Shift, Task

OFFICE_HOME = DataSet(
    name="office-home",
    folders=("office_home", "OfficeHomeDataset_10072016"),
    domains={"rw": ("Real World",), "pr": ("Product",), "cl": ("Clipart",)},
    classes=65,
    lists=True,
)

TASKS = {
    f"{s}-{t}": Info(source=s, target=t, network="resnet50")
    for s, t in permutations(("rw", "pr", "cl"), 2)
}


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark under a label shift; see `load_pair` for what is scored."""
    return load_pair(OFFICE_HOME, name, TASKS[name], shift, draw, data)
