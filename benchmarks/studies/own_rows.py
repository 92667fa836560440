"""Frozen embeddings of pairs of domains, under a label shift."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from askew.core.files import whole_file
from askew.data import label_shift
from askew.data.custom import list_pictures
from askew.data.decode import decode
from askew.inference.embeddings import embed_rows
from askew.nets.embedding import Embedding

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
REPORTED = {("photo", "sketch"), ("cartoon", "photo"), ("sketch", "photo"), ("photo", "cartoon")}
MANY = ("letters", "symbols", "scenes", "icons", "emoji", "stamps")
TABLES = ("wine", "cancer", "four", "six", "nine")
PAIRS = {
    "development": [pair for pair in itertools.permutations(DOMAINS, 2) if pair not in REPORTED],
    "reported": sorted(REPORTED),
    "restyled": [
        ("art_lines", "photo"),
        ("art_flat", "photo"),
        ("photo", "art_lines"),
        ("photo", "art_flat"),
    ],
    "rows": [("first_sensor", "second_sensor"), ("second_sensor", "first_sensor")],
    "digits": [("usps", "mnist")],
    "many": [(f"{kind}_{a}", f"{kind}_{b}") for kind in MANY for a, b in ("pq", "qp")],
    "collected": [(f"{kind}_{a}", f"{kind}_{b}") for kind in MANY[3:] for a, b in ("pq", "qp")],
    "tables": [(f"{kind}_{a}", f"{kind}_{b}") for kind in TABLES for a, b in ("pq", "qp")],
}
"""Rows are no pictures: handwritten digits as 64 numbers, and as a second sensor would measure
them; tables, to develop on, are others of scikit-learn's, and made ones of so many classes. Many
classes are those that glyphs.py draws and drawings.py collects, restyled ones those of restyle.py,
all to develop on."""
SHIFTS = ("rs-ut", "natural", "reversed")
ROLES = ("source", "target")


def embed(
    pictures: Path, out: Path, embedding: Embedding, side: int, shift: str, device: torch.device
) -> None:
    """One row per picture of each domain, a folder with one folder per class, as `askew adapt`
    embeds it: DOMAIN.npz, and a file more for each role that the shift leaves a part of it, since
    batch statistics hang on which pictures a domain has. Files that are there stay."""
    out.mkdir(parents=True, exist_ok=True)
    for domain in sorted(folder for folder in pictures.iterdir() if folder.is_dir()):
        listing = list_pictures(domain, "source")
        assert listing is not None
        names = np.array([Path(path).parent.name for path in listing.paths])
        _, y = np.unique(names, return_inverse=True)
        draws = {"": np.arange(len(y))}
        for role in ROLES if embedding.uses_domain else ():
            rows = label_shift.draw(y, wanted(np.bincount(y), shift, role == "source"), 0)
            draws |= {f".{shift}.{role}": rows} if len(rows) < len(y) else {}
        missing = [name for name in draws if not (out / f"{domain.name}{name}.npz").exists()]
        if not missing:
            continue
        x = np.stack([decode(listing.root / path, (3, side, side)) for path in listing.paths])
        for name in missing:
            rows = draws[name]
            found = embed_rows(x[rows], embedding, device)
            with (
                whole_file(out / f"{domain.name}{name}.npz", "name another folder.") as new,
                new.open("wb") as file,
            ):
                np.savez(file, x=found, y=names[rows], path=np.array(listing.paths)[rows])
            print(f"{domain.name}{name}", len(rows), flush=True)


def sensors(out: Path) -> None:
    """Tables in two halves, the second as another sensor would measure it: a gain and an offset for
    each number, a part of its neighbours', and noise. scikit-learn's digits are reported, the
    others are to develop on."""
    from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification

    out.mkdir(parents=True, exist_ok=True)
    x, y = load_digits(return_X_y=True)
    _write_halves(out, ("first_sensor", "second_sensor"), x, y, gain=0.6, offset=4, noise=2)
    for name in TABLES:
        if name in ("wine", "cancer"):
            x, y = {"wine": load_wine, "cancer": load_breast_cancer}[name](return_X_y=True)
        else:
            c = {"four": 4, "six": 6, "nine": 9}[name]
            shape = {
                "n_features": 5 * c,
                "n_informative": 3 * c,
                "n_classes": c,
                "n_clusters_per_class": 1,
            }
            x, y = make_classification(250 * c, **shape, class_sep=1.5, random_state=c)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        _write_halves(out, (f"{name}_p", f"{name}_q"), x, y, gain=0.6, offset=0.7, noise=0.4)


def _write_halves(
    out: Path, names: tuple[str, str], x: Any, y: Any, gain: float, offset: float, noise: float
) -> None:
    """Gains are between 1 − gain and 1 + gain, offsets between −offset and offset."""
    rng = np.random.default_rng(0)
    half = rng.permutation(len(x))
    gains, offsets = (
        rng.uniform(low, high, x.shape[1])
        for low, high in ((1 - gain, 1 + gain), (-offset, offset))
    )
    blurred = 0.5 * x + 0.25 * np.roll(x, 1, axis=1) + 0.25 * np.roll(x, -1, axis=1)
    second = gains * blurred + offsets + rng.normal(0, noise, x.shape)
    labels = np.array([f"class {k}" for k in y])
    for name, rows, which in zip(names, (x, second), (half[::2], half[1::2]), strict=True):
        np.savez(out / f"{name}.npz", x=rows[which].astype(np.float32), y=labels[which])


def draw(
    embeddings: Path, pair: tuple[str, str], shift: str, folder: Path
) -> tuple[Path, Path, NDArray[np.int64]]:
    """A pair of domains under a shift: two files to adapt with, and the labels of the second."""
    files, y = [], np.zeros(0, dtype=np.int64)
    for domain, role in zip(pair, ROLES, strict=True):
        drawn = embeddings / f"{domain}.{shift}.{role}.npz"
        array = np.load(drawn if drawn.exists() else embeddings / f"{domain}.npz")
        _, y = np.unique(array["y"], return_inverse=True)
        counts = np.bincount(y)
        rows = label_shift.draw(
            y, counts if drawn.exists() else wanted(counts, shift, role == "source"), 0
        )
        files.append(folder / f"{domain}.npz")
        labels = {"y": array["y"][rows]} if domain == pair[0] else {}
        np.savez(files[-1], x=array["x"][rows], **labels)
        y = y[rows]
    return files[0], files[1], y


def wanted(sizes: NDArray[np.int64], shift: str, source: bool) -> NDArray[np.int64]:
    """How many images of each class a domain gives; reversed: all of the first class in the target,
    a tenth of the last, and the other way round in the source, but two or three at least. (c,) →
    (c,)"""
    if shift == "natural":
        return sizes
    if shift == "rs-ut":
        counts = label_shift.rs_counts if source else label_shift.ut_counts
        return counts(sizes, label_shift.picture_tail(len(sizes)))
    tail = label_shift.long_tail(len(sizes), 100, 1, 10)
    share = tail[:: -1 if source else 1] / tail[0]
    return np.maximum(3 if source else 2, np.round(sizes * share)).astype(np.int64)
