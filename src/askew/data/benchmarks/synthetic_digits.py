"""Rendered digits after the recipe of Synthetic Digits (Ganin & Lempitsky, ICML 2015).

One to three digits of one face in a 32×32 image, the labelled one in the middle; position,
orientation, ground and stroke colours and the amount of blur are random.

The same pixels on every machine: glyphs are stored images (`digit_glyphs`), Pillow turns and blurs
them with integer or unambiguous arithmetic, and the rest is elementwise NumPy. What could round
differently elsewhere, the width of Pillow's Gaussian blur (one fused multiply-add on ARM), is
computed here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from askew.core.errors import UserError
from askew.core.files import whole_file
from askew.data.benchmarks.digit_glyphs import INDEX, LINE, SHEET, Glyph, load_glyphs
from askew.data.paths import cache_folder

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

REVISION = 1  # bump when images change
SIDE = 32

_STRIP = (256, 64)  # the drawn number, before it is turned and scaled into the image
_FINE = 2  # super-sampling
_PASSES = 3  # box blurs that make a Gaussian one
_BATCH = 1024
_THREADS = 4  # more of them wait for each other: half of the work holds Python's lock

_UNIFORMS = (
    *("face", "length", "place", "first", "second", "gap"),
    *("height", "width", "across", "down", "turn", "slant", "blur", "smear"),
    *(
        "kind",
        "ground",
        "ground_hue",
        "ground_tint",
        "side",
        "stroke",
        "stroke_hue",
        "stroke_tint",
        "grain",
    ),
)


def _hash(key: Hashes, number: Hashes) -> Hashes:
    """Number `number` of the stream `key`: splitmix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    z: Hashes = key + (number + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _strip(face: Sequence[Glyph], number: Sequence[int], place: int, gap: float) -> Image.Image:
    """The number drawn in white on black, with the ink of the digit at `place` in the middle."""
    strip = Image.new("L", _STRIP)
    glyphs = [face[digit] for digit in number]
    middle = glyphs[place].left + glyphs[place].ink.width / 2
    pen = _STRIP[0] / 2 - middle - sum(glyph.advance + gap for glyph in glyphs[:place])
    for glyph in glyphs:
        x, y = round(pen) + glyph.left, (_STRIP[1] - LINE) // 2 + glyph.top
        strip.paste(255, (x, y, x + glyph.ink.width, y + glyph.ink.height), glyph.ink)
        pen += glyph.advance + gap
    return strip


def _between(u: Floats, low: float, high: float) -> Floats:
    return low + (high - low) * u


def _affine(u: dict[str, Floats]) -> Floats:
    """Where each pixel of the fine image lies in the strip: Pillow's (a, b, c, d, e, f) per
    image."""
    tall = _between(u["height"], 18, 28) * _FINE / LINE
    wide = tall * _between(u["width"], 0.85, 1.25)
    turn, slant = np.radians(_between(u["turn"], -9, 9)), _between(u["slant"], -0.1, 0.15)
    cos, sin = np.cos(turn), np.sin(turn)
    a, b = (cos + slant * sin) / wide, (sin - slant * cos) / wide
    d, e = -sin / tall, cos / tall
    x = (SIDE / 2 + _between(u["across"], -4, 4)) * _FINE
    y = (SIDE / 2 + _between(u["down"], -4, 4)) * _FINE
    return np.stack(
        [a, b, _STRIP[0] / 2 - a * x - b * y, d, e, _STRIP[1] / 2 - d * x - e * y], axis=1
    )


def _box_radius(sigma: Floats) -> NDArray[np.float32]:
    """Half the width of the box whose third power is nearest to a Gaussian (Gwosdek et al., SSVM
    2011).

    r = l + a,  l = ⌊(√(12 σ²/3 + 1) − 1) / 2⌋,  a = (2l + 1)(l(l + 1) − 3 σ²/3) / (6 (σ²/3 − (l +
    1)²))

    In the single precision and the order of operations that Pillow has on x86, without fused
    multiply-adds.
    """
    one_pass = sigma.astype(np.float32) ** 2 / np.float32(_PASSES)
    length = np.sqrt(12 * one_pass.astype(np.float64) + 1).astype(np.float32)
    whole = np.floor((length.astype(np.float64) - 1) / 2).astype(np.float32)
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * one_pass)
    part /= 6 * (one_pass - (whole + 1) * (whole + 1))
    radius: NDArray[np.float32] = whole + part
    return radius


class _Blur(ImageFilter.MultibandFilter):
    """Pillow's Gaussian blur, given the radii of its box blurs."""

    name = "Blur"

    def __init__(self, across: float, down: float) -> None:
        self.radii = across, down

    def filter(self, image: Any) -> Any:
        return image.box_blur(self.radii, _PASSES)


def _cover(labels: Ints, u: dict[str, Floats]) -> NDArray[np.float32]:
    """How much of each pixel the strokes cover, (n, 32, 32), at most 1 in every image."""
    faces = load_glyphs()
    length = 1 + (u["length"] > 0.16).astype(int) + (u["length"] > 0.45)
    face, place = (u["face"] * len(faces)).astype(int), (u["place"] * length).astype(int)
    first, second = (u["first"] * 10).astype(int), (u["second"] * 10).astype(int)
    gap = _between(u["gap"], -4, 4)
    blur, smear = _between(u["blur"] ** 1.7, 0.55, 2.2), 2.0 ** _between(u["smear"], -0.6, 0.6)
    radii = _box_radius(blur * smear), _box_radius(blur / smear)
    columns = (labels, face, length, place, first, second, gap, *radii, _affine(u))
    cover = np.empty((len(labels), SIDE, SIDE), np.float32)
    size = (SIDE * _FINE, SIDE * _FINE)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for i, (label, at, digits, where, one, two, space, across, down, affine) in enumerate(rows):
        number = [one, two][: digits - 1]
        number.insert(where, label)
        strip = _strip(faces[at], number, where, space)
        fine = strip.transform(size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
        cover[i] = np.asarray(fine.reduce(_FINE).filter(_Blur(across, down)))
    # Thin blurred strokes keep their contrast in the original too: the densest point of each is
    # full ink.
    peak: NDArray[np.float32] = cover.max(axis=(1, 2), keepdims=True)
    return cover / peak


def _colour(light: Floats, tint: Floats, hue: Floats) -> NDArray[np.float32]:
    phase = 2 * np.pi * (hue[:, None] + np.arange(3) / 3)
    colour = light[:, None] + tint[:, None] / 2 * np.cos(phase)
    return colour[:, None, None].astype(np.float32)


def _colours(u: dict[str, Floats]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Ground and stroke colours, (n, 1, 1, 3): near-black, middling or pale grounds, strokes far
    from them.

    A stroke may lie outside 0 … 255; clipping then leaves a plain core in a coloured halo, as in
    theirs.
    """
    dark, middling = u["kind"] < 0.47, u["kind"] > 0.92
    light = np.where(dark, _between(u["ground"], 0, 62), _between(u["ground"], 165, 245))
    light = np.where(middling, _between(u["ground"], 64, 165), light)
    tint = np.where(dark, 12, np.where(middling, 70, 105)) * u["ground_tint"] ** 1.5
    up = dark | (middling & (_between(u["side"], 64, 165) > light))
    stroke = np.where(up, _between(u["stroke"], 175, 330), _between(u["stroke"], 50, -80))
    stroke += np.where(up, 60, -60) * middling  # further off, where the ground leaves less room
    halo = np.where(up, 120, 80) * u["stroke_tint"] ** 1.5
    return _colour(light, tint, u["ground_hue"]), _colour(stroke, halo, u["stroke_hue"])


def _batch(seed: int, labels: Ints, occurrence: Ints) -> Bytes:
    key = np.full(len(labels), seed % 2**64, np.uint64)
    for part in (labels, occurrence):
        key = _hash(key, part.astype(np.uint64))
    bits = [_hash(key, np.full_like(key, i)) >> np.uint64(11) for i in range(len(_UNIFORMS))]
    u = {name: b.astype(np.float64) * 2.0**-53 for name, b in zip(_UNIFORMS, bits, strict=True)}
    ground, stroke = _colours(u)
    x = ground + _cover(labels, u)[..., None] * (stroke - ground)
    # One hash holds eight bytes of grain, so an image needs an eighth as many hashes as it has
    # values.
    number = np.arange(len(_UNIFORMS), len(_UNIFORMS) + SIDE * SIDE * 3 // 8, dtype=np.uint64)
    grain = _hash(key[:, None], number).astype("<u8").view(np.int8).reshape(x.shape)
    x += grain * (u["grain"] ** 2 * 3 / 128).astype(np.float32)[:, None, None, None]
    return np.rint(x).clip(0, 255).astype(np.uint8)


def render(labels: np.ndarray, occurrence: np.ndarray, seed: int) -> Bytes:
    """Draw the digits `labels` as uint8 (n, 32, 32, 3).

    Image i is a pure function of (seed, labels[i], occurrence[i]), whatever else is rendered with
    it.
    """
    columns = [np.asarray(column, np.int64) for column in (labels, occurrence)]
    parts = [[column[i : i + _BATCH] for i in range(0, len(labels), _BATCH)] for column in columns]
    # Threads, because processes would have to be spawned, and that runs a script without a main
    # guard again.
    with ThreadPoolExecutor(_THREADS) as pool:
        return np.concatenate(
            [np.empty((0, SIDE, SIDE, 3), np.uint8), *pool.map(partial(_batch, seed), *parts)]
        )


def _load(path: Path, n: int) -> Bytes | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x: Bytes = arrays["x"]
    except Exception:  # whatever is wrong with it, a cache only ever saves time
        return None
    return x if x.shape == (n, SIDE, SIDE, 3) and x.dtype == np.uint8 else None


def _store(path: Path, x: Bytes) -> None:
    # A read-only home or a full disk costs time at the next call, nothing else.
    with (
        contextlib.suppress(UserError),
        whole_file(path, "") as temporary,
        temporary.open("wb") as file,
    ):
        np.savez(file, x=x)


def syn(counts: Sequence[int], seed: int = 0, cache: Path | None = None) -> tuple[Bytes, Bytes]:
    """counts[k] images of digit k, sorted by class and cached: x uint8 (n, 32, 32, 3), y uint8
    (n,)."""
    if len(counts) > 10 or min(counts, default=0) < 0:
        raise UserError(
            f"There are no digits in the counts {list(counts)}.", "give up to ten, none negative."
        )
    each = [int(count) for count in counts]
    y = np.repeat(np.arange(len(each), dtype=np.uint8), np.array(each, int))
    sizes = [path.stat().st_size for path in (SHEET, INDEX)]
    recipe = repr((REVISION, int(seed), each, sizes, version("pillow")))
    folder = cache or cache_folder()
    path = folder / f"syn-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.npz"
    x = _load(path, len(y))
    if x is None:
        x = render(y, np.concatenate([np.arange(n) for n in (0, *each)]), seed)
        _store(path, x)
    return x, y
