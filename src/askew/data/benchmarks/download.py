"""Downloads that are resumed where they were interrupted, checked by their MD5 and moved into place when complete.

Until then they are kept as `<name>.part`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from askew.core.errors import UserError
from askew.core.files import cannot_write, open_own

_CHUNK = 1 << 16
_TIMEOUT = 30.0

Progress = Callable[[int, int | None], None]  # bytes so far, of how many


@dataclass(frozen=True)
class Remote:
    """A file, the addresses that have it, and its MD5."""

    name: str
    urls: tuple[str, ...]
    md5: str


def digit_files(name: str) -> tuple[Remote, ...]:
    """MNIST's, USPS's or SVHN's files as torchvision knows them."""
    from torchvision import datasets

    if name == "mnist":
        return tuple(
            Remote(file, tuple(mirror + file for mirror in datasets.MNIST.mirrors), md5)
            for file, md5 in datasets.MNIST.resources
        )
    listed = datasets.USPS.split_list if name == "usps" else datasets.SVHN.split_list
    # SVHN is only ever a source here, so its train part is all that is needed.
    parts = ("train", "test") if name == "usps" else ("train",)
    return tuple(Remote(file, (url,), md5) for url, file, md5 in (listed[part] for part in parts))


def md5_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def fetch(remote: Remote, folder: Path, progress: Progress = lambda done, size: None) -> Literal["there", "fetched"]:
    """Bring a file into a folder, from the first address that answers."""
    target = folder / remote.name
    if target.is_file():
        if md5_of(target) == remote.md5:
            return "there"
        raise UserError(
            f"{target} is there already, and is not the file that was expected (another MD5).",
            "move it away and start again.",
        )
    part = folder / f"{remote.name}.part"
    reasons = []
    for url in remote.urls:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _download(url, part, progress)
        except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
            reasons.append(f"{url}: {getattr(error, 'reason', '') or error}")
            continue
        except OSError as error:
            raise cannot_write(error, part, "free some space or choose another folder with --data.") from error
        found = md5_of(part)
        if found == remote.md5:
            _flush(part)
            part.replace(target)
            return "fetched"
        part.unlink()  # it cannot be resumed
        reasons.append(f"{url}: it sent another file (MD5 {found}, expected {remote.md5})")
    so_far = f" {part.stat().st_size:,} bytes of it are kept." if part.is_file() else ""
    raise UserError(
        f"{remote.name} could not be fetched. {'; '.join(reasons)}.{so_far}",
        f"start again to go on, or put the file into {folder} yourself.",
    )


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _download(url: str, part: Path, progress: Progress) -> None:
    """Append to `part` what is missing of it, or start again if the server cannot resume."""
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # there is nothing after what we have: it is whole, or it is of another file
            return
        raise
    with answer:
        going_on = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(f"bytes {have}-")
        if have and answer.status == 206 and not going_on:
            raise http.client.HTTPException("it answered with another part than the one that was asked for")
        done = have if going_on else 0
        length = answer.headers.get("Content-Length")
        size = done + int(length) if length is not None else None
        with open_own(part, "ab" if going_on else "wb") as file:
            for chunk in _chunks(answer):
                file.write(chunk)
                done += len(chunk)
                progress(done, size)
    if size is not None and done < size:
        raise ConnectionError(f"the connection broke after {done:,} of {size:,} bytes")


def _chunks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """What a server sends; its errors become ConnectionErrors, apart from those of our disk."""
    try:
        while chunk := answer.read(_CHUNK):
            yield chunk
    except http.client.IncompleteRead as error:
        yield error.partial
    except OSError as error:
        raise ConnectionError(str(error)) from error
