"""Charts: names of any length and content fit inside, and nothing is left out."""

from __future__ import annotations

import re

import pytest
from markupsafe import Markup

from askew.reports import svg

LONG = "Donaudampfschifffahrtsgesellschaftskapitänsmütze"
EVIL = "<script>alert(1)</script>\"'"
WIDE = "長" * 40
NAMES = ["a", LONG, EVIL, WIDE, *(f"class {k}" for k in range(28))]


def charts() -> dict[str, Markup]:
    values = [float(k) for k in range(len(NAMES))]
    return {
        "bars": svg.bars({"source": values, EVIL: values}, NAMES, EVIL),
        "dots": svg.dots([(name, 50.0, 1.0, 60.0) for name in NAMES], 40.0, EVIL),
        "ranges": svg.ranges([(name, 3.0, 2.0, 1.0, 99.0) for name in NAMES], EVIL),
        "curves": svg.curves({name: [(0.0, 50.0), (1.0, 60.0)] for name in NAMES}, {}, EVIL),
        "sparkline": svg.sparkline([[(0, 1.0), (1, 2.0)], [(0, 1.5)]], EVIL),
        "scatter": svg.scatter({EVIL: [(0.0, 1.0, EVIL), (1.0, 0.0, "b")]}, EVIL),
    }


@pytest.mark.parametrize("kind", charts())
def test_names_are_escaped(kind: str) -> None:
    assert "<script" not in charts()[kind]
    assert "alert(1)" in charts()[kind]


@pytest.mark.parametrize("kind", ["bars", "dots", "ranges", "curves"])
def test_every_name_is_there_and_a_long_one_is_cut_but_whole_when_pointed_at(kind: str) -> None:
    text = charts()[kind]
    assert all(f"class {k}<" in text for k in range(28))
    assert f">{LONG}<" not in text.replace(f"<title>{LONG}</title>", "")
    assert LONG in text


def test_names_of_wide_letters_fit_beside_their_bars() -> None:
    (place, shown) = re.findall(r'<text x="(\S+)" [^>]*class="name">(長+…)<', charts()["ranges"])[0]
    assert 13 * len(shown) <= float(place), "letters of thirteen pixels, from their end to the left"
    assert WIDE in charts()["ranges"], "whole when it is pointed at"


@pytest.mark.parametrize("kind", ["bars", "dots", "ranges"])
def test_bars_dots_and_lines_stay_inside(kind: str) -> None:
    text = charts()[kind]
    (width, height) = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', text)[0])
    across = re.findall(r' (?:x|x1|x2|cx)="([^"]+)"', text)
    down = re.findall(r' (?:y|y1|y2|cy)="([^"]+)"', text)
    assert all(0 <= float(x) <= width for x in across)
    assert all(0 <= float(y) <= height for y in down)
