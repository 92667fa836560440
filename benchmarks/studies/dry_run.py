"""A dry run of Office-Home or DomainNet without their pictures, from the published lists and
generated pictures.

Every line of every list gets a picture of noise in its class's colour, so that classes, counts,
splits and shifts are the real ones; then the grids are counted, and one short run of each method
shows that all of it can be trained:

    python benchmarks/studies/dry_run.py office-home LISTS --every 20
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

FOLDERS = {"office-home": "office_home", "domainnet": "domainnet"}
GRID = Path(__file__).parents[1] / "grids"
SHORT = (
    "pretrain=2",
    "rounds=1",
    "round=2",
    "batch=4",
    "crop=64",
    "weights=none",
    "precision=float32",
)


def draw(path: Path, side: int) -> None:
    """Noise that is a function of the path, in a colour that is one of the class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tint = np.random.default_rng(zlib.crc32(path.parent.name.lower().encode())).integers(0, 200, 3)
    noise = np.random.default_rng(zlib.crc32(str(path).encode())).integers(0, 55, (side, side, 3))
    Image.fromarray((tint + noise).astype(np.uint8)).save(path)


def lay_out(benchmark: str, lists: Path, data: Path, every: int, side: int) -> int:
    """Write the lists, thinned, and their pictures into a data folder; how many pictures there
    are."""
    root, pictures = data / FOLDERS[benchmark], set[Path]()
    root.mkdir(parents=True, exist_ok=True)
    for file in sorted(lists.glob("*.txt")):
        lines, kept, seen = file.read_text().splitlines(), [], dict[str, int]()
        for line in lines:
            folder = line.split("/")[-2]
            seen[folder] = seen.get(folder, 0) + 1
            if seen[folder] % every == 1 or every == 1 or seen[folder] <= 3:  # some of every class
                kept.append(line)
        (root / file.name).write_text("".join(f"{line}\n" for line in kept))
        for line in kept:
            domain, folder, name = line.rsplit(maxsplit=1)[0].split("/")[-3:]
            pictures.add(root / domain / folder / name)
    for path in sorted(pictures):
        if not path.exists():
            draw(path, side)
    return len(pictures)


def askew(data: Path, *words: object) -> None:
    command = [sys.executable, "-m", "askew", *map(str, words)]
    print("$ askew", *command[3:], flush=True)
    environment = {**os.environ, "ASKEW_DATA": str(data), "ASKEW_CACHE": str(data / "cache")}
    subprocess.run(command, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=FOLDERS)
    parser.add_argument("lists", type=Path, help="folder of the published lists")
    parser.add_argument(
        "--out", type=Path, default=Path("dry-run"), help="folder for pictures, cache and runs"
    )
    parser.add_argument(
        "--every", type=int, default=1, help="of each class, keep one line of a list in so many"
    )
    parser.add_argument("--side", type=int, default=32, help="pixels of a picture")
    parser.add_argument(
        "--methods",
        default="source,coal,mcc,sentry,teacher",
        help="methods of the short runs; empty: none",
    )
    parser.add_argument("--task", default="", help="task of the short runs; default: the first")
    parser.add_argument("--net", default="resnet18", help="network of the short runs")
    options = parser.parse_args()
    data = options.out / options.benchmark
    count = lay_out(options.benchmark, options.lists, data, options.every, options.side)
    print(f"{count:,} pictures in {data}", flush=True)
    for grid in (f"{options.benchmark}.toml", f"{options.benchmark}-recipes.toml"):
        askew(data, "bench", GRID / grid, "--dry-run", "--out", data / "runs", "-t", "weights=none")
    task = options.task or {"office-home": "rw-pr", "domainnet": "r-c"}[options.benchmark]
    if options.methods:
        askew(
            data,
            "bench",
            options.benchmark,
            "--recipe",
            "paper,today",
            "--tasks",
            task,
            "--methods",
            options.methods,
            "--seeds",
            1,
            "--jobs",
            1,
            "--out",
            data / "runs",
            "-t",
            f"net={options.net}",
            *(word for setting in SHORT for word in ("-t", setting)),
        )


if __name__ == "__main__":
    main()
