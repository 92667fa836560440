"""Small charts as inline SVG; their colours are the page's, so that they follow its light or dark
theme.

Every text goes through `Markup.format`, which escapes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from unicodedata import east_asian_width

from markupsafe import Markup

Points = Sequence[tuple[float, float]]

_LINE = Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>')
_DOT = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}</title></circle>')
_BAR = Markup(
    '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>'
)
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>')
_SLANTED = Markup(
    '<text class="tick" text-anchor="end" transform="translate({:.1f} {:.1f}) rotate(-40)">{}</text>'
)
_CURVE = Markup('<polyline class="{}" points="{}"/>')
_SVG = Markup(
    '<svg class="{kind}" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img" '
    'aria-label="{label}">{content}</svg>'
)


def _svg(width: float, height: float, label: str, parts: Sequence[Markup], kind: str) -> Markup:
    return _SVG.format(
        kind=kind, width=width, height=height, label=label, content=Markup("").join(parts)
    )


def _name(x: float, y: float, name: str, anchor: str, most: int) -> Markup:
    """A name beside what it names; one that is longer than `most` is cut, and whole when it is
    pointed at."""
    text = _TEXT.format(x, y, anchor, "name", clip(name, most))
    return (
        text if columns(name) <= most else Markup("<g><title>{}</title>{}</g>").format(name, text)
    )


def _polyline(kind: str, points: Points) -> Markup:
    return _CURVE.format(kind, " ".join(f"{x:.1f},{y:.1f}" for x, y in points))


def columns(name: str) -> int:
    """How many narrow letters are as wide as a name: East Asian ones count twice."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in name)


def clip(name: str, most: int) -> str:
    """A name that is at most as wide as so many narrow letters."""
    if columns(name) <= most:
        return name
    while columns(name) > most - 1:
        name = name[:-1]
    return f"{name.rstrip()}…"


def short(number: float) -> str:
    """Three significant digits."""
    return f"{number:.3g}"


def bars(series: Mapping[str, Sequence[float]], names: Sequence[str], label: str) -> Markup:
    """One group of bars per name, one bar per series."""
    group = max(18.0, min(64.0, 620 / max(len(names), 1)))
    slanted = any(columns(name) > 0.16 * group for name in names)
    longest = max((columns(clip(name, 22)) for name in names), default=0)
    left = max(34.0, 4.4 * longest - group / 2 + 6) if slanted else 34.0
    top, height, bottom = 8.0, 150.0, 16 + 4.0 * longest if slanted else 20.0
    width = left + group * len(names) + 6
    highest = max((value for values in series.values() for value in values), default=0.0) or 1.0
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = top + height * (1 - share)
        parts.append(_LINE.format("rule", left, width, y, y))
        parts.append(_TEXT.format(left - 5, y + 3.5, "end", "tick", short(highest * share)))
    wide = 0.78 * group / max(len(series), 1)
    for s, (what, values) in enumerate(series.items()):
        for i, (name, value) in enumerate(zip(names, values, strict=True)):
            x, h = left + group * i + 0.11 * group + wide * s, height * value / highest
            tip = f"{what}, {name}: {short(value)}"
            parts.append(_BAR.format(f"c{s % 6}", x, top + height - h, max(wide - 1, 1), h, tip))
    for i, name in enumerate(names):
        x, y = left + group * (i + 0.5), top + height + 14
        text = (
            _SLANTED.format(x + 3, y - 4, clip(name, 22))
            if slanted
            else _TEXT.format(x, y, "middle", "tick", name)
        )
        parts.append(text)
    return _svg(width, top + height + bottom, label, parts, "bars")


def sparkline(lines: Sequence[Points], label: str, *, kind: str = "c0") -> Markup:
    """One curve per seed on a common scale: lowest and highest value at the left, the last step at
    the right."""
    width, height, left, right, edge = 200.0, 64.0, 52.0, 6.0, 8.0
    xs = [x for line in lines for x, _ in line]
    ys = [y for line in lines for _, y in line]
    low, high, first, last = min(ys), max(ys), min(xs), max(xs)
    flat = high - low < 1e-12
    parts = [_LINE.format("rule", left, width - right, height - edge, height - edge)]
    parts.append(_TEXT.format(left - 5, height - edge + 3.5, "end", "tick", short(low)))
    if not flat:
        parts.append(_TEXT.format(left - 5, edge + 3.5, "end", "tick", short(high)))
    for i, line in enumerate(lines):
        places = [
            (
                left + (width - left - right) * (x - first) / max(last - first, 1),
                height - edge - (height - 2 * edge) * (0.0 if flat else (y - low) / (high - low)),
            )
            for x, y in line
        ]
        if len(places) == 1:
            parts.append(_DOT.format(kind, *places[0], 2.5, short(line[0][1])))
        parts.append(_polyline(f"{kind} seed{i % 3}", places))
    return _svg(width, height, label, parts, "spark")


def curves(ours: Mapping[str, Points], paper: Mapping[str, Points], label: str) -> Markup:
    """Lines over 0 … 1, each named at its right end; the paper's points are rings, with no line
    between them."""
    width, height, left, right, edge = 640.0, 300.0, 40.0, 150.0, 14.0
    ys = [y for lines in (ours, paper) for line in lines.values() for _, y in line]
    low, high = max(0.0, min(ys) - 2), min(100.0, max(ys) + 2)
    base = height - 26

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (width - left - right) * x, base - (base - edge) * (y - low) / max(
            high - low, 1e-9
        )

    parts = []
    for share in (0.0, 0.5, 1.0):
        x, y = place(share, low + (high - low) * share)
        parts.append(_LINE.format("rule", left, width - right, y, y))
        parts.append(
            _TEXT.format(left - 6, y + 4, "end", "tick", f"{low + (high - low) * share:.0f}")
        )
        parts.append(_TEXT.format(x, base + 16, "middle", "tick", short(share)))
    ends: list[float] = []
    for i, name in enumerate(dict.fromkeys([*ours, *paper])):
        parts.append(_polyline(f"l{i % 6}", [place(*point) for point in ours.get(name, ())]))
        for kind, points, after in ((f"c{i % 6}", ours, ""), (f"ring l{i % 6}", paper, ", paper")):
            for point in points.get(name, ()):
                parts.append(
                    _DOT.format(kind, *place(*point), 4.5, f"{name}{after}: {point[1]:.2f}")
                )
        x, y = place(*(ours.get(name) or paper[name])[-1])
        while any(
            abs(y - other) < 13 for other in ends
        ):  # names that would cover each other move down
            y += 3
        ends.append(y)
        parts.append(_name(x + 10, y + 4, name, "start", 20))
    return _svg(width, max(height, max(ends, default=0.0) + 10), label, parts, "curves")


def dots(
    rows: Sequence[tuple[str, float | None, float | None, float | None]],
    line: float | None,
    label: str,
) -> Markup:
    """One row for each (name, value, std, paper): a dot with its std, a ring for the paper; `line`
    is upright."""
    known = [v for _, value, _, paper in rows for v in (value, paper) if v is not None]
    known += [
        value + side * off
        for _, value, off, _ in rows
        if value is not None and off
        for side in (-1, 1)
    ]
    low, high = (max(0.0, min(known) - 2), min(100.0, max(known) + 2)) if known else (0.0, 100.0)
    left = _margin([name for name, *_ in rows], 36)
    width, step, top = left + 400, 22.0, 10.0
    base = top + step * len(rows) + 4

    def place(value: float) -> float:
        return left + (width - left - 14) * (min(max(value, low), high) - low) / max(
            high - low, 1e-9
        )

    parts = [_LINE.format("rule", left, width, base, base)]
    apart = next((s for s in (1, 2, 5, 10) if (high - low) / s <= 7), 20)
    for at in range(math.ceil(low / apart) * apart, math.floor(high) + 1, apart):
        parts.append(_TEXT.format(place(at), base + 14, "middle", "tick", at))
    if line is not None:
        parts.append(_LINE.format("mark", place(line), place(line), top - 6, base))
    for i, (name, value, off, paper) in enumerate(rows):
        y = top + step * (i + 0.5)
        parts.append(_name(left - 10, y + 4, name, "end", 36))
        parts.append(_LINE.format("rule", left, width, y, y))
        if value is not None:
            if off:
                parts.append(_LINE.format("whisker", place(value - off), place(value + off), y, y))
            parts.append(_DOT.format("c0", place(value), y, 4.5, f"{name}: {value:.2f}"))
        if paper is not None:
            parts.append(_DOT.format("ring", place(paper), y, 4.5, f"{name}, paper: {paper:.2f}"))
    return _svg(width, base + 22, label, parts, "dots")


def _margin(names: Sequence[str], most: int) -> float:
    """Room for the longest of these names, at the left of a chart."""
    return 14 + 6.9 * max((min(columns(name), most) for name in names), default=0)


def ranges(rows: Sequence[tuple[str, float, float, float, float]], label: str) -> Markup:
    """One row for each (name, source, target, low, high) in per cent: a ring, a dot, and the dot's
    interval."""
    most = max((max(source, high) for _, source, _, _, high in rows), default=1.0)
    highest = next(
        (top for top in (2.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 80.0) if most <= top), 100.0
    )
    left = _margin([name for name, *_ in rows], 30)
    width, step, top = left + 400, 22.0, 6.0
    base = top + step * len(rows)

    def place(value: float) -> float:
        return left + (width - left - 30) * min(max(value, 0.0), highest) / highest

    parts = []
    for share in (0.0, 0.5, 1.0):
        x = place(highest * share)
        parts.append(_LINE.format("rule", x, x, top, base))
        parts.append(_TEXT.format(x, base + 14, "middle", "tick", f"{short(highest * share)} %"))
    for i, (name, source, target, low, high) in enumerate(rows):
        y = top + step * (i + 0.5)
        parts.append(_name(left - 10, y + 4, name, "end", 30))
        parts.append(_LINE.format("range", place(low), place(high), y, y))
        parts.append(
            _DOT.format("ring l0", place(source), y, 4.5, f"{name}, source: {source:.1f} %")
        )
        tip = f"{name}, target: {target:.1f} % ({low:.1f} to {high:.1f})"
        parts.append(_DOT.format("c1", place(target), y, 4.5, tip))
    return _svg(width, base + 22, label, parts, "ranges")


def scatter(groups: Mapping[str, Sequence[tuple[float, float, str]]], label: str) -> Markup:
    """Points (x, y, tip) of a few groups, one colour for each; the axes have no meaning and are
    left out."""
    side, edge = 360.0, 10.0
    points = [(x, y) for group in groups.values() for x, y, _ in group]
    low = [min(axis) for axis in zip(*points, strict=True)]
    span = [max(max(axis) - min(axis), 1e-9) for axis in zip(*points, strict=True)]
    parts = []
    for i, group in enumerate(groups.values()):
        for x, y, tip in group:
            at = [
                edge + (side - 2 * edge) * (v - a) / s
                for v, a, s in zip((x, y), low, span, strict=True)
            ]
            parts.append(_DOT.format(f"c{i % 6} point", at[0], side - at[1], 2.6, tip))
    return _svg(side, side, label, parts, "map")
