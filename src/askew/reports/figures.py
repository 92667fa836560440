"""Figures of results as PNG, SVG or PDF: features, accuracy by class and by degree of label
shift."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import check_file, write_bytes
from askew.evaluation.metrics import mean
from askew.reports.features import Features
from askew.reports.paper import degree_curve, degree_of
from askew.reports.results import Row, std

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, which stay apart for colour-blind eyes.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#b8a800",
    "#000000",
)
COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, YELLOW, BLACK)
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "svg.hashsalt": "askew",
    "text.parse_math": False,  # a name may hold a dollar sign
}
styled = mpl.rc_context(STYLE)


def check_figure(path: Path) -> Path:
    """UserError if a figure cannot be written there; writes nothing."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"Cannot write a figure as '{path.name}'.", f"end its name in {', '.join(SUFFIXES)}."
        )
    check_file(path)
    return path


@styled
def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format of its suffix, whole or not at all; the same figure is the
    same file."""
    content = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    stamp = {"png": "Software", "svg": "Date", "pdf": "CreationDate"}[kind]
    figure.savefig(content, format=kind, dpi=160, bbox_inches="tight", metadata={stamp: None})
    write_bytes(path, content.getvalue())


def panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> tuple[Figure, NDArray[Any]]:
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: NDArray[Any] = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def name_classes(ax: Axes, classes: Sequence[str]) -> None:
    every = max(1, len(classes) // 40)  # more names than that cannot be read
    turned = any(len(name) > 2 for name in classes)
    ax.set_xticks(
        range(0, len(classes), every), classes[::every], rotation=90 if turned else 0, fontsize=7
    )


def hide_rest(axes: NDArray[Any], used: int) -> None:
    for ax in axes.flat[used:]:
        ax.set_visible(False)


@styled
def by_degree(rows: Sequence[Row]) -> Figure:
    """Accuracy against the degree of label shift, one line per method; the paper's numbers are
    hollow."""
    curves: dict[tuple[str, str], dict[float, Row]] = {}
    for row in rows:
        degree = degree_of(str(row.run["shift"]))
        if degree is not None:
            curves.setdefault((row.task, row.line), {})[degree] = row
    tasks = list(dict.fromkeys(task for task, _ in curves))
    if not any(len(points) > 1 for points in curves.values()):
        raise UserError(
            "There are no runs under shifts of different degree here.",
            "askew bench benchmarks/grids/degrees.toml",
        )
    figure, axes = panels(1, len(tasks), 4.8, 3.4)
    for ax, task in zip(axes.flat, tasks, strict=True):
        labels = [label for its, label in curves if its == task]
        for colour, label in zip(_colours(len(labels)), labels, strict=True):
            points = sorted(curves[task, label].items())
            errors = [std(row.values) or 0.0 for _, row in points]
            means = [mean(row.values) for _, row in points]
            ax.errorbar(
                [d for d, _ in points],
                means,
                errors,
                color=colour,
                label=label,
                marker="o",
                ms=4,
                capsize=2,
            )
            paper = sorted(degree_curve(task).get(label, {}).items())
            if paper:
                # No line between them: the paper's text has the ends alone.
                ring = {
                    "color": colour,
                    "marker": "s",
                    "mfc": "white",
                    "ls": "",
                    "label": f"{label}, paper",
                }
                ax.plot([d for d, _ in paper], [value for _, value in paper], **ring)
        ax.set(
            title=task,
            xlabel="degree of label shift (1: RS-UT)",
            ylabel="per-class mean accuracy, %",
        )
        ax.legend(fontsize=7)
    return figure


def _colours(n: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


@styled
def by_class(
    rows: Sequence[Row], per_class: Mapping[str, Sequence[float | None]], classes: Sequence[str]
) -> Figure:
    """Accuracy by class, one panel per method; `per_class` by a row's label. Source-only is the
    mark in every panel."""
    columns = min(len(rows), 3)
    figure, axes = panels(-(-len(rows) // columns), columns, 3.2, 1.9, sharey=True, sharex=True)
    reference = next(
        (per_class[row.label] for row in rows if row.method == "source" and not row.reweighted),
        None,
    )
    places = np.arange(len(classes))
    for ax, row in zip(axes.flat, rows, strict=False):
        values = [np.nan if value is None else value for value in per_class[row.label]]
        ax.bar(places, values, 0.75, color=BLUE if row.method != "source" else SKY)
        if reference is not None and row.method != "source":
            marks = [np.nan if value is None else value for value in reference]
            ax.plot(places, marks, ls="", marker="_", ms=9, mew=2, color=RED, label="source-only")
        for place in np.flatnonzero(np.isnan(values)):
            ax.annotate("–", (place, 1), ha="center")  # it has no test image
        ax.set(title=f"{row.label}: {mean(row.values):.1f}", ylim=(0, 100))
        name_classes(ax, classes)
    hide_rest(axes, len(rows))
    axes[0, 0].set_ylabel("accuracy, %")
    figure.supxlabel(f"{rows[0].task}: class (red marks: source-only)", size=9)
    return figure


@styled
def feature_map(found: Mapping[str, Features], classes: Sequence[str], title: str) -> Figure:
    """t-SNE of several runs side by side: above by domain, below by class."""
    from sklearn.manifold import TSNE

    figure, axes = panels(2, len(found), 3.0, 3.0)
    for column, (name, features) in enumerate(found.items()):
        points = np.concatenate([features.source, features.target])
        perplexity = min(30.0, max(2.0, (len(points) - 1) / 4))
        where = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1).fit_transform(
            points
        )
        n = len(features.source)
        domain, by_label = axes[0, column], axes[1, column]
        domain.scatter(*where[:n].T, s=3, c=BLUE, label="source", lw=0, alpha=0.7)
        domain.scatter(*where[n:].T, s=3, c=ORANGE, label="target", lw=0, alpha=0.7)
        domain.set_title(name)
        colours = mpl.colormaps["tab10" if len(classes) <= 10 else "nipy_spectral"]
        shade = {"cmap": colours, "vmin": 0, "vmax": max(9, len(classes) - 1), "lw": 0, "s": 4}
        by_label.scatter(*where[:n].T, c=features.source_y, marker="o", alpha=0.45, **shade)
        drawn = by_label.scatter(*where[n:].T, c=features.target_y, marker="^", **shade | {"s": 8})
        for ax in (domain, by_label):
            ax.set(xticks=[], yticks=[])
    axes[0, 0].legend(loc="upper left", markerscale=3, fontsize=7)
    if len(classes) <= 12:
        swatches = [drawn.cmap(drawn.norm(k)) for k in range(len(classes))]
        for name, colour in zip(classes, swatches, strict=True):
            axes[1, -1].scatter([], [], color=colour, label=name)
        axes[1, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, title="class")
    axes[0, 0].set_ylabel("by domain")
    axes[1, 0].set_ylabel("by class (labels)")
    figure.suptitle(title, size=10)
    figure.supxlabel("t-SNE; triangles: target. Target labels only colour the points.", size=8)
    return figure
