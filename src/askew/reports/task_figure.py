"""A task on one page: samples of both domains, and their class mixes beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.data.domains import Rows
from askew.data.label_distribution import LabelDistributions
from askew.data.task import Task

_COLUMNS = 10  # classes that samples are shown of
_ROWS = 2  # samples a class and domain
_BLUE, _ORANGE = "#0072B2", "#E69F00"  # of Okabe and Ito, told apart by everybody


def check_format(path: Path) -> None:
    """UserError before anything is computed, if the figure cannot be written there."""
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UserError(f"A figure cannot be written as '{path.name}'.", "name a .png, .svg or .pdf file.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"The folder {path.absolute().parent} does not exist.", "name a file in a folder that does.")


def _sheet(x: Rows, y: NDArray[np.int64], classes: list[int]) -> NDArray[np.uint8]:
    """Samples as one picture, a column a class. (rows·h, columns·w, 3)"""
    side = int(x.shape[2])
    sheet = np.full((_ROWS * side, len(classes) * side, 3), 255, dtype=np.uint8)
    for column, k in enumerate(classes):
        for row, index in enumerate(np.flatnonzero(y == k)[:_ROWS].tolist()):
            image = np.asarray(x[index]).transpose(1, 2, 0)
            sheet[row * side : (row + 1) * side, column * side : (column + 1) * side] = image
    return sheet


def task_figure(task: Task, path: Path) -> None:
    """Write the figure; its target samples are of the exam, so it is for looking only."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from askew.core.files import whole_file

    check_format(path)
    mixes, training_data = LabelDistributions.of(task), task.training_data
    c = len(mixes.classes)
    shown = np.unique(np.linspace(0, c - 1, min(c, _COLUMNS)).astype(int)).tolist()
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(3, 1, height_ratios=(2, 2, 3))
    samples = (
        (training_data.source.x, training_data.source.y, "source"),
        (training_data.test_images.x, task.test_labels.y, "target"),
    )
    for ax, (x, y, domain) in zip(axes[:2], samples, strict=True):
        if x.ndim == 4:
            side = int(x.shape[2])
            ax.imshow(_sheet(x, y, shown), aspect="equal")
            names = [_short(mixes.classes[k]) for k in shown]
            ax.set_xticks([(i + 0.5) * side for i in range(len(shown))], names, fontsize=8)
        ax.set_yticks([])
        ax.tick_params(length=0)
        ax.set_ylabel(domain)
        ax.spines[:].set_visible(False)
    bars, at = axes[2], np.arange(c)
    for sizes, colour, domain, side_step in (
        (mixes.source, _BLUE, "source", -0.2),
        (mixes.target, _ORANGE, "target", 0.2),
    ):
        bars.bar(
            at + side_step, 100 * sizes / sizes.sum(), 0.4, color=colour, label=f"{domain}, {sizes.sum():,} images"
        )
    crowded = c > 12
    bars.set_xticks(at, mixes.classes, rotation=90 if crowded else 0, fontsize=6 if c > 30 else 9)
    bars.set_ylabel("share of the images, %")
    bars.legend(frameon=False)
    bars.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{task.name}: the class mixes are {mixes.distance:.2f} apart (Jensen–Shannon, 0 to 1)")
    with whole_file(path.absolute(), "choose another file.") as temporary:
        # Neither time nor chance in it: the same task gives the same file.
        form = path.suffix.lower()[1:]
        stamp = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}[form]
        with rc_context({"svg.hashsalt": task.name}):
            figure.savefig(temporary, format=form, dpi=150, metadata={stamp: None})


def _short(name: str) -> str:
    return name if len(name) <= 11 else f"{name[:10]}…"
