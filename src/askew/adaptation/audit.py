"""An adaptation against labels that were found afterwards, of all target images or of some drawn at random."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.adaptation.pipeline import read_outputs
from askew.core.errors import UserError, unknown
from askew.core.files import write_bytes
from askew.data.array_files import ARRAYS, label_names, read_array
from askew.data.image_lists import LISTS, read_folder, read_lines
from askew.evaluation.metrics import Estimate, accuracy_gain, mean_accuracy, score

_FORM = "a list of path,label (an empty label is passed over), a folder with a sub-folder a class, or an array with y."

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Audited:
    """One method before the labels."""

    name: str
    chosen: bool
    accuracy: Estimate
    """Mean over the classes that have labels."""
    gain: Estimate | None
    """The same above source-only; of source-only itself there is none."""
    said: str | None
    """What was said of it without labels: helped, unclear or hurt."""
    scores: Mapping[str, Any]

    @property
    def truth(self) -> str:
        """What labels say."""
        if self.gain is None:
            return "–"
        return "helped" if self.gain.low > 0 else "hurt" if self.gain.high < 0 else "unclear"


@dataclass(frozen=True, eq=False)
class Audit:
    """All that labels tell of an adaptation."""

    classes: tuple[str, ...]
    images: int
    """How many target images there are."""
    methods: tuple[Audited, ...]
    counts: Labels
    """Labels of each class. (c,)"""
    mix: NDArray[np.float64]
    """The class mix that was estimated without labels. (c,)"""

    @property
    def labelled(self) -> int:
        return int(self.counts.sum())

    @property
    def unseen(self) -> tuple[str, ...]:
        """Classes without a label."""
        return tuple(name for name, n in zip(self.classes, self.counts, strict=True) if not n)

    @property
    def mix_error(self) -> float:
        """L1 distance of the estimated mix to that of the labels, from 0 to 2."""
        return float(np.abs(self.mix - self.counts / self.labelled).sum())

    @property
    def sentence(self) -> str:
        before, chosen = self.methods[0], next(m for m in self.methods if m.chosen)
        on = f"{self.labelled} of {self.images} target images are labelled"
        if chosen.gain is None:
            return f"The network without adaptation was handed out; {on}: it has {chosen.accuracy} %."
        words = {"helped": "helped", "hurt": "did harm", "unclear": "made no difference that these labels can show"}
        return (
            f"Adaptation ({chosen.name}) {words[chosen.truth]}: {chosen.accuracy} % instead of {before.accuracy} %, "
            f"a difference of {chosen.gain} points; {on}. Without labels the verdict was '{chosen.said}'."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "labelled": self.labelled,
            "images": self.images,
            "sentence": self.sentence,
            "classes": list(self.classes),
            "counts": self.counts.tolist(),
            "target_mix": self.mix.tolist(),
            "mix_error": self.mix_error,
            "methods": [asdict(method) | {"truth": method.truth} for method in self.methods],
        }


def audit(out: Path, labels: Path) -> Audit:
    """Score every method of an adaptation in the folder `out`."""
    told, names = _told(out), _names(out)
    classes = tuple(told["classes"])
    rows, y = read_truth(labels, names, classes)
    before, *_ = predicted = [_predicted(out, method["run"], len(names))[rows] for method in told["methods"]]
    methods = tuple(
        Audited(
            method["name"],
            method["name"] == told["chosen"],
            mean_accuracy(y, own, len(classes)),
            None if own is before else accuracy_gain(y, before, own, len(classes)),
            method["against_source"],
            score(y, own, len(classes)),
        )
        for method, own in zip(told["methods"], predicted, strict=True)
    )
    counts = np.bincount(y, minlength=len(classes))
    return Audit(classes, len(names), methods, counts, np.array(told["target_mix"]["mix"]))


def draw_sheet(out: Path, n: int, sheet: Path) -> int:
    """Write a list of n target images, drawn at random, with room for their labels; how many there are.

    A longer sheet begins with the shorter one's images. What a network says of them is not in it: it would lead whoever
    labels them.
    """
    names = _names(out)
    if sheet.exists():
        raise UserError(f"{sheet} is there already, perhaps with labels.", "choose another file with -o.")
    chosen = np.random.default_rng(0).permutation(len(names))[:n]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "label"])
    rows.writerows([names[i], ""] for i in chosen)
    write_bytes(sheet, text.getvalue().encode(errors="surrogateescape"))
    return len(chosen)


# --- reading ---


def read_truth(file: Path, names: Sequence[str], classes: Sequence[str]) -> tuple[Labels, Labels]:
    """Which target images have labels, and which."""
    found = [(name, label) for name, label in _labels(file) if label]
    if not found:
        raise UserError(f"There is no label in {file}.", _FORM)
    number = {name: k for k, name in enumerate(classes)}
    for _, label in found:
        if label not in number:
            error = unknown("class", label, classes)
            raise UserError(
                f"{file} holds the label '{label}', which is no class of the source.",
                f"{error.hint} Leave labels empty where no class fits.",
            )
    rows = _rows([name for name, _ in found], names, file)
    return np.array(rows, dtype=np.int64), np.array([number[label] for _, label in found], dtype=np.int64)


def _labels(file: Path) -> list[tuple[str, str]]:
    """Names of images and their labels, of which some may be empty."""
    suffix = file.suffix.lower()
    if not file.exists():
        raise UserError(f"The labels {file} do not exist.", _FORM)
    if file.is_dir():
        listing = read_folder(file)
        return list(zip(listing.paths, listing.labels or [""] * len(listing.paths), strict=True))
    if suffix in LISTS:
        return [(path, label) for _, path, label in read_lines(file)]
    if suffix in ARRAYS:
        array = read_array(file)
        labels = () if array.y is None else label_names(array.y, len(array.x), file)
        return [(str(row), label) for row, label in enumerate(labels)]
    raise UserError(f"{file} is neither a list nor a folder nor an array.", _FORM)


def _rows(wanted: Sequence[str], names: Sequence[str], file: Path) -> list[int]:
    """The target's row of each name: by the whole of it, else by as much of a path's end as says which it is."""
    whole = {name: row for row, name in enumerate(names)}
    ends: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        parts = PurePath(name).parts
        for start in range(len(parts)):
            ends[parts[start:]].append(row)
    found: dict[int, str] = {}
    for name in wanted:
        parts = PurePath(name).parts
        matches = next((ends[parts[k:]] for k in range(len(parts)) if parts[k:] in ends), [])
        row = whole.get(name, matches[0] if len(matches) == 1 else -1)
        if row < 0:
            what = "could be several of the target's images" if matches else "is none of the target's images"
            raise UserError(f"{name} in {file} {what}.", "name images as predictions.csv does.")
        if row in found:
            raise UserError(f"{file} names one image twice, as {found[row]} and as {name}.", "name it once.")
        found[row] = name
    return list(found)


def _told(out: Path) -> dict[str, Any]:
    """The adaptation's summary."""
    try:
        told = json.loads((out / "summary.json").read_text())
        _ = told["classes"], told["chosen"], told["target_mix"]["mix"]
        _ = [(m["name"], m["run"], m["against_source"]) for m in told["methods"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{out} is no finished adaptation.", "hand over the folder that `askew adapt … -o` wrote."
        ) from None
    return dict(told)


def _predicted(out: Path, run: str, images: int) -> Labels:
    """The class of each target image, by one of the runs."""
    try:
        classes: Labels = read_outputs(out / "runs" / run).target_uniform.argmax(axis=1)
    except FileNotFoundError as error:
        raise UserError(
            f"The file {error.args[0]} is gone.", "run `askew adapt` again with the same -o, which makes it anew."
        ) from None
    if len(classes) != images:
        raise UserError(
            f"{out / 'predictions.csv'} has {images} rows, and the target {len(classes)}.",
            "it has to be as `askew adapt` wrote it: run that again with the same -o.",
        )
    return classes


def _names(out: Path) -> list[str]:
    """The target's images in their order."""
    try:
        with (out / "predictions.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            return [row["path"] for row in csv.DictReader(lines)]
    except (OSError, KeyError, csv.Error):
        raise UserError(
            f"{out} has no predictions.csv as `askew adapt` writes it.",
            "hand over the folder that `askew adapt … -o` wrote.",
        ) from None
