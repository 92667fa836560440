"""What people give to a model, in the form that its network takes: uint8 images or float32 rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from askew.core.errors import UserError
from askew.core.options import shown, whole_number
from askew.data.array_files import as_images, as_rows
from askew.data.decode import decode, decoding
from askew.data.feature_columns import is_frame, rows_of
from askew.inference.model_card import ModelCard

MOST_ROWS = 10**6
"""Inputs in one batch: with more, memory ends before time is saved."""


def checked_batch(batch: int) -> int:
    """A number of inputs per batch, 0 for as many as fit; UserError if there is no such number."""
    if whole_number("batch", batch) > MOST_ROWS:
        raise UserError(
            f"A batch has at most {MOST_ROWS:,} inputs, found {batch:,}.",
            "0 stands for as many as fit.",
        )
    return batch


def list_inputs(x: Any, columns: Sequence[str] = ()) -> Sequence[Any] | NDArray[Any]:
    """Inputs that have a length and can be sliced; a table's columns in the model's order."""
    if is_frame(x):
        return rows_of(x, columns, "the model")
    if isinstance(x, str | Path | Image.Image):
        return [x]
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    if (
        isinstance(x, list | tuple)
        and x
        and all(isinstance(one, str | Path | Image.Image) for one in x)
    ):
        return x
    if hasattr(x, "dtype") and hasattr(x, "ndim") and x.ndim:
        return x  # type: ignore[no-any-return]
    try:
        array = np.asarray(x)
    except ValueError:
        raise UserError(
            "The inputs are rows of different lengths.", "every row needs as many numbers."
        ) from None
    if not array.ndim:
        raise UserError(
            f"The inputs are {shown(x)}, and neither an array nor pictures.",
            "give rows of numbers, images, or paths of pictures.",
        )
    return array


def as_input(x: Sequence[Any] | NDArray[Any], card: ModelCard) -> NDArray[Any]:
    """A batch in the network's own form: uint8 (n, k, h, w) or float32 (n, d)."""
    if isinstance(x, list | tuple):
        with decoding():
            return np.stack([_sound_picture(one, card) for one in x])
    return _images(np.asarray(x), card) if card.images else _rows(np.asarray(x), card)


def as_picture(picture: Image.Image | Path | str, card: ModelCard) -> NDArray[np.uint8]:
    """One picture as the network takes it, resized; an exception of Pillow's if the file is broken.
    (k, h, w)"""
    if not card.images:
        raise UserError(
            f"The model takes {card.input}, found a picture.",
            "give it embeddings of the same network.",
        )
    return decode(picture, card.shape)


def _sound_picture(picture: Image.Image | Path | str, card: ModelCard) -> NDArray[np.uint8]:
    try:
        return as_picture(picture, card)
    except UserError:
        raise
    except Exception as error:  # a broken file can fail anywhere in its decoder
        raise UserError(
            f"The picture {picture} cannot be read: {error}.", "mend it, or leave it out."
        ) from None


def _images(x: NDArray[Any], card: ModelCard) -> NDArray[np.uint8]:
    images = as_images(x)
    if images is not None and images.shape[1] == 1 and card.shape[0] == 3:
        images = np.repeat(images, 3, axis=1)
    if images is None or images.shape[1:] != card.shape:
        raise UserError(
            f"The model takes uint8 {card.input}, found {_described(x)}.",
            "scale arrays to 0 … 255 and to that size, or give it pictures, which are resized.",
        )
    return images


def _rows(x: NDArray[Any], card: ModelCard) -> NDArray[np.float32]:
    rows = as_rows(x)
    if rows is None or rows.shape[1:] != card.shape:
        raise UserError(
            f"The model takes {card.input}, found {_described(x)}.",
            "the columns must be those that it was trained on, in their order.",
        )
    return rows


def _described(x: NDArray[Any]) -> str:
    return f"{x.dtype} {' x '.join(map(str, x.shape))}"
