"""One picture file of any kind as uint8 (3, 256, 256)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

SIDE = 256
"""Pictures are kept as the paper resizes them, 256 x 256 whatever their shape; networks crop 224 of it."""

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"))


def decode(path: Path) -> NDArray[np.uint8]:
    """The picture upright, in RGB, resized (bilinear) to SIDE x SIDE; OSError or ValueError if it is broken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata; a broken picture is an exception
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as file:
            small = in_rgb(upright(file)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def upright(image: Image.Image) -> Image.Image:
    """Turned as the camera says; metadata that cannot be read are no reason to lose a picture."""
    try:
        turned = image.getexif().get(0x0112, 1) != 1
    except Exception:
        turned = False
    return ImageOps.exif_transpose(image) if turned else image


def in_rgb(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB. What is transparent becomes white: below it there may be any colour, mostly black."""
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return Image.fromarray(_eight_bits(np.asarray(image), mode)).convert("RGB")
    if mode in ("RGBA", "LA", "La", "RGBa", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _eight_bits(x: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    """Grey values of 16 bits, or floats, scaled to 0 … 255; Pillow's own conversion would clip them."""
    grey = x.astype(np.float64)
    # Some versions of Pillow hand 16-bit files over as 32-bit integers.
    top = 65535.0 if mode != "F" else 1.0 if np.nanmax(grey, initial=0.0) <= 1 else 255.0
    return np.nan_to_num(grey / top * 255).clip(0, 255).round().astype(np.uint8)
