"""One picture file of any kind as uint8 (3, 256, 256), or in the shape that a network takes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SIDE = 256
"""Pictures are kept as the paper resizes them, 256 x 256 whatever their shape; networks crop 224 of it."""

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"))

_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""Pillow goes by a file's content: without this, PostScript in a file named .jpg would be run by Ghostscript."""

_BAND = 1 << 18  # pixels that are converted at a time


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Silence Pillow's warnings of odd metadata, for all threads: what is broken raises an exception."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def decode(picture: Path | str | Image.Image, shape: tuple[int, ...] = (3, SIDE, SIDE)) -> NDArray[np.uint8]:
    """The picture upright and resized (bilinear), in RGB or grey, (channels, height, width).

    A broken file raises an exception of Pillow's, mostly an OSError. Safe in threads, within `decoding`.
    """
    if not isinstance(picture, Image.Image):
        with Image.open(picture, formats=_FORMATS) as file:
            return decode(file, shape)
    channels, height, width = shape
    _check_size(picture)
    small = _in_rgb(_upright(picture)).resize((width, height), Image.Resampling.BILINEAR)
    x = np.asarray(small.convert("L"))[None] if channels == 1 else np.asarray(small).transpose(2, 0, 1)
    return np.ascontiguousarray(x)


def _check_size(image: Image.Image) -> None:
    """Pillow only warns of pictures from this size on, and raises an exception at twice the size."""
    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        raise ValueError(f"it has {pixels:,} pixels; more than {most:,} may be an attack on the memory")


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera noted; metadata that cannot be read are no reason to refuse a picture."""
    try:
        turned = image.getexif().get(0x0112, 1) != 1
    except Exception:
        turned = False
    return ImageOps.exif_transpose(image) if turned else image


def _in_rgb(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB. What is transparent becomes white: below it there may be any colour, mostly black."""
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image), mode)).convert("RGB")
    if mode in ("RGBA", "LA", "La", "RGBa", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _eight_bits(x: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 bits, or floats, scaled to 0 … 255; Pillow's own conversion would clip them.

    Some rows at a time: in double precision, all of a large scan would take eight times its memory.
    """
    # Some versions of Pillow give 16-bit files as 32-bit integers.
    top = 65535.0 if mode != "F" else 1.0 if np.nanmax(x, initial=0.0) <= 1 else 255.0
    grey = np.empty(x.shape, np.uint8)
    rows = max(1, _BAND // max(1, x.shape[1]))
    for start in range(0, len(x), rows):
        band = x[start : start + rows].astype(np.float64)
        grey[start : start + rows] = np.nan_to_num(band / top * 255).clip(0, 255).round()
    return grey
