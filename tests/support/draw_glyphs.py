"""Draw the digits of the faces that rendered digits use: run as a script, it writes askew's
`digit_glyphs` anew.

It needs the packages of `PACKAGES` in the versions that `digit_glyphs.json` names; askew itself
needs none of them.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from askew.data.benchmarks import digit_glyphs
from askew.data.benchmarks.digit_glyphs import LINE, Glyph

PACKAGES = {  # and the licences of the fonts in them
    "matplotlib": "DejaVu: Bitstream Vera; STIX: OFL-1.1; cm*: BaKoMa",
    "font-amatic-sc": "OFL-1.1",
    "font-caladea": "Apache-2.0",
    "font-fredoka-one": "OFL-1.1",
    "font-hanken-grotesk": "OFL-1.1",
    "font-intuitive": "OFL-1.1",
    "font-lato": "OFL-1.1",
    "font-manrope": "OFL-1.1",
    "font-roboto": "Apache-2.0",
    "font-source-sans-pro": "OFL-1.1",
    "font-source-serif-pro": "OFL-1.1",
}
_FOLDERS = ("mpl-data/fonts/ttf", "files")  # matplotlib's, and that of the font packages
# Faces without digits, hairlines that vanish at 32 pixels, and a variable font that repeats its
# instances.
_UNFIT = re.compile(
    r"STIX(NonUni|Siz)|cm(ex|sy)10|DejaVu\w+Display|LastResort|Thin|ExtraLight|VariableFont"
)
_DIGITS = "0123456789"


def missing() -> list[str]:
    """Packages that are not installed."""
    return [name for name in PACKAGES if find_spec(name.replace("-", "_")) is None]


def faces() -> dict[str, tuple[str, Path]]:
    """The package and the file of each face, in the order of the faces' names."""
    found: dict[str, tuple[str, Path]] = {}
    for package in PACKAGES:
        spec = find_spec(package.replace("-", "_"))
        roots = (spec and spec.submodule_search_locations) or ()
        for folder in (Path(root, sub) for root in roots for sub in _FOLDERS):
            for path in chain(
                folder.glob("*.otf"), folder.glob("*.ttf")
            ):  # a ttf replaces its otf twin
                if not _UNFIT.search(path.stem):
                    found[path.stem] = package, path
    return dict(sorted(found.items()))


def drawn(path: Path) -> tuple[Glyph, ...]:
    """The ten digits of a face at the size that makes them LINE high."""
    font = ImageFont.truetype(path, 100, layout_engine=ImageFont.Layout.BASIC)
    _, top, _, bottom = font.getbbox(_DIGITS, anchor="ls")
    font = font.font_variant(size=100 * LINE / (bottom - top))
    line = font.getbbox(_DIGITS, anchor="ls")[1]
    return tuple(_glyph(font, digit, int(line)) for digit in _DIGITS)


def _glyph(font: ImageFont.FreeTypeFont, digit: str, line: int) -> Glyph:
    left, top, right, bottom = (int(edge) for edge in font.getbbox(digit, anchor="ls"))
    ink = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(ink).text((-left, -top), digit, fill=255, font=font, anchor="ls")
    return Glyph(ink, left, top - line, font.getlength(digit))


def write(sheet: Path, index: Path) -> None:
    found = faces()
    rows = {name: drawn(path) for name, (_, path) in found.items()}
    height = max(glyph.ink.height for row in rows.values() for glyph in row)
    width = max(sum(glyph.ink.width for glyph in row) for row in rows.values())
    image = Image.new("L", (width, height * len(rows)))
    entries: list[dict[str, Any]] = []
    for at, (name, row) in enumerate(rows.items()):
        x = 0
        for glyph in row:
            image.paste(glyph.ink, (x, at * height))
            x += glyph.ink.width
        digits = [[*glyph.ink.size, glyph.left, glyph.top, glyph.advance] for glyph in row]
        entries.append({"face": name, "package": found[name][0], "digits": digits})
    image.save(sheet, optimize=True)
    head = {
        "pillow": version("pillow"),
        "packages": {name: [version(name), licence] for name, licence in PACKAGES.items()},
        "row": height,
    }
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    index.write_text(
        json.dumps(head, indent=1).removesuffix("\n}") + f',\n "faces": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    write(digit_glyphs.SHEET, digit_glyphs.INDEX)
