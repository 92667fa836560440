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
from askew.data.array_files import ARRAYS, as_images, as_rows, read_array
from askew.data.custom import pictures_to_embed
from askew.data.decode import decode, decoding
from askew.data.feature_columns import is_frame, rows_of
from askew.data.image_lists import LISTS
from askew.data.objects import as_domain, column_of_pictures, is_data_set, is_labelled
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


def list_inputs(x: Any, card: ModelCard) -> Sequence[Any] | NDArray[Any]:
    """Inputs that have a length and can be sliced; a table's columns in the model's order.

    Takes all that `askew.adapt` takes as a target; labels that come with inputs are left out.
    """
    if isinstance(x, tuple) and is_labelled(x):
        return list_inputs(x[0], card)
    if isinstance(x, str | Path):
        return _in_place(Path(x), card)
    if is_frame(x):
        pictures = column_of_pictures(x) if card.images else None
        return rows_of(x, card.columns, "the model") if pictures is None else pictures
    if is_data_set(x):
        return np.asarray(as_domain(x, "target").x)
    if isinstance(x, Image.Image):
        return [x]
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    if _are_pictures(x) or (hasattr(x, "dtype") and hasattr(x, "ndim") and x.ndim):
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


def _are_pictures(x: Any) -> bool:
    """Tell whether inputs are pictures of PIL or paths."""
    some = isinstance(x, list | tuple) and bool(x)
    return some and all(isinstance(one, str | Path | Image.Image) for one in x)


def _in_place(path: Path, card: ModelCard) -> Sequence[Any] | NDArray[Any]:
    """The inputs in a folder, a list or an array file, or the picture that a path names."""
    suffix = path.suffix.lower()
    if suffix in ARRAYS and not path.is_dir():
        if not path.is_file():
            raise UserError(f"The array {path} does not exist.", "name a file that is there.")
        return read_array(path).in_order_of(card.columns, path, "the model")
    if path.is_dir() or suffix in LISTS:
        listing = pictures_to_embed(path)
        return [listing.root / name for name in listing.paths]
    return [path]


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
