"""Redraw one domain of pictures in two styles, to develop on: line drawings, and flat colours with
dark outlines.

    python benchmarks/studies/restyle.py PACS/art_painting PICTURES --name art
    python benchmarks/studies/restyle.py PACS/art_painting --sheet FILE.png

It writes PICTURES/art_lines/CLASS/FILE and PICTURES/art_flat/CLASS/FILE. Paired with photographs,
in either direction, they are what sketches and cartoons are in the pairs that tables report: PACS's
other pairs have photographs as a target once, from paintings, which the backbone knows nearly as
well, so that no rule for a poor start can be chosen on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps

Picture = Image.Image


def lines(picture: Picture) -> Picture:
    """Black strokes on white, where brightness changes: the difference of two blurs."""
    grey = ImageOps.autocontrast(picture.convert("L").filter(ImageFilter.MedianFilter(3)))
    fine, coarse = (
        np.asarray(grey.filter(ImageFilter.GaussianBlur(r)), dtype=np.float32) for r in (0.8, 2.4)
    )
    strokes = np.clip(255 + 14 * np.minimum(fine - coarse + 4, 0), 0, 255)
    return Image.fromarray(strokes.astype(np.uint8)).convert("RGB")


def flat(picture: Picture) -> Picture:
    """A few strong colours, and the strokes on them."""
    smooth = picture.filter(ImageFilter.MedianFilter(5)).filter(ImageFilter.ModeFilter(7))
    few = ImageEnhance.Color(
        ImageOps.posterize(ImageOps.autocontrast(smooth, cutoff=2), 2)
    ).enhance(1.8)
    return ImageChops.multiply(few, lines(picture))


STYLES: dict[str, Callable[[Picture], Picture]] = {"lines": lines, "flat": flat}


def redraw(pictures: Path, name: str, file: Path) -> None:
    """One picture in every style."""
    for style, drawn in STYLES.items():
        to = pictures / f"{name}_{style}" / file.parent.name / f"{file.stem}.png"
        to.parent.mkdir(parents=True, exist_ok=True)
        drawn(Image.open(file).convert("RGB")).save(to)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("domain", type=Path)
    parser.add_argument("pictures", type=Path, nargs="?")
    parser.add_argument("--name", default="art")
    parser.add_argument(
        "--sheet", type=Path, help="Draw a few pictures in every style into this file instead."
    )
    args = parser.parse_args()
    files = sorted(args.domain.glob("*/*"))
    if args.sheet:
        some = [Image.open(file).convert("RGB") for file in files[:: len(files) // 10][:10]]
        rows = [some, *([style(one) for one in some] for style in STYLES.values())]
        pixels = np.concatenate(
            [np.concatenate([np.asarray(one) for one in row], axis=1) for row in rows]
        )
        Image.fromarray(pixels).save(args.sheet)
        return
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(redraw, args.pictures, args.name), files, chunksize=16))


if __name__ == "__main__":
    main()
