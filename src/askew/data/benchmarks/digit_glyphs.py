"""The ten digits of 84 typefaces as small images, so that digits are rendered without any font or
font library.

`digit_glyphs.png` has one row per face with its digits side by side. `digit_glyphs.json` names the
faces with the packages and licences that they come from, and gives width, height, left, top and
advance of each digit. FreeType, whose versions draw outlines a little differently, was used once,
when these files were made.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

SHEET = Path(__file__).with_name("digit_glyphs.png")
INDEX = SHEET.with_suffix(".json")

LINE = 48
"""Height of a face's digits, in pixels."""


class Glyph(NamedTuple):
    """One digit of one face, white on black."""

    ink: Image.Image
    left: int
    """From the pen to the ink."""
    top: int
    """From the top of the line to the ink."""
    advance: float
    """From this digit's pen position to the next digit's."""


@lru_cache(maxsize=1)
def load_glyphs() -> tuple[tuple[Glyph, ...], ...]:
    """Ten glyphs per face; faces are in the order of their names, which a seed's choice of a face
    relies on."""
    index = json.loads(INDEX.read_text(encoding="utf-8"))
    with Image.open(SHEET, formats=("PNG",)) as sheet:
        sheet.load()
        return tuple(
            _face(sheet, row * index["row"], face["digits"])
            for row, face in enumerate(index["faces"])
        )


def _face(
    sheet: Image.Image, y: int, digits: list[tuple[int, int, int, int, float]]
) -> tuple[Glyph, ...]:
    glyphs, x = [], 0
    for width, height, left, top, advance in digits:
        glyphs.append(Glyph(sheet.crop((x, y, x + width, y + height)), left, top, advance))
        x += width
    return tuple(glyphs)
