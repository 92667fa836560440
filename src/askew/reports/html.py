"""Web pages from Jinja2 templates: values for their tables and charts, and the page around them.

Autoescape is on: every value is escaped, but for SVG, which svg.py escapes itself. The page's
policy lets no script run but its own, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from askew import __version__
from askew.evaluation.metrics import mean
from askew.reports import svg
from askew.reports.results import flatten, std


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A number in a table."""

    text: str
    key: str
    """What its column is sorted by; empty: last."""
    heat: float | None = None
    """How full its background is, from 0 to 100."""
    after: str = ""
    """Beside it, such as its standard deviation."""
    paper: str = ""
    """The paper's number, below it."""
    kind: str = ""
    """Marks: `best` of its column, `below` source-only."""


MISSING = Cell(text="–", key="")
Cells = list[str | Cell]
"""A row of a table: its name, then numbers and texts."""


@dataclass(frozen=True)
class Table:
    """A table that a click on a heading sorts."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Cells]
    kind: str = ""

    def is_text(self, column: int) -> bool:
        return all(isinstance(row[column], str) for row in self.rows)


@dataclass(frozen=True)
class Chart:
    """A drawing with a note below it, and what its colours stand for."""

    drawing: Markup
    note: str
    legend: Mapping[str, str] = field(default_factory=dict)


def number(value: float | None, digits: int = 2, *, heat: bool = False) -> Cell:
    return (
        MISSING
        if value is None
        else Cell(text=f"{value:.{digits}f}", key=f"{value:.4f}", heat=value if heat else None)
    )


def interval(low: float, high: float) -> Cell:
    """Sorted by its lower end."""
    return Cell(text=f"{low:.1f} – {high:.1f}", key=f"{low:.4f}")


def mean_cell(
    values: Sequence[float], *, after: str = "", paper: float | None = None, kind: str = ""
) -> Cell:
    """Mean ± standard deviation over seeds, and the paper's number below it."""
    beside = "" if paper is None else f"{paper:.2f}"
    if not values:
        return Cell(text="–", key="", paper=beside)
    s = std(values)
    off = "" if s is None else f"± {s:.2f}"
    return Cell(
        text=f"{mean(values):.2f}",
        key=f"{mean(values):.4f}",
        after=f"{off} {after}".strip(),
        paper=beside,
        kind=kind,
    )


def settings_table(run: Mapping[str, Any]) -> Table:
    """A run's settings by their dotted names."""
    rows: list[Cells] = [
        [name, json.dumps(value, ensure_ascii=False)] for name, value in flatten(dict(run)).items()
    ]
    return Table("Settings", ["setting", "value"], rows)


def training_curves(traces: Sequence[Sequence[Mapping[str, Any]]]) -> list[Chart]:
    """Each loss over the steps, one curve per seed; and the per-class mean accuracy where it was
    computed."""
    names = dict.fromkeys(name for trace in traces for entry in trace for name in entry["losses"])
    charts = [
        _curve(
            [
                [(e["step"], e["losses"][name]) for e in trace if name in e["losses"]]
                for trace in traces
            ],
            f"loss: {name}",
            "c0",
        )
        for name in names
    ]
    scored = [
        [(e["step"], e["oracle"]["whole"]) for e in trace if "oracle" in e] for trace in traces
    ]
    return charts + (
        [_curve(scored, "per-class mean accuracy, % (uses test labels)", "c1")]
        if any(scored)
        else []
    )


def _curve(lines: Sequence[svg.Points], what: str, kind: str) -> Chart:
    lines = [line for line in lines if line]
    first, last = (svg.short(mean([line[end][1] for line in lines])) for end in (0, -1))
    note = f"{what}, {first} → {last}"
    return Chart(svg.sparkline(lines, note, kind=kind), note)


def render(template: str, title: str, facts: Mapping[str, str], **values: Any) -> str:
    """A whole page by one of the templates."""
    script = (resources.files("askew.reports") / "templates" / "page.js").read_text(
        encoding="utf-8"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(
        loader=PackageLoader("askew.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        title=title,
        facts=facts,
        version=__version__,
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        **values,
    )
