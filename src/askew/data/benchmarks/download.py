"""Downloads: files, checked by their MD5, and pictures from a data set of the Hub, checked by their
number.

A file that was interrupted is resumed: until it is complete it is kept as `<name>.part`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from askew.core import hub
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


def fetch(
    remote: Remote, folder: Path, progress: Progress = lambda done, size: None
) -> Literal["there", "fetched"]:
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
            _download(url, part, progress)
        except (
            urllib.error.URLError,
            http.client.HTTPException,
            TimeoutError,
            ConnectionError,
            ValueError,
        ) as error:
            # A redirection that is no address is a ValueError.
            reasons.append(f"{url}: {getattr(error, 'reason', '') or error}")
            continue
        except OSError as error:
            raise cannot_write(
                error, part, "free some space or choose another folder with --data."
            ) from error
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
        if (
            error.code == 416 and have
        ):  # there is nothing after what we have: it is whole, or it is of another file
            return
        raise
    with answer:
        going_on = answer.status == 206 and str(answer.headers.get("Content-Range", "")).startswith(
            f"bytes {have}-"
        )
        if have and answer.status == 206 and not going_on:
            raise http.client.HTTPException(
                "it answered with another part than the one that was asked for"
            )
        done = have if going_on else 0
        length = answer.headers.get("Content-Length")
        size = (
            done + int(length) if length is not None and length.isdecimal() else None
        )  # some send nonsense
        part.parent.mkdir(
            parents=True, exist_ok=True
        )  # only now: a server that cannot be reached leaves nothing
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


# --- pictures from the Hub ---

_SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"BM": ".bmp", b"GI": ".gif", b"RI": ".webp"}


def fetch_images(
    repository: str, folder: Path, published: Mapping[str, int], progress: Callable[[int], None]
) -> dict[str, int]:
    """Unpack a data set with the columns `image`, `domain` and `label` into
    folder/<Domain>/<Class>.

    The number of pictures per domain must be the published one; until it is, nothing appears in the
    folder.
    """
    if find_spec("pyarrow") is None:
        raise UserError(
            "The Hub's data sets are Parquet files, which need pyarrow.", "pip install 'askew[hub]'"
        )
    if folder.exists():
        raise UserError(
            f"{folder} is there already.",
            "move it away to fetch it again; `askew data check` looks at it.",
        )
    files = sorted(hub.download(repository, "dataset", ["data/*.parquet"]).rglob("*.parquet"))
    if not files:
        raise UserError(
            f"{hub.endpoint()} has no Parquet files in {repository}.",
            "get it from its authors' page.",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as scratch:
            found = _unpack(files, Path(scratch) / "tree", progress)
            if found != dict(published):
                raise UserError(
                    f"{repository} holds {_listed(found)}, where {_listed(published)} were "
                    "published.",
                    "it has changed: get the data set from its authors' page.",
                )
            shutil.move(Path(scratch) / "tree", folder)
    except OSError as error:
        raise cannot_write(
            error, folder, "free some space or choose another folder with --data."
        ) from error
    return found


def _unpack(files: list[Path], tree: Path, progress: Callable[[int], None]) -> dict[str, int]:
    """Write every picture; how many each domain has."""
    counts: dict[str, int] = {}
    for domain, label, image in _rows(files):
        counts[domain] = counts.get(domain, 0) + 1
        content = image["bytes"]
        name = (
            Path(image.get("path") or "").name
            or f"{counts[domain]:05}{_SUFFIXES.get(content[:2], '.jpg')}"
        )
        place = tree / _one_folder(domain) / _one_folder(label)
        place.mkdir(parents=True, exist_ok=True)
        with (place / name).open("xb") as file:
            file.write(content)
        progress(1)
    return counts


def _rows(files: list[Path]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Domain, class and picture of every row; numbers of classes become their names."""
    import pyarrow.parquet as parquet

    for path in files:
        file = parquet.ParquetFile(path)
        names = _class_names(file.schema_arrow.metadata or {})
        for batch in file.iter_batches(64, columns=["image", "domain", "label"]):
            for row in batch.to_pylist():
                domain, label = (
                    names[column][row[column]] if column in names else str(row[column])
                    for column in ("domain", "label")
                )
                yield domain, label, row["image"]


def _class_names(metadata: Mapping[bytes, bytes]) -> dict[str, list[str]]:
    """The names of each column's classes, which the Hub's library keeps in a Parquet file's
    metadata."""
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return {column: feature["names"] for column, feature in features.items() if "names" in feature}


def _one_folder(name: str) -> str:
    """A name that stays in its folder, whatever a stranger's file says."""
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        raise UserError(
            f"The data set holds the name '{name}', which is no name of a folder.",
            "it has changed.",
        )
    return name


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} of {name}" for name, n in sorted(counts.items()))
