"""What people hand over to a model, in the form that its network takes: uint8 images or float32 rows."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from askew.core.errors import UserError
from askew.data.decode import in_rgb, upright
from askew.inference.model_card import Card


def listed(x: Any) -> Sequence[Any] | NDArray[Any]:
    """Inputs that have a length and can be sliced."""
    if isinstance(x, str | Path | Image.Image):
        return [x]
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    if isinstance(x, list | tuple) and x and all(isinstance(one, str | Path | Image.Image) for one in x):
        return x
    if hasattr(x, "dtype") and hasattr(x, "ndim") and x.ndim:
        return x  # type: ignore[no-any-return]
    try:
        return np.asarray(x)
    except ValueError:
        raise UserError("The inputs are rows of different lengths.", "every row needs as many numbers.") from None


def as_input(x: Sequence[Any] | NDArray[Any], card: Card) -> NDArray[Any]:
    """A batch in the network's own form: uint8 (n, k, h, w) or float32 (n, d)."""
    if isinstance(x, list | tuple):
        with decoding():
            return np.stack([_sound_picture(one, card) for one in x])
    return as_images(np.asarray(x), card) if card.images else as_rows(np.asarray(x), card)


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Pillow without its remarks on odd metadata; a picture that is too large to be one is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def as_picture(picture: Image.Image | Path | str, card: Card) -> NDArray[np.uint8]:
    """One picture as the network takes it, resized; an exception of Pillow's if the file is broken. (k, h, w)"""
    if not card.images:
        raise UserError(f"The model takes {card.input}, found a picture.", "hand over embeddings of the same network.")
    if not isinstance(picture, Image.Image):
        with Image.open(picture) as file:
            return as_picture(file, card)
    k, h, w = card.shape
    small = in_rgb(upright(picture)).resize((w, h), Image.Resampling.BILINEAR)
    x = np.asarray(small.convert("L"))[None] if k == 1 else np.asarray(small).transpose(2, 0, 1)
    return np.ascontiguousarray(x)


def _sound_picture(picture: Image.Image | Path | str, card: Card) -> NDArray[np.uint8]:
    try:
        return as_picture(picture, card)
    except UserError:
        raise
    except Exception as error:  # a broken file can fail anywhere in its decoder
        raise UserError(f"The picture {picture} cannot be read: {error}.", "mend it, or leave it out.") from None


def as_images(x: NDArray[Any], card: Card) -> NDArray[np.uint8]:
    k = card.shape[0]
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[:, None]
    if x.dtype == np.uint8 and x.ndim == 4:
        if x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        if x.shape[1] == 1 and k == 3:
            x = np.repeat(x, 3, axis=1)
        if x.shape[1:] == card.shape:
            return np.ascontiguousarray(x)
    found = f"{x.dtype} {' x '.join(map(str, x.shape))}"
    raise UserError(
        f"The model takes uint8 {card.input}, found {found}.",
        "scale arrays to 0 … 255 and to that size, or hand over pictures, which are resized.",
    )


def as_rows(x: NDArray[Any], card: Card) -> NDArray[np.float32]:
    if x.ndim != 2 or x.shape[1] != card.shape[0] or x.dtype.kind not in "fiub":
        found = f"{x.dtype} {' x '.join(map(str, x.shape))}"
        raise UserError(
            f"The model takes {card.input}, found {found}.",
            "the columns must be those that it was trained on, in their order.",
        )
    rows: NDArray[np.float32] = np.ascontiguousarray(x, dtype=np.float32)
    bad = int((~np.isfinite(rows)).any(axis=1).sum())
    if bad:
        raise UserError(f"{bad} of {len(rows)} rows hold NaN or infinity.", "remove or impute them first.")
    return rows
