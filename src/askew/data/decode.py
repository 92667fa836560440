"""Picture files of any kind as uint8 (3, 256, 256), or in the shape that a network takes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from askew.data.paths import require_file

SIDE = 256
"""Pictures are kept as the paper resizes them, 256 x 256 whatever their shape; networks crop 224 of
it."""

_PLUG_INS = {
    ".avif": ("AVIF", "AVIF images need Pillow 11.3 or later"),
    ".heic": ("HEIF", "HEIC images need a plug-in: pip install pillow-heif"),
    ".heif": ("HEIF", "HEIF images need a plug-in: pip install pillow-heif"),
}
"""Formats that not every Pillow reads, and what to do then."""
_USUAL = ".jpg .jpeg .jpe .jfif .png .webp .bmp .gif .tif .tiff .ppm .pgm .pnm"
SUFFIXES = frozenset((*_USUAL.split(), *_PLUG_INS))


@functools.cache
def _formats() -> tuple[str, ...]:
    """The formats that are read.

    Pillow goes by a file's content: without this, PostScript in a file named .jpg would be run by
    Ghostscript.
    """
    with contextlib.suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    Image.init()
    usual = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
    return usual + tuple(sorted({name for name, _ in _PLUG_INS.values()} & set(Image.OPEN)))


_BAND = 1 << 18  # pixels that are converted at a time
_MOST_PIXELS = 1 << 27  # that are decoded at a time; a pixel takes up to twelve bytes


class Room:
    """Lets threads in as long as their pictures together have at most so many pixels; a larger one
    goes alone.

    With a context that makes processes, those that it makes are let in as threads are.
    """

    def __init__(self, most: int = _MOST_PIXELS, context: BaseContext | None = None) -> None:
        self.most = most
        self.taken = context.RawValue("q") if context else ctypes.c_longlong()
        self.changed = context.Condition() if context else threading.Condition()

    @contextlib.contextmanager
    def for_pixels(self, n: int) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.taken.value or self.taken.value + n <= self.most)
            self.taken.value += n
        try:
            yield
        finally:
            with self.changed:
                self.taken.value -= n
                self.changed.notify_all()


_room = Room()


def use_room(room: Room) -> None:
    """From now on, this process decodes in that room."""
    global _room
    _room = room


DECODERS = min(32, os.cpu_count() or 1)
"""Threads, or processes, that decode."""

Row = NDArray[Any]


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Silence Pillow's warnings of odd metadata, for all threads: what is broken raises an
    exception."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        yield


def decode(
    picture: Path | str | IO[bytes] | Image.Image, shape: tuple[int, ...] = (3, SIDE, SIDE)
) -> NDArray[np.uint8]:
    """The picture upright and resized (bilinear), in RGB or grey, (channels, height, width).

    A broken file raises an exception of Pillow's, mostly an OSError. Safe in threads, within
    `decoding`.
    """
    if not isinstance(picture, Image.Image):
        with _opened(Path(picture) if isinstance(picture, str | Path) else picture) as file:
            return decode(file, shape)
    channels, height, width = shape
    _check_size(picture)
    with _room.for_pixels(picture.width * picture.height):
        small = _plain(_upright(picture)).resize((width, height), Image.Resampling.BILINEAR)
    x = (
        np.asarray(small.convert("L"))[None]
        if channels == 1
        else np.asarray(small.convert("RGB")).transpose(2, 0, 1)
    )
    return np.ascontiguousarray(x)


def _opened(picture: Path | IO[bytes]) -> Image.Image:
    """Open an image file; OSError if it is none, or of a format that this Pillow does not read."""
    if not isinstance(picture, Path):
        return Image.open(picture, formats=_formats())
    require_file(picture)
    try:
        return Image.open(picture, formats=_formats())
    except UnidentifiedImageError:
        format, remedy = _PLUG_INS.get(picture.suffix.lower(), ("", ""))
        if format and format not in _formats():
            raise OSError(remedy) from None
        raise


def _check_size(image: Image.Image) -> None:
    """Pillow only warns of pictures from this size on, and raises an exception at twice the
    size."""
    pixels, most = image.width * image.height, Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        raise ValueError(
            f"it has {pixels:,} pixels; more than {most:,} may be an attack on the memory"
        )


def _upright(image: Image.Image) -> Image.Image:
    """Turned as the camera noted; metadata that cannot be read are no reason to refuse a
    picture."""
    try:
        turned = image.getexif().get(0x0112, 1) != 1
    except Exception:
        turned = False
    return ImageOps.exif_transpose(image) if turned else image


def _plain(image: Image.Image) -> Image.Image:
    """Any mode as 8-bit RGB or grey. What is transparent becomes white: below it there may be any
    colour, mostly black.

    Some rows at a time where values are converted: all of a large scan would take many times its
    memory.
    """
    mode = image.mode
    if mode.startswith("I") or mode == "F":
        return _eight_bits(image)
    if mode in ("RGBA", "LA", "La", "RGBa", "PA") or "transparency" in image.info:
        flat = Image.new("RGB", image.size)
        for top, band in _bands(image):
            clear = band.convert("RGBA")
            flat.paste(
                Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB"),
                (0, top),
            )
        return flat
    return image if mode in ("RGB", "L") else image.convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Some rows of a picture at a time, and which is the first of them."""
    rows = max(1, _BAND // max(1, image.width))
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _eight_bits(image: Image.Image) -> Image.Image:
    """Grey values of 16 bits, or floats, scaled to 0 … 255; Pillow's own conversion would clip
    them."""
    # Some versions of Pillow give 16-bit files as 32-bit integers.
    top = 65535.0
    if image.mode == "F":
        top = (
            1.0
            if max(np.nanmax(np.asarray(band), initial=0.0) for _, band in _bands(image)) <= 1
            else 255.0
        )
    grey = Image.new("L", image.size)
    for row, band in _bands(image):
        x = np.asarray(band).astype(np.float64)
        eight: NDArray[np.uint8] = (
            np.nan_to_num(x / top * 255).clip(0, 255).round().astype(np.uint8)
        )
        grey.paste(Image.fromarray(eight), (0, row))
    return grey


# --- many ---


class PictureFiles:
    """Picture files in place of an array uint8 (n, 3, h, w): decoded where they are indexed, and
    kept nowhere."""

    dtype, ndim, itemsize = np.dtype(np.uint8), 4, 1

    def __init__(self, paths: Sequence[Path], side: int = SIDE) -> None:
        self.paths = tuple(paths)
        self.shape = (len(self.paths), 3, side, side)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> NDArray[np.uint8]:
        chosen = np.arange(len(self))[index]
        x = np.empty((chosen.size, *self.shape[1:]), np.uint8)
        with decoding():
            for i, row in enumerate(chosen.ravel().tolist()):
                x[i] = decode(self.paths[row], self.shape[1:])
        return x.reshape(*chosen.shape, *self.shape[1:])


def reason(error: Exception) -> str:
    """Why a picture cannot be read, in one line: a damaged one can raise almost anything."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
