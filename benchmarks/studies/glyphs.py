"""Draw two domains of many classes with few pictures, to develop on: letters, symbols, parts of
photographs.

    python benchmarks/studies/glyphs.py letters PICTURES --photos PACS/photo
    python benchmarks/studies/glyphs.py letters --photos PACS/photo --sheet FOLDER

31 classes, of which domain p has 22 to 54 pictures of 128 pixels each and q 12 to 35. Letters and
symbols are dark on light paper in p, and in q coloured, turned, blurred and noisy before a faint
photograph, each class as five objects seen again and again. `scenes` are no glyphs: a class is one
photograph, in p its parts, in q what is left of them with few colours and strong edges. Letters
take the fonts of the packages that docs/dependencies.md names, symbols matplotlib's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont, ImageOps

SIDE = 128
CLASSES = {
    "letters": "ABCDEFGHIJKLMNPQRSTUVWXYZ234679",
    "symbols": "☀☁☂☃★☎☘☠☢☮☯♔♘♛♠♣♥♫⚒⚓⚔⚖⚙⚛✂✈✉✌✎❀❄",
    "scenes": "x" * 31,
}
SIZES = {"p": (22, 55), "q": (12, 36)}
GROUND = {"letters": 0.2, "symbols": 0.5}
"""How much of the photograph behind a glyph is left."""
SANS = ("Roboto", "Lato", "SourceSans", "SourceSerif", "Hanken")
"""Faces of the clean letters."""

Picture = Image.Image


class Thing(NamedTuple):
    """What pictures of domain q show again and again."""

    face: Path
    ink: tuple[int, ...]
    ground: Picture
    size: float


def faces(kind: str, domain: str) -> list[Path]:
    import matplotlib

    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    if kind == "symbols":
        return [
            own / name
            for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")[: 1 if domain == "p" else 2]
        ]
    found = [*sorted(own.parents[3].glob("font_*/**/*.[to]tf")), *sorted(own.glob("DejaVu*.ttf"))]
    found = [
        face
        for face in found
        if not any(thin in face.name for thin in ("Thin", "ExtraLight", "Display"))
    ]
    return [face for face in found if face.name.startswith(SANS) == (domain == "p")]


def glyph(char: str, face: Path, scale: float) -> Picture:
    """A character, white on black, in the middle of a picture."""
    font = ImageFont.truetype(str(face), 200)
    left, top, right, bottom = font.getbbox(char)
    tile = Image.new("L", (max(8, int(right - left)) + 8, max(8, int(bottom - top)) + 8))
    ImageDraw.Draw(tile).text((4 - left, 4 - top), char, 255, font)
    smaller = scale * SIDE / max(tile.size)
    wide, high = (max(1, int(length * smaller)) for length in tile.size)
    picture = Image.new("L", (SIDE, SIDE))
    picture.paste(
        tile.resize((wide, high), Image.Resampling.LANCZOS),
        ((SIDE - wide) // 2, (SIDE - high) // 2),
    )
    return picture


def warp(
    picture: Picture, rng: np.random.Generator, turn: float, jitter: float, shift: float = 0.0
) -> Picture:
    """Turned by so many degrees at most, seen from aside, and moved."""
    angle = np.deg2rad(rng.uniform(-turn, turn))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    quad = (np.array([[0, 0], [0, 1], [1, 1], [1, 0]]) * SIDE - SIDE / 2) @ rotation.T + SIDE / 2
    quad += rng.normal(0, jitter * SIDE, (4, 2)) + rng.uniform(-shift, shift, 2) * SIDE
    return picture.transform(
        (SIDE, SIDE), Image.Transform.QUAD, quad.ravel().tolist(), Image.Resampling.BILINEAR
    )


def part(picture: Picture, rng: np.random.Generator, low: float, high: float) -> Picture:
    """A random part, a share of each side between low and high."""
    share = rng.uniform(low, high)
    wide, tall = (length * share for length in picture.size)
    x, y = rng.uniform(0, picture.width - wide), rng.uniform(0, picture.height - tall)
    return picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (x, y, x + wide, y + tall))


def plain(colour: tuple[int, ...]) -> Picture:
    return Image.new("RGB", (SIDE, SIDE), colour)


def on_paper(char: str, face: Path, rng: np.random.Generator) -> Picture:
    mask = warp(glyph(char, face, rng.uniform(0.55, 0.9)), rng, 8, 0.02, 0.05)
    ink, paper = int(rng.integers(0, 90)), int(rng.integers(225, 256))
    return Image.composite(plain((ink,) * 3), plain((paper,) * 3), mask)


def in_the_wild(char: str, thing: Thing, kind: str, rng: np.random.Generator) -> Picture:
    mask = warp(glyph(char, thing.face, thing.size * rng.uniform(0.85, 1.1)), rng, 15, 0.04, 0.08)
    mask = mask.filter(ImageFilter.MaxFilter(3)) if kind == "symbols" else mask
    colour = ImageOps.contain(thing.ground, (1, 1)).resize((SIDE, SIDE))
    ground = part(thing.ground, rng, 0.3, 0.5).filter(ImageFilter.GaussianBlur(3))
    seen = Image.composite(plain(thing.ink), Image.blend(colour, ground, GROUND[kind]), mask)
    seen = ImageEnhance.Brightness(seen).enhance(rng.uniform(0.7, 1.2))
    seen = seen.filter(ImageFilter.GaussianBlur(rng.uniform(0.3, 1.5)))
    noisy = np.asarray(seen, float) + rng.normal(0, 8, (SIDE, SIDE, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def new_thing(faces: Sequence[Path], photo: Picture, rng: np.random.Generator) -> Thing:
    face, grey = faces[int(rng.integers(len(faces)))], np.asarray(photo.resize((1, 1)))[0, 0].mean()
    while abs(np.mean(ink := tuple(int(v) for v in rng.integers(0, 256, 3))) - grey) <= 70:
        pass  # it would be hard to see
    return Thing(face, ink, photo, rng.uniform(0.5, 0.85))


def of_scene(photo: Picture, domain: str, rng: np.random.Generator) -> Picture:
    seen = part(photo, rng, 0.45, 0.85)
    seen = ImageOps.mirror(seen) if rng.random() < 0.5 else seen
    if domain == "p":
        bright = ImageEnhance.Brightness(seen).enhance(rng.uniform(0.8, 1.2))
        return ImageEnhance.Color(bright).enhance(rng.uniform(0.6, 1.4))
    grey = ImageOps.autocontrast(ImageOps.grayscale(seen.filter(ImageFilter.GaussianBlur(1))))
    edges = (
        grey.filter(ImageFilter.FIND_EDGES).crop((2, 2, SIDE - 2, SIDE - 2)).resize((SIDE, SIDE))
    )
    drawn = ImageOps.invert(ImageOps.autocontrast(edges)).convert("RGB")
    return warp(
        Image.blend(drawn, ImageOps.posterize(seen, 3), rng.uniform(0.5, 0.7)), rng, 12, 0.02
    )


def draw(kind: str, domain: str, photos: Path) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """The pictures of a domain, and their classes. (n, 3, 128, 128), (n,)"""
    rng = np.random.default_rng([17, len(kind), ord(domain)])
    files = sorted(photos.rglob("*.jpg"))
    order = np.random.default_rng(5).permutation(len(files))
    some = faces(kind, domain) if kind != "scenes" else []

    def photo(place: int) -> Picture:
        return Image.open(files[order[place % len(files)]]).convert("RGB")

    pictures, classes = [], []
    for k, char in enumerate(CLASSES[kind]):
        count = int(rng.integers(*SIZES[domain]))
        things = (
            [new_thing(some, photo(300 + int(rng.integers(1000))), rng) for _ in range(5)]
            if some
            else []
        )
        for i in range(count):
            if kind == "scenes":
                picture = of_scene(photo(k), domain, rng)
            elif domain == "p":
                picture = on_paper(char, some[rng.integers(len(some))], rng)
            else:
                picture = in_the_wild(char, things[i % 5], kind, rng)
            pictures.append(np.asarray(picture).transpose(2, 0, 1))
            classes.append(f"{k:02d} {char}")
    return np.stack(pictures), np.array(classes)


def save(x: NDArray[np.uint8], y: NDArray[np.str_], folder: Path) -> None:
    """One folder per class."""
    for i, (picture, name) in enumerate(zip(x, y, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.transpose(1, 2, 0)).save(folder / name / f"{i:04d}.png")


def sheet(x: NDArray[np.uint8]) -> Picture:
    """48 of the pictures on one, to look at."""
    found = Image.new("RGB", (12 * SIDE, 4 * SIDE))
    for place, i in enumerate(np.sort(np.random.default_rng(0).permutation(len(x))[:48])):
        found.paste(
            Image.fromarray(x[i].transpose(1, 2, 0)), (place % 12 * SIDE, place // 12 * SIDE)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=CLASSES)
    parser.add_argument("pictures", type=Path, nargs="?", help="Folder for one folder per domain.")
    parser.add_argument("--photos", type=Path, required=True, help="Folder of photographs: PACS's.")
    parser.add_argument(
        "--sheet", type=Path, help="Folder for a picture of some pictures of each domain."
    )
    args = parser.parse_args()
    for domain in SIZES:
        x, y = draw(args.kind, domain, args.photos)
        print(args.kind, domain, len(x), flush=True)
        if args.sheet:
            args.sheet.mkdir(parents=True, exist_ok=True)
            sheet(x).save(args.sheet / f"{args.kind}_{domain}.png")
        if args.pictures:
            save(x, y, args.pictures / f"{args.kind}_{domain}")


if __name__ == "__main__":
    main()
