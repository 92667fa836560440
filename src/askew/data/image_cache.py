"""Pictures decoded once: a memory-mapped uint8 file (n, 3, 256, 256) and an index of what is in it.

`<cache>/pictures-<name>-<hash of the folder>.npy` and `.json`. The index has the form, and for each
picture its path, size, times of change and a hash of its pixels; it is written last. A damaged
cache is rebuilt, and so is one whose files changed on the disk; pictures that did not change are
copied from the old cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import cannot_write, sweep, whole_file
from askew.core.locks import locked
from askew.core.text import visible
from askew.data.decode import SIDE, decode, decoding, reason
from askew.data.domains import RowSubset
from askew.data.paths import cache_folder

FORM = 2  # bump when pixels or the index change
SHAPE = (3, SIDE, SIDE)

_ROW = 3 * SIDE * SIDE  # bytes
_BLOCK = 32  # pictures that a thread decodes at a time
_SAMPLE = 16  # rows whose pixels are compared with the index whenever a cache is opened
_HINT = "set ASKEW_CACHE to a folder with room: a picture takes 192 KiB there."

Stamp = tuple[str, int, int, int]
"""Path, bytes, and times of change in ns: of the content, which programs such as rsync set, and of
the file itself, which none can set."""


@dataclass(frozen=True)
class Pictures:
    """The decoded pictures of one domain: those that could be decoded, by their place in what was
    asked for."""

    x: RowSubset
    kept: NDArray[np.int64]
    broken: dict[str, str]
    """Why the others could not."""


def pictures(
    name: str, root: Path, paths: Sequence[str], *, skip_broken: bool = False, whole: bool = False
) -> Pictures:
    """The pictures `paths` below `root`, decoded now or before.

    A broken or missing one is a UserError, unless it may be skipped: by this argument, which the
    cache remembers until a file changes, or by ASKEW_SKIP_BROKEN=1. `whole` compares all pixels
    with the index, not only a sample of them.
    """
    folder = cache_folder()
    stem = f"pictures-{name}-{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:12]}"
    with _claimed(folder / f".{stem}.lock"):
        sweep(folder)
        stamps = [_stamp(root, path) for path in paths]
        store = _Store(folder / f"{stem}.npy", folder / f"{stem}.json")
        index = store.index()
        if (
            index is None
            or [tuple(f[:-1]) for f in index["files"]] != stamps
            or not store.sound(index, whole)
        ):
            index = _build(store, root, stamps, index)
        broken: dict[str, str] = index["broken"]
        if skip_broken and broken and not index["skip"]:
            index["skip"] = True
            store.write(index)
    if broken and not (index["skip"] or os.environ.get("ASKEW_SKIP_BROKEN", "") not in ("", "0")):
        first = "; ".join(f"{root / path} ({why})" for path, why in list(broken.items())[:3])
        raise UserError(
            f"{_pictures(len(broken))} of {len(paths)} cannot be read: "
            f"{visible(first, keep='')}{'; …' if len(broken) > 3 else ''}.",
            "mend or remove them, or leave them out with `askew data check "
            f"{name.split('--')[0]} --skip-broken`.",
        )
    kept = np.array([i for i, path in enumerate(paths) if path not in broken], dtype=np.int64)
    hashes = np.array([int(file[-1], 16) for file in index["files"]], dtype="<u8")
    return Pictures(RowSubset(store.pixels(len(paths)), kept, hashes), kept, broken)


def _pictures(n: int) -> str:
    return "1 picture" if n == 1 else f"{n} pictures"


@contextlib.contextmanager
def _claimed(lock: Path) -> Iterator[None]:
    """Hold a cache alone, so that two processes do not decode the same; one that dies lets go."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
    except OSError as error:
        raise cannot_write(error, lock, _HINT) from error
    with locked(lock):
        yield


def _stamp(root: Path, path: str) -> Stamp:
    """What tells whether a file has changed; a missing one has the stamp of an empty file, and
    fails to decode."""
    try:
        about = (root / path).stat()
    except (OSError, ValueError):  # a name with a zero byte is a ValueError
        return path, 0, 0, 0
    return path, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _hash(pixels: bytes) -> str:
    return hashlib.blake2b(pixels, digest_size=8).hexdigest()


@dataclass(frozen=True)
class _Store:
    """The two files of a cache."""

    array: Path
    list: Path

    def index(self) -> dict[str, Any] | None:
        """The index; None if there is no cache, or one of another form, or a damaged one."""
        try:
            index: dict[str, Any] = json.loads(self.list.read_text(encoding="utf-8"))
            fits = index["form"] == FORM and self.array.stat().st_size == index["bytes"]
            known = all(len(file) == 5 for file in index["files"]) and isinstance(
                index["broken"], dict
            )
            fits = fits and known and isinstance(index["skip"], bool)
            return index if fits and self.pixels(len(index["files"])) is not None else None
        except Exception:  # whatever is wrong with it, a cache only ever saves time
            return None

    def write(self, index: dict[str, Any]) -> None:
        with whole_file(self.list, _HINT) as temporary:
            temporary.write_text(json.dumps(index), encoding="utf-8")

    def pixels(self, n: int) -> NDArray[np.uint8]:
        # Copy on write: torch asks for memory that it may write to, and the file stays as it is.
        x: NDArray[np.uint8] = np.load(self.array, mmap_mode="c", allow_pickle=False)
        if x.dtype != np.uint8 or x.shape != (n, *SHAPE):
            raise ValueError(f"{self.array} holds {x.dtype} {x.shape}")
        return x

    def sound(self, index: dict[str, Any], whole: bool) -> bool:
        """Whether the pixels are those that the index names: all of them, or a sample."""
        files = index["files"]
        x = self.pixels(len(files))
        rows = (
            range(len(files))
            if whole
            else sorted(set(np.linspace(0, len(files) - 1, _SAMPLE).astype(int).tolist()))
        )
        return all(_hash(x[i].tobytes()) == files[i][-1] for i in rows)


def _build(
    store: _Store, root: Path, stamps: Sequence[Stamp], old: dict[str, Any] | None
) -> dict[str, Any]:
    """Decode what is not in the old cache, and put the new one in its place: the pixels, then the
    index."""
    hashes: dict[int, str] = {}
    broken: dict[str, str] = {}
    known = (
        {tuple(f[:-1]): (i, f[-1]) for i, f in enumerate(old["files"]) if f[0] not in old["broken"]}
        if old
        else {}
    )
    with whole_file(store.array, _HINT) as temporary:
        with temporary.open("wb") as file:
            head = {"descr": "|u1", "fortran_order": False, "shape": (len(stamps), *SHAPE)}
            np.lib.format.write_array_header_1_0(file, head)
            start = file.tell()
            _reserve(file.fileno(), start + len(stamps) * _ROW)
            before = store.pixels(len(old["files"])) if old and known else None
            for row, stamp in enumerate(stamps):
                place, known_hash = known.get(stamp, (0, ""))
                if (
                    before is not None
                    and known_hash
                    and _hash(pixels := before[place].tobytes()) == known_hash
                ):
                    file.seek(start + row * _ROW)
                    file.write(pixels)
                    hashes[row] = known_hash
        todo = [(row, stamp[0]) for row, stamp in enumerate(stamps) if row not in hashes]
        for row, pixel_hash, why in _decode_all(temporary, start, root, todo):
            hashes[row] = pixel_hash
            if why:
                broken[stamps[row][0]] = why
    index = {
        "form": FORM,
        "root": str(root.resolve()),
        "bytes": start + len(stamps) * _ROW,
        "skip": False,
        "broken": dict(sorted(broken.items())),
        "files": [[*stamp, hashes[row]] for row, stamp in enumerate(stamps)],
    }
    store.write(index)
    return index


def _reserve(file: int, size: int) -> None:
    """Take the room first where the system can: a full disk is then found before anything is
    decoded."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # neither Windows nor macOS has it
        os.truncate(file, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.truncate(file, size)


Decoded = tuple[int, str, str]  # row, hash of its pixels, why it is broken


def _decode_block(
    file: Path, start: int, root: Path, block: Sequence[tuple[int, str]]
) -> list[Decoded]:
    """Decode some pictures straight into the file; broken ones become black."""
    done = []
    with file.open("rb+") as handle:
        for row, path in block:
            why, pixels = "", bytes(_ROW)
            try:
                pixels = decode(root / path).tobytes()
            except Exception as error:
                why = reason(error).replace(str(root / path), path)[:120]
            handle.seek(start + row * _ROW)
            handle.write(pixels)
            done.append((row, _hash(pixels), why))
    return done


def _decode_all(
    file: Path, start: int, root: Path, todo: Sequence[tuple[int, str]]
) -> Iterator[Decoded]:
    """The same for all, in threads and under a progress bar where there is a terminal.

    Threads are enough, because Pillow decodes and resizes outside of Python's lock, and nobody else
    needs it meanwhile.
    """
    from rich.console import Console
    from rich.progress import Progress

    blocks = [todo[i : i + _BLOCK] for i in range(0, len(todo), _BLOCK)]
    console = Console(stderr=True)
    pool = ThreadPoolExecutor(thread_name_prefix="decode")
    with (
        decoding(),
        Progress(console=console, disable=not console.is_terminal, transient=True) as bars,
    ):
        bar = bars.add_task(f"decoding {root.name}", total=len(todo))
        try:
            for block in pool.map(partial(_decode_block, file, start, root), blocks):
                yield from block
                bars.update(bar, advance=len(block))
        finally:
            pool.shutdown(cancel_futures=True)
