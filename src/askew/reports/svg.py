"""Small charts as inline SVG; their colours are the page's, so that they follow its light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]


def _svg(width: float, height: float, label: str, content: str, kind: str) -> str:
    name = escape(label, quote=True)
    return (
        f'<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{name}">{content}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def _dot(kind: str, x: float, y: float, tip: str) -> str:
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{escape(tip)}</title></circle>'


def short(number: float) -> str:
    """Three significant digits, as a chart's axis names it."""
    return f"{number:.3g}"


def bars(series: Mapping[str, Sequence[float]], names: Sequence[str], label: str) -> str:
    """Groups of bars, one a name; values in per cent of their own sum are the caller's work."""
    group = max(18.0, min(64.0, 620 / max(len(names), 1)))
    left, top, height, bottom = 34.0, 8.0, 150.0, 34.0
    width = left + group * len(names) + 6
    highest = max((value for values in series.values() for value in values), default=0.0) or 1.0
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        parts.append(f'<line class="rule" x1="{left}" x2="{width:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 5, y + 3.5, short(highest * share), "end", "tick"))
    wide = 0.78 * group / max(len(series), 1)
    for s, (what, values) in enumerate(series.items()):
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            x, h = left + group * i + 0.11 * group + wide * s, height * value / highest
            tip = escape(f"{what}, {name}: {short(value)}")
            parts.append(
                f'<rect class="c{s % 6}" x="{x:.1f}" y="{top + height - h:.1f}" width="{max(wide - 1, 1):.1f}" '
                f'height="{h:.1f}"><title>{tip}</title></rect>'
            )
    turned = any(len(name) > 0.16 * group for name in names)
    for i, name in enumerate(names):
        x, y = left + group * (i + 0.5), top + height + 14
        if turned:
            parts.append(
                f'<text class="tick" text-anchor="end" transform="translate({x + 3:.1f} {y - 4:.1f}) rotate(-40)">'
                f"{escape(name if len(name) < 14 else name[:12] + '…')}</text>"
            )
        else:
            parts.append(_text(x, y, name, "middle", "tick"))
    return _svg(width, top + height + (bottom + 30 if turned else bottom - 14), label, "".join(parts), "bars")


def sparkline(lines: Sequence[Points], label: str, *, kind: str = "c0") -> str:
    """One curve a seed, on a common scale: lowest and highest value at the left, the last step at the right."""
    width, height, left, right, edge = 200.0, 64.0, 52.0, 6.0, 8.0
    xs = [x for line in lines for x, _ in line]
    ys = [y for line in lines for _, y in line]
    low, high, first, last = min(ys), max(ys), min(xs), max(xs)
    flat = high - low < 1e-12
    parts = [f'<line class="rule" x1="{left}" x2="{width - right}" y1="{height - edge}" y2="{height - edge}"/>']
    for value, y in ((high, edge + 3.5), (low, height - edge + 3.5)):
        if not (flat and value == high and y < height / 2):
            parts.append(_text(left - 5, y, short(value), "end", "tick"))
    for i, line in enumerate(lines):
        places = [
            (
                left + (width - left - right) * (x - first) / max(last - first, 1),
                height - edge - (height - 2 * edge) * (0.0 if flat else (y - low) / (high - low)),
            )
            for x, y in line
        ]
        if len(places) == 1:
            parts.append(f'<circle class="{kind}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="2.5"/>')
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="{kind} seed{i % 3}" points="{shape}"/>')
    return _svg(width, height, label, "".join(parts), "spark")


def curves(ours: Mapping[str, Points], paper: Mapping[str, Points], label: str) -> str:
    """Lines over 0 … 1, each named at its right end; the paper's points are rings, with no line between them."""
    width, height, left, right, edge = 640.0, 300.0, 40.0, 150.0, 14.0
    ys = [y for lines in (ours, paper) for line in lines.values() for _, y in line]
    low, high = max(0.0, min(ys) - 2), min(100.0, max(ys) + 2)
    base = height - 26

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (width - left - right) * x, base - (base - edge) * (y - low) / max(high - low, 1e-9)

    parts = []
    for share in (0.0, 0.5, 1.0):
        x, y = place(share, low + (high - low) * share)
        parts.append(f'<line class="rule" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(left - 6, y + 4, f"{low + (high - low) * share:.0f}", "end", "tick"))
        parts.append(_text(x, base + 16, short(share), "middle", "tick"))
    names = list(dict.fromkeys([*ours, *paper]))
    ends: list[float] = []
    for i, name in enumerate(names):
        line = [place(*point) for point in ours.get(name, ())]
        shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        parts.append(f'<polyline class="l{i % 6}" points="{shape}"/>')
        for kind, points, after in ((f"c{i % 6}", ours, ""), (f"ring l{i % 6}", paper, ", paper")):
            for point in points.get(name, ()):
                parts.append(_dot(kind, *place(*point), f"{name}{after}: {point[1]:.2f}"))
        x, y = place(*(ours.get(name) or paper[name])[-1])
        while any(abs(y - other) < 13 for other in ends):  # names that would cover each other move down
            y += 3
        ends.append(y)
        parts.append(_text(x + 10, y + 4, name if len(name) <= 20 else name[:18] + "…", "start", "name"))
    return _svg(width, max(height, max(ends, default=0.0) + 10), label, "".join(parts), "curves")


def dots(rows: Sequence[tuple[str, float | None, float | None, float | None]], line: float | None, label: str) -> str:
    """A row each of (name, value, spread, paper): a dot with its spread, a ring for the paper; `line` is upright."""
    known = [v for _, value, _, paper in rows for v in (value, paper) if v is not None]
    known += [value + side * off for _, value, off, _ in rows if value is not None and off for side in (-1, 1)]
    low, high = (max(0.0, min(known) - 2), min(100.0, max(known) + 2)) if known else (0.0, 100.0)
    left = 14 + 6.6 * min(max((len(name) for name, *_ in rows), default=0), 36)
    width, step, top = left + 400, 22.0, 10.0
    height = top + step * len(rows) + 26

    def place(value: float) -> float:
        return left + (width - left - 14) * (min(max(value, low), high) - low) / max(high - low, 1e-9)

    base = height - 22
    parts = [f'<line class="rule" x1="{left:.1f}" x2="{width:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>']
    step_of = next((s for s in (1, 2, 5, 10) if (high - low) / s <= 7), 20)
    for at in range(math.ceil(low / step_of) * step_of, math.floor(high) + 1, step_of):
        parts.append(_text(place(at), base + 14, str(at), "middle", "tick"))
    if line is not None:
        x = place(line)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6}" y2="{base:.1f}"/>')
    for i, (name, value, off, paper) in enumerate(rows):
        y = top + step * (i + 0.5)
        shown = name if len(name) <= 36 else name[:34] + "…"
        parts.append(_text(left - 10, y + 4, shown, "end", "name"))
        parts.append(f'<line class="rule" x1="{left:.1f}" x2="{width:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if value is not None:
            if off:
                x1, x2 = place(value - off), place(value + off)
                parts.append(f'<line class="whisker" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(_dot("c0", place(value), y, f"{name}: {value:.2f}"))
        if paper is not None:
            parts.append(_dot("ring", place(paper), y, f"{name}, paper: {paper:.2f}"))
    return _svg(width, height, label, "".join(parts), "dots")


def ranges(rows: Sequence[tuple[str, float, float, float, float]], label: str) -> str:
    """A row each of (name, before, value, low, high) in per cent: a ring before, a dot now, and its interval."""
    most = max((max(before, high) for _, before, _, _, high in rows), default=1.0)
    highest = next((top for top in (2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0) if most <= top), 100.0)
    left = 14 + 6.6 * min(max((len(name) for name, *_ in rows), default=0), 30)
    width, step, top = left + 460, 22.0, 6.0
    base = top + step * len(rows)

    def place(value: float) -> float:
        return left + (width - left - 30) * min(max(value, 0.0), highest) / highest

    parts = []
    for share in (0.0, 0.5, 1.0):
        x = place(highest * share)
        parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{base:.1f}"/>')
        parts.append(_text(x, base + 14, f"{short(highest * share)} %", "middle", "tick"))
    for i, (name, before, value, low, high) in enumerate(rows):
        y = top + step * (i + 0.5)
        parts.append(_text(left - 10, y + 4, name if len(name) <= 30 else name[:28] + "…", "end", "name"))
        x1, x2 = place(low), place(high)
        parts.append(f'<line class="range" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_dot("ring", place(before), y, f"{name}, source: {before:.1f} %"))
        parts.append(_dot("c1", place(value), y, f"{name}, target: {value:.1f} % ({low:.1f} to {high:.1f})"))
    return _svg(width, base + 22, label, "".join(parts), "dots")


def scatter(groups: Mapping[str, Sequence[tuple[float, float, str]]], label: str) -> str:
    """Points (x, y, what they are) of a few groups, a colour each; axes mean nothing and are left out."""
    side, edge = 360.0, 10.0
    points = [(x, y) for group in groups.values() for x, y, _ in group]
    low = [min(axis) for axis in zip(*points, strict=True)]
    span = [max(max(axis) - min(axis), 1e-9) for axis in zip(*points, strict=True)]
    parts = []
    for i, group in enumerate(groups.values()):
        for x, y, tip in group:
            at = [edge + (side - 2 * edge) * (v - a) / s for v, a, s in zip((x, y), low, span, strict=True)]
            parts.append(
                f'<circle class="c{i % 6} point" cx="{at[0]:.1f}" cy="{side - at[1]:.1f}" r="2.6">'
                f"<title>{escape(tip)}</title></circle>"
            )
    return _svg(side, side, label, "".join(parts), "map")
