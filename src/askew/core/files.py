"""Files that are there whole or not at all, with hashes so that damage shows."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from askew.core.errors import UserError

if TYPE_CHECKING:  # torch takes seconds to import, and who counts or tabulates runs needs none of it
    from torch import Tensor


def cannot_write(error: OSError, path: Path, hint: str) -> UserError:
    """A write that failed, as the user can mend it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(f"There is no room left on the disk for {path.name} in {path.parent}.", hint)
    return UserError(f"Cannot write {path}: {error.strerror or error}.", hint)


@contextlib.contextmanager
def whole_file(path: Path, hint: str) -> Iterator[Path]:
    """A temporary name beside `path` to write to; it takes the path's place once it is on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C must not leave a temporary file either
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(error, path, hint) from error
        raise


_HINT = (
    "see that the folder is there, writable and has room, then start the same command again: it goes on from the last "
    "checkpoint. Or choose another folder with --out."
)


_OLD_NOTES = {"form", "step", "losses", "trace"}  # all that files of before there were hashes have


class Unwritable(UserError):
    """A folder of runs that cannot be written to: no other run will fare better."""


class Damaged(UserError):
    """A file that is not as it was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"The file {path} is damaged.",
            "start the command that made it again: runs with damaged results are done anew.",
        )


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A write that fails, explained."""
    try:
        yield
    except OSError as error:
        told = cannot_write(error, path, _HINT)
        raise Unwritable(told.sentence, told.hint) from error
    except UserError as error:
        raise Unwritable(error.sentence, error.hint) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, into a folder that is there: a mount that has vanished must not be written beneath."""
    with _writing(path):
        path.parent.stat()
        with whole_file(path, _HINT) as temporary:
            temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Values a line each, but for lists of numbers: a confusion matrix has as many lines as rows."""
    text = re.sub(
        r"\[\s+([-+.\deE,\s]+?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", json.dumps(value, indent=1)
    )
    write_bytes(path, (text + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str]) -> None:
    """Tensors and notes, with a hash of both."""
    from safetensors.torch import save

    kept = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # One entry, since safetensors writes several in any order, and equal runs should be equal files.
    notes = json.dumps(meta | {"hash": _digest(kept, meta)})
    write_bytes(path, save(kept, metadata={"notes": notes}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same back; Damaged if they are not what was written."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = file.metadata() or {}
        if "notes" not in meta and meta.keys() <= _OLD_NOTES:
            return tensors, meta
        meta = json.loads(meta["notes"])
        told = meta.pop("hash")
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(path) from error
    if told != _digest(tensors, meta):
        raise Damaged(path)
    return tensors, meta


def _digest(tensors: dict[str, Tensor], meta: dict[str, str]) -> str:
    """A hash of names, kinds, shapes and bytes, in the order of the names."""
    import torch

    hash = hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hash.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        bytes_of = tensor.as_strided((tensor.numel(),), (1,))  # a contiguous tensor of one element may have any stride
        hash.update(bytes_of.view(torch.uint8).numpy().data)
    return hash.hexdigest()


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def check_file(path: Path) -> None:
    """UserError if a file cannot be written there; writes nothing."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"Cannot write a file {path}.", "name a file in a folder that exists and is yours.")
