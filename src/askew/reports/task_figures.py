"""Figures of tasks: label distributions, images, and random views of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from askew.core import random
from askew.core.errors import UserError
from askew.data.domains import Rows
from askew.data.label_distribution import LabelDistributions
from askew.data.task import Task, TrainingData
from askew.nets.augment import Views, make_view
from askew.reports.figures import BLUE, ORANGE, hide_rest, name_classes, panels, styled
from askew.reports.svg import clip

_MOST_CLASSES = 10  # columns of images that stay large enough to be seen


@styled
def label_distributions(tasks: Mapping[str, Task]) -> Figure:
    """The label distributions of source and target, one panel per task."""
    columns = min(len(tasks), 2)
    figure, axes = panels(-(-len(tasks) // columns), columns, 4.6, 2.4)
    for ax, (name, task) in zip(axes.flat, tasks.items(), strict=False):
        found = LabelDistributions.of(task)
        _draw_distributions(ax, found)
        ax.set(title=name, ylabel="% of images")
    hide_rest(axes, len(tasks))
    figure.supxlabel("target: by its labels, which no training uses", size=8)
    return figure


@styled
def sample_images(tasks: Mapping[str, Task]) -> Figure:
    """A few images of each class of source and target; the target's are sorted by their test
    labels."""
    for name, task in tasks.items():
        if task.training_data.source.x.ndim != 4:
            raise UserError(
                f"The task {name} has rows of numbers, not images.",
                "`askew figure mix` works for it.",
            )
    figure, axes = panels(len(tasks), 2, 4.4, 1.9)
    for row, (name, task) in zip(axes, tasks.items(), strict=True):
        shown = range(min(_MOST_CLASSES, len(task.training_data.classes)))
        for ax, (domain, images) in zip(row, _domains(task).items(), strict=True):
            ax.imshow(_mosaic(*images, shown, 4), interpolation="nearest")
            ax.set_title(f"{name}, {domain}", fontsize=9)
            ax.axis("off")
    figure.supxlabel("target sorted by its test labels, which no training uses", size=8)
    return figure


@styled
def task_overview(task: Task) -> Figure:
    """A task on one page: images of both domains, where it has images, and their label
    distributions."""
    found = LabelDistributions.of(task)
    classes = found.classes
    pictured = task.training_data.source.x.ndim == 4
    shown = np.unique(
        np.linspace(0, len(classes) - 1, min(len(classes), _MOST_CLASSES)).astype(int)
    ).tolist()
    heights = (2, 2, 3) if pictured else (3,)
    figure = Figure(figsize=(9, sum(heights)), layout="constrained")
    *pictures, bars = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False).flat
    for ax, (domain, images) in zip(pictures, _domains(task).items(), strict=False):
        _draw_columns(ax, _mosaic(*images, shown, 2), [clip(classes[k], 11) for k in shown], domain)
    _draw_distributions(bars, found)
    bars.set_ylabel("% of images")
    figure.suptitle(
        f"{task.name}: Jensen–Shannon distance of the label distributions {found.distance:.2f}",
        size=11,
    )
    return figure


def _domains(task: Task) -> dict[str, tuple[Rows, NDArray[np.int64]]]:
    """Images and labels of both domains; the target's are test images, so they are for looking
    only."""
    training_data = task.training_data
    source, target = training_data.source, training_data.test_images
    return {"source": (source.x, source.y), "target": (target.x, task.test_labels.y)}


def _draw_distributions(ax: Axes, found: LabelDistributions) -> None:
    places = np.arange(len(found.classes))
    for side, domain, counts, colour in (
        (-0.2, "source", found.source, BLUE),
        (0.2, "target", found.target, ORANGE),
    ):
        label = f"{domain}, {counts.sum():,} images"
        ax.bar(places + side, 100 * counts / max(counts.sum(), 1), 0.4, color=colour, label=label)
    name_classes(ax, found.classes)
    ax.legend()


def _draw_columns(ax: Axes, picture: NDArray[np.uint8], names: Sequence[str], domain: str) -> None:
    """Columns of images, each with its name below it."""
    ax.imshow(picture, interpolation="nearest")
    width = picture.shape[1] / len(names)
    ax.set_xticks([(k + 0.5) * width for k in range(len(names))], names, fontsize=7)
    ax.set(yticks=[], ylabel=domain)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _mosaic(x: Rows, y: NDArray[np.int64], classes: Sequence[int], each: int) -> NDArray[np.uint8]:
    """One column per class, `each` images high; what a class lacks stays white."""
    return _tiled([x[np.flatnonzero(y == k)[:each]] for k in classes], each)


def _tiled(columns: Sequence[NDArray[np.uint8]], rows: int) -> NDArray[np.uint8]:
    """Columns of images with white lines between them. (n, c, h, w) each → (rows·(h + 1),
    columns·(w + 1), 3)"""
    channels, height, width = columns[0].shape[1:]
    picture = np.full((rows * (height + 1), len(columns) * (width + 1), 3), 255, np.uint8)
    for k, images in enumerate(columns):
        for i, image in enumerate(images):
            top, left = i * (height + 1), k * (width + 1)
            colours = image.transpose(1, 2, 0)
            picture[top : top + height, left : left + width] = (
                colours if channels == 3 else colours[..., :1]
            )
    return picture


# --- random views ---

SHEET_IMAGES, SHEET_VIEWS = 4, 7


@styled
def view_sheet(name: str, training_data: TrainingData, how: Views) -> Figure:
    """A few images of each domain as they are and, to the right of each, random views of it; uses
    no label."""
    if training_data.source.x.ndim != 4:
        raise UserError(
            f"The task {name} has rows of numbers, not images: there is no view to draw.",
            "see -t views.",
        )
    if how.views == "none":
        raise UserError(
            f"The settings of {name} have no random views.",
            "choose a kind, such as -t views=affine.",
        )
    figure, axes = panels(2, 1, 6.4, 3.4)
    domains = {"source": training_data.source.x, "target": training_data.target.x}
    for ax, (domain, x) in zip(axes.flat, domains.items(), strict=True):
        names = ["as it is", *(f"view {number}" for number in range(SHEET_VIEWS))]
        _draw_columns(ax, _with_views(x, domain, how), names, domain)
    figure.suptitle(name, size=10)
    figure.supxlabel(", ".join(f"{name} {value}" for name, value in how.describe().items()), size=7)
    return figure


def _with_views(x: Rows, domain: str, how: Views) -> NDArray[np.uint8]:
    """Images that are spread over the domain, and their views of full strength, with values cut to
    0 … 255."""
    rows = np.unique(np.linspace(0, len(x) - 1, SHEET_IMAGES).astype(np.int64))
    images = torch.from_numpy(np.ascontiguousarray(x[rows]))
    key = torch.tensor(random.key("view sheet"))
    columns = [images.float()]
    for number in range(SHEET_VIEWS):
        columns.append(
            make_view(images, random.bits(key, f"{domain} view {number}", len(rows)), how)
        )
    return _tiled([view.clamp(0, 255).byte().numpy() for view in columns], len(rows))
