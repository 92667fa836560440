"""Files and folders that are there whole or not at all, with hashes by which damage is found."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from askew.core.errors import UserError
from askew.core.processes import is_alive, process_space

if (
    TYPE_CHECKING
):  # torch takes seconds to import, and commands that count or tabulate runs need none of it
    from torch import Tensor

FORGOTTEN = 86400.0
"""Seconds after which a temporary file is removed if its process cannot be seen from here."""

_HINT = (
    "see that the folder is there, writable and has room, then start the same command again: it "
    "goes on from the last "
    "checkpoint. Or choose another folder with --out."
)


def cannot_write(error: OSError, path: Path, hint: str) -> UserError:
    """The error for a write that failed."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return UserError(
            f"There is no room left on the disk for {path.name} in {path.parent}.", hint
        )
    return UserError(f"Cannot write {path}: {error.strerror or error}.", hint)


class Unwritable(UserError):
    """A folder of runs that cannot be written to: no other run will fare better."""


class Damaged(UserError):
    """A file that is not as it was written, or no longer there."""

    def __init__(self, path: Path, how: str = "damaged") -> None:
        super().__init__(
            f"The file {path} is {how}.",
            "start the command that made it again: runs with damaged results are done anew.",
        )


# --- temporary names ---

_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.(?P<space>[0-9a-f]{8})-(?P<pid>\d{1,10})-[0-9a-f]{16}", re.DOTALL
)


def _temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that cannot be foreseen; it holds the process that made it, for
    `sweep`."""
    return path.with_name(
        f".{_short(path.name)}.{process_space()}-{os.getpid()}-{secrets.token_hex(8)}"
    )


def _short(name: str) -> str:
    """A name, cut where it would leave no room for the rest of a temporary one: 255 bytes are the
    most."""
    return os.fsencode(name)[:200].decode(errors="ignore")


def is_temporary(path: Path) -> bool:
    """Whether a file or folder has a name that `whole_file` or `whole_folder` gave it for a
    while."""
    return _TEMPORARY.fullmatch(path.name) is not None


def sweep(folder: Path, name: str = "") -> None:
    """Remove temporary files and folders of processes that have died; only those for `name` if it
    is given."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    for path in entries:
        found = _TEMPORARY.fullmatch(path.name)
        if found is None or (name and found["name"] != _short(name)):
            continue
        with contextlib.suppress(OSError):
            alive = is_alive(found["space"], int(found["pid"]))
            if alive is False or (
                alive is None and time.time() - path.lstat().st_mtime > FORGOTTEN
            ):
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- whole or absent ---


def open_own(path: Path, mode: str) -> IO[Any]:
    """Open a file of ours under a name that others can foresee: a link planted there is not
    followed, nor a pipe waited for."""
    return open(path, mode, opener=_no_link)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


@contextlib.contextmanager
def whole_file(path: Path, hint: str) -> Iterator[Path]:
    """A new, empty file beside `path` to write to; it takes the path's place once it is on the
    disk."""
    sweep(path.parent, path.name)
    temporary = _temporary_name(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(_no_link(str(temporary), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    except BaseException as error:  # Ctrl-C must not leave a temporary file either
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(error, path, hint) from error
        raise


@contextlib.contextmanager
def whole_folder(path: Path, last: str, hint: str) -> Iterator[Path]:
    """A new folder to write files into; they take the path's place once all are on the disk.

    A folder that was not there appears by one rename. In one that is there, the files take their
    places one by one, and other files stay; so `last` is the file that names the others.
    """
    there = path.is_dir()
    place = path / path.name if there else path
    sweep(place.parent, place.name)
    temporary = _temporary_name(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        yield temporary
        files = sorted(temporary.iterdir(), key=lambda file: file.name == last)
        for file in files:
            _sync(file)
        if there:
            for file in files:
                file.replace(path / file.name)
            temporary.rmdir()
        else:
            temporary.replace(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise cannot_write(error, path, hint) from error
        raise


@contextlib.contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A folder for a while, which nobody else can enter; one whose process was killed is swept by
    the next."""
    place = Path(tempfile.gettempdir()) / name
    sweep(place.parent, name)
    folder = _temporary_name(place)
    try:
        folder.mkdir(0o700)
    except OSError as error:
        raise cannot_write(
            error, folder, "see that there is room for temporary files, or set TMPDIR."
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """Give a hidden folder beside `path` for a while; one whose process was killed is swept by the
    next."""
    sweep(path.parent, path.name)
    folder = _temporary_name(path)
    with writing(folder):
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync(file: Path) -> None:
    with file.open("rb+") as content:
        os.fsync(content.fileno())


def check_file(path: Path) -> None:
    """UserError if a file cannot be written there; writes nothing."""
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        why = (
            "it is a folder"
            if path.is_dir()
            else f"{path.parent} is no folder that you may write to"
        )
        raise UserError(
            f"Cannot write a file {path}: {why}.",
            "name a file in a folder that exists and is yours.",
        )


def require_other_file(output: Path, inputs: Iterable[Path]) -> None:
    """Raise a UserError if a file to write is one of the inputs."""
    for given in inputs:
        if output.exists() and given.exists() and output.samefile(given):
            raise UserError(
                f"The output {output} is the input {given}.", "write to a file of another name."
            )


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these pairs; ValueError if a name comes twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:80]!r} comes twice")
    return values


# --- files of runs ---


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is written into Unwritable."""
    try:
        yield
    except OSError as error:
        explained = cannot_write(error, path, _HINT)
        raise Unwritable(explained.sentence, explained.hint) from error
    except UserError as error:
        raise Unwritable(error.sentence, error.hint) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole, into a folder that is there: a mount that has vanished must not be
    written beneath."""
    with writing(path):
        path.parent.stat()
        with whole_file(path, _HINT) as temporary:
            temporary.write_bytes(content)


def as_json(value: Any) -> bytes:
    """JSON with one value per line, but lists of numbers in one: a confusion matrix has one line
    per row."""
    text = re.sub(
        r"\[\s+([-+.\deE,\s]+?)\s+\]",
        lambda found: f"[{' '.join(found[1].split())}]",
        json.dumps(value, indent=1),
    )
    return (text + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write a file of JSON whole."""
    write_bytes(path, as_json(value))


def digest(content: bytes) -> str:
    """A hash of some bytes, by which damage is found."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def file_digest(path: Path) -> str:
    """The same of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


# --- tensors ---

_KEYS_WITHOUT_HASH = {
    "form",
    "step",
    "losses",
    "trace",
}  # all that files written before there were hashes have


def write_tensors(path: Path, tensors: dict[str, Tensor], meta: dict[str, str]) -> None:
    """Write tensors and metadata as safetensors, with a hash of both."""
    from safetensors.torch import save

    kept = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    # One entry, since safetensors writes several in any order, and equal runs should be equal
    # files.
    notes = json.dumps(meta | {"hash": _tensor_digest(kept, meta)})
    write_bytes(path, save(kept, metadata={"notes": notes}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same back; Damaged if they are not what was written."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load

    if not path.exists():
        raise FileNotFoundError(path)
    if not path.is_file():  # a pipe would be waited for
        raise Damaged(path)
    try:
        if not _is_utf8(path):
            content = path.read_bytes()
            tensors = load(content)
            meta = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get(
                "__metadata__", {}
            )
        else:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                meta = file.metadata() or {}
        if "notes" not in meta and meta.keys() <= _KEYS_WITHOUT_HASH:
            return tensors, meta
        meta = json.loads(meta["notes"])
        hash = meta.pop("hash")
    except (
        SafetensorError,
        OSError,
        ValueError,
        RuntimeError,  # RecursionError too, of brackets within brackets
        KeyError,
        AttributeError,
        TypeError,
    ) as error:
        raise Damaged(path) from error
    if hash != _tensor_digest(tensors, meta):
        raise Damaged(path)
    return tensors, meta


def _is_utf8(path: Path) -> bool:
    """Whether a path is text, which safetensors insists on: it can be other bytes."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _tensor_digest(tensors: dict[str, Tensor], meta: dict[str, str]) -> str:
    """A hash of metadata, names, types, shapes and bytes, in the order of the names."""
    import torch

    hash = hashlib.blake2b(json.dumps(meta, sort_keys=True).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        hash.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        bytes_of = tensor.as_strided(
            (tensor.numel(),), (1,)
        )  # a contiguous tensor of one element may have any stride
        hash.update(bytes_of.view(torch.uint8).numpy().data)
    return hash.hexdigest()
