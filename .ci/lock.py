"""Write requirements.lock: the versions of constraints.txt with the hashes of their files, for
Linux on x86-64.

    python .ci/lock.py
    pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation
    -e .

The hashes are those that pip's package index lists; the file names no address, so any mirror of it
will do.
"""

from __future__ import annotations

import os
import re
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK, PINS = ROOT / "requirements.lock", ROOT / "constraints.txt"
PYTHONS = ("cp311", "cp312", "cp313", "abi3")
HEAD = (
    "# Written by `python .ci/lock.py` from constraints.txt: what `pip install "
    "--require-hashes` accepts."
)


class Links(HTMLParser):
    """The hashes in a page of the package index, by the name of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.hashes: dict[str, str] = {}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        address = urllib.parse.urlsplit(dict(attributes).get("href") or "")
        if tag == "a" and address.fragment.startswith("sha256="):
            self.hashes[urllib.parse.unquote(Path(address.path).name)] = (
                address.fragment.removeprefix("sha256=")
            )


def canonical(name: str) -> str:
    """A package's name as an index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: Path = PINS) -> dict[str, str]:
    """Version by name."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return {
        canonical(name): version
        for name, _, version in (line.partition("==") for line in lines if line)
    }


def fits(file: str, name: str, version: str) -> bool:
    """Whether a file is a wheel of that version for Linux on x86-64, or for any system."""
    parts = file.removesuffix(".whl").split("-")
    if not file.endswith(".whl") or canonical(parts[0]) != name or parts[1] != version:
        return False
    python, abi, system = parts[-3:]
    if system == "any":
        return "py3" in python
    return (
        "linux" in system
        and "x86_64" in system
        and ("py3" in python or any(p in (python, abi) for p in PYTHONS))
    )


def hashes(name: str, version: str) -> list[str]:
    """The hashes of a version's files, sorted."""
    from pip._internal.models.index import PyPI

    index = os.environ.get("PIP_INDEX_URL", PyPI.simple_url).rstrip("/")
    request = urllib.request.Request(f"{index}/{name}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        page = Links()
        page.feed(answer.read().decode())
    found = sorted(digest for file, digest in page.hashes.items() if fits(file, name, version))
    if not found:
        raise SystemExit(f"The index lists no wheel of {name} {version}.")
    return found


def main() -> None:
    wanted = pins()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(hashes, wanted, wanted.values()))
    lines = [HEAD]
    for (name, version), digests in zip(wanted.items(), found, strict=True):
        lines += [
            f"{name}=={version} \\",
            *(f"    --hash=sha256:{digest} \\" for digest in digests[:-1]),
        ]
        lines.append(f"    --hash=sha256:{digests[-1]}")
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{len(wanted)} packages, {sum(map(len, found))} hashes in {LOCK.name}")


if __name__ == "__main__":
    main()
