"""PACS (Li et al., ICCV 2017), not in the paper: photo, art painting, cartoon and sketch, 7
classes.

`<data>/pacs/<domain>/<class>/*.jpg`. The protocol does not cover PACS; it is treated like
Office-Home: the same tail (shape 100 from 1 to 5, about 5 : 1) over classes in alphabetical order,
and no test split. `natural` takes all images of both domains, whose label distributions differ by
themselves.
"""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

from askew.data.benchmarks.image_trees import DataSet, load_pair
from askew.data.task import Info, Shift, Task

PACS = DataSet(
    name="pacs",
    folders=("pacs",),
    domains={
        "photo": ("photo",),
        "art_painting": ("art_painting", "art"),
        "cartoon": ("cartoon",),
        "sketch": ("sketch",),
    },
    classes=7,
)

REPORTED = ("photo-sketch", "cartoon-photo", "sketch-photo", "photo-cartoon")
"""The pairs that tables report; settings are chosen on the eight others."""
TASKS = {
    f"{s}-{t}": Info(
        source=s,
        target=t,
        network="resnet50",
        role="reported" if f"{s}-{t}" in REPORTED else "development",
    )
    for s, t in permutations(PACS.domains, 2)
}


def load(name: str, shift: Shift, draw: int, data: Path | None) -> Task:
    """A task of this benchmark under a label shift; see `load_pair` for what is scored."""
    return load_pair(PACS, name, TASKS[name], shift, draw, data)
