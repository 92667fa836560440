"""Small trees of generated pictures in the folders and lists of Office-Home and DomainNet."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CLASSES = (
    "Alarm_Clock",
    "backpack",
    "Trash_Can",
    "TV",
    "Webcam",
)  # in the rule's order: case does not count


def picture(path: Path, side: int = 24) -> Path:
    """Noise that is a function of the path, in a colour that is one of the class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(f"{path.parent.name}/{path.name}".encode()))
    tint = np.random.default_rng(zlib.crc32(path.parent.name.encode())).integers(0, 200, 3)
    pixels = (tint + rng.integers(0, 55, (side, side, 3))).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def write_list(path: Path, lines: Sequence[str], ends: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + ends for line in lines).encode())
    return path


def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache for one test alone."""
    monkeypatch.setenv("ASKEW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASKEW_SKIP_BROKEN", raising=False)
    monkeypatch.delenv("ASKEW_LISTS", raising=False)
    return tmp_path / "cache"


def office_home(data: Path) -> Path:
    """A data folder with Real World, Product and Clipart, five classes of 12 to 20 pictures
    each."""
    for domain in ("Real World", "Product", "Clipart"):
        for k, name in enumerate(CLASSES):
            for i in range(12 + 2 * k):
                picture(data / "office_home" / domain / name / f"{i:05}.jpg")
    return data


def domainnet(data: Path) -> Path:
    """A data folder with real and sketch, three classes in lists and one that no list names."""
    root = data / "domainnet"
    for d, domain in enumerate(("real", "sketch")):
        for part, n in (("train", 8), ("test", 4)):
            lines = []
            for k, name in enumerate(("bee", "airplane", "cat")):
                for i in range(n + 2 * k * (1 - d)):
                    file = f"{domain}/{name}/{domain}_{part}_{i:06}.jpg"
                    picture(root / file)
                    lines.append(f"{file} {k}")
            write_list(root / f"{domain}_{part}_mini.txt", lines)
        picture(root / domain / "zebra" / "not_listed.jpg")
    return data
