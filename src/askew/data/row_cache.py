"""Rows of numbers computed from images, kept in a folder of the cache by the content of each
image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import Damaged, read_tensors, sweep, write_tensors
from askew.data.decode import DECODERS, reason
from askew.data.paths import require_file

FILE_ROWS = 256
"""Rows in one file: what has to be computed again if the work is stopped."""

Key = tuple[int, int]
"""The hash of an image, and the number of a view: 0 is the image itself."""

_FILES_AT_ONCE = 1024
_HINT = "set ASKEW_CACHE to a folder that is yours and has room."


class RowCache:
    """Rows by image and view: files of some rows each in a folder, and in memory those that were
    asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: dict[Key, NDArray[np.float32]] = {}
        self._new: list[Key] = []

    def find(self, keys: Iterable[Key]) -> set[Key]:
        """Read those that the folder has; the others."""
        lacking = {key for key in keys if key not in self.rows}
        for file in sorted(self.folder.glob("*.safetensors")) if lacking else []:
            if lacking.isdisjoint(_keys(file)):
                continue
            try:
                tensors, _ = read_tensors(file)
            except (FileNotFoundError, Damaged):
                continue  # a cache only ever saves time
            found = zip(_as_keys(tensors["images"].numpy()), tensors["rows"].numpy(), strict=True)
            self.rows |= {key: row for key, row in found if key in lacking}
            lacking -= self.rows.keys()
        return lacking

    def add(self, keys: Sequence[Key], rows: NDArray[np.float32]) -> None:
        self.rows |= zip(keys, rows, strict=True)
        self._new += keys
        if len(self._new) >= FILE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what is new."""
        # which takes seconds to import, and commands that read no images need none of it
        import torch

        if not self._new:
            return
        images = np.array(self._new, dtype="<u8").view("<i8")
        name = hashlib.sha256(images.tobytes()).hexdigest()[:16]
        rows = np.stack([self.rows[key] for key in self._new])
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder)
            tensors = {"images": torch.from_numpy(images), "rows": torch.from_numpy(rows)}
            write_tensors(self.folder / f"{name}.safetensors", tensors, {"form": "1"})
        except UserError as error:
            raise UserError(error.sentence, _HINT) from error
        except OSError as error:
            raise UserError(
                f"Cannot write to {self.folder}: {error.strerror or error}.", _HINT
            ) from error
        self._new = []


def _keys(file: Path) -> set[Key]:
    """Images and views that a file has; none if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        require_file(file)
        with safe_open(file, framework="np") as content:
            return set(_as_keys(content.get_tensor("images")))
    except (SafetensorError, OSError, ValueError):
        return set()


def _as_keys(images: NDArray[np.int64]) -> list[Key]:
    return [(image, view) for image, view in images.view("<u8").tolist()]


def content_hashes(paths: Sequence[Path]) -> Iterator[list[int | str]]:
    """A hash of each file's bytes, or why it cannot be read; some files at a time."""
    with ThreadPoolExecutor(DECODERS, "hash") as pool:
        for start in range(0, len(paths), _FILES_AT_ONCE):
            yield list(pool.map(_content_hash, paths[start : start + _FILES_AT_ONCE]))


def _content_hash(path: Path) -> int | str:
    try:
        require_file(path)
        with path.open("rb") as file:
            return int.from_bytes(
                hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).digest(), "little"
            )
    except OSError as error:
        return reason(error)
