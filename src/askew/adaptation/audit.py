"""Evaluate an adaptation on target labels collected afterwards, of all target images or of a random
sample."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.adaptation.request import GivenLabels, read_truth
from askew.adaptation.target_rows import TARGET_FILE, TargetRows, read_target_rows
from askew.core.errors import UserError
from askew.core.files import write_bytes
from askew.core.text import csv_cell, from_csv_cell
from askew.data.custom import CustomDomain
from askew.data.image_lists import USUAL, Columns
from askew.data.paths import require_file
from askew.evaluation.metrics import (
    Estimate,
    Strata,
    accuracy_gain,
    labels_to_settle,
    mean_accuracy,
    score,
)
from askew.evaluation.outputs import as_labels, read_outputs
from askew.inference.one_result import require_one_result

_OUT = "name the folder that `askew adapt … -o` wrote."
_AGAIN = "run `askew adapt` again with the same -o, which writes its files again."

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Audited:
    """One method, evaluated on the labels."""

    name: str
    saved: bool
    accuracy: Estimate
    """Mean over the classes that have labels."""
    gain: Estimate | None
    """Its difference to that of source-only; none for source-only itself."""
    label_free: str | None
    """The verdict that was reached without labels: helped, unclear or hurt."""
    scores: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """The verdict by the labels."""
        if self.gain is None:
            return "–"
        return "helped" if self.gain.low > 0 else "hurt" if self.gain.high < 0 else "unclear"


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Every method of an adaptation, evaluated on target labels.

    >>> found = askew.audit(askew.adapt((xs, ys), xt, methods="coal", training=short), yt)
    >>> [method.name for method in found.methods], found.images
    (['source', 'coal'], 60)
    """

    classes: tuple[str, ...]
    images: int
    """Number of target images."""
    methods: tuple[Audited, ...]
    """Source-only first."""
    counts: Labels
    """Number of labels of each class. (c,)"""
    label_prior: NDArray[np.float64]
    """The target's label distribution by these labels. (c,)"""
    target_prior: NDArray[np.float64]
    """The label distribution of the target as estimated without labels. (c,)"""
    needed: int | None
    """Labels that would show whether the saved network, or the best one if that is source-only, is
    better than source-only, if they are drawn like these; None if more than there are images."""
    compared: str
    """The method that this is about."""

    def __repr__(self) -> str:
        return f"<Audit: {self.sentence}>"

    @property
    def labelled(self) -> int:
        return int(self.counts.sum())

    @property
    def unseen(self) -> tuple[str, ...]:
        """Classes without a label."""
        return tuple(name for name, n in zip(self.classes, self.counts, strict=True) if not n)

    @property
    def shares_error(self) -> float:
        """L1 distance between the estimated label distribution and that of the labels, from 0 to
        2."""
        return float(np.abs(self.target_prior - self.label_prior).sum())

    @property
    def outlook(self) -> str:
        """How many more labels would settle it, in words."""
        if self.needed is None:
            return (
                f"Labels of all {self.images} target images would hardly tell {self.compared} "
                "from source-only."
            )
        if self.needed <= self.labelled:
            return f"These labels tell {self.compared} from source-only."
        return (
            f"About {self.needed - self.labelled} more labels would tell {self.compared} from "
            "source-only, if the "
            "difference is what it seems; fewer where the methods disagree."
        )

    @property
    def sentence(self) -> str:
        before, saved = self.methods[0], next(m for m in self.methods if m.saved)
        on = f"{self.labelled} of {self.images} target images are labelled"
        if saved.gain is None:
            return (
                f"The network without adaptation was kept: its accuracy is {saved.accuracy} %; "
                f"{on}."
            )
        words = {
            "helped": "helped",
            "hurt": "did harm",
            "unclear": "made no difference that these labels can show",
        }
        return (
            f"Adaptation ({saved.name}) {words[saved.verdict]}: {saved.accuracy} % instead of "
            f"{before.accuracy} %, "
            f"a difference of {saved.gain} points; {on}. Without labels the verdict was "
            f"'{saved.label_free}'."
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "labelled": self.labelled,
            "images": self.images,
            "sentence": self.sentence,
            "needed": self.needed,
            "outlook": self.outlook,
            "classes": list(self.classes),
            "counts": self.counts.tolist(),
            "target_shares": self.target_prior.tolist(),
            "shares_error": self.shares_error,
            "methods": [asdict(method) | {"verdict": method.verdict} for method in self.methods],
        }


def audit(out: Path, labels: Path | GivenLabels | CustomDomain, columns: Columns = USUAL) -> Audit:
    """Evaluate every method of the adaptation in the folder `out`."""
    require_one_result(out)
    summary, target = _summary(out), target_rows(out)
    classes, names = tuple(summary["classes"]), target.names
    rows, y = read_truth(labels, target, classes, columns)
    everywhere = _predicted(out, summary, len(names))
    strata, predicted = _strata(everywhere, rows, len(classes)), [own[rows] for own in everywhere]
    weights = (
        np.ones(len(y))
        if strata is None
        else np.array(strata.weights)[strata.contested.astype(np.int64)]
    )
    gains = [
        None,
        *(
            accuracy_gain(y, predicted[0], adapted, len(classes), strata)
            for adapted in predicted[1:]
        ),
    ]
    methods = tuple(
        Audited(
            method["name"],
            method["name"] == summary["saved"],
            mean_accuracy(y, own, len(classes), strata),
            gain,
            method["verdict"],
            score(y, own, len(classes))
            | {"overall": 100 * float(np.average(own == y, weights=weights))},
        )
        for method, own, gain in zip(summary["methods"], predicted, gains, strict=True)
    )
    counts = np.bincount(y, minlength=len(classes))
    by_name = {method["name"]: i for i, method in enumerate(summary["methods"])}
    one = by_name[summary["saved"]] or max(
        range(len(methods)), key=lambda i: (i > 0, methods[i].accuracy.value)
    )
    needed = (
        labels_to_settle(y, predicted[0], predicted[one], len(classes), len(names), strata)
        if one
        else len(y)
    )
    prior = np.array(summary["target_shares"]["shares"])
    by_labels = np.bincount(y, weights, len(classes)) / weights.sum()
    return Audit(classes, len(names), methods, counts, by_labels, prior, needed, methods[one].name)


LEAST = 5
"""Agreed images that have to be labelled beside contested ones, to weigh one against the other."""
BY_CHANCE = 4
"""Standard errors by which contested images may be more among the labelled ones if those were drawn
at random."""


def _contested(predicted: Sequence[Labels]) -> NDArray[np.bool_]:
    """Where not all networks predict the same class. (n_t,)"""
    contested: NDArray[np.bool_] = (np.stack(predicted) != predicted[0]).any(axis=0)
    return contested


def _strata(predicted: Sequence[Labels], rows: Labels, classes: int) -> Strata | None:
    """The labelled images by whether networks disagree on them, if they were drawn where they do,
    as `--disagree` does.

    Each kind then counts as it does in the target.
    """
    contested = _contested(predicted)
    own, share = contested[rows], float(contested.mean())
    off = (own.mean() - share) / np.sqrt(max(share * (1 - share), 1e-12) / len(rows))
    agreed = int((~own).sum())
    if off < BY_CHANCE or agreed < LEAST:
        return None
    weights = (float((~contested).sum() / agreed), float(contested.sum() / own.sum()))
    return Strata(own, weights, np.bincount(predicted[0][~contested], minlength=classes))


def draw_sheet(out: Path, n: int, sheet: Path, disagree: bool = False) -> int:
    """Write a list of n target images, drawn at random, with an empty column for their labels;
    returns their number.

    With `disagree`, three of four are images on which the methods disagree, since the others cannot
    tell them apart. A longer sheet begins with the images of a shorter one. Predictions are not in
    it: they would bias whoever labels.
    """
    names = target_names(out)
    if sheet.exists():
        raise UserError(
            f"{sheet} is there already, perhaps with labels.", "choose another file with -o."
        )
    order = np.random.default_rng(0).permutation(len(names))
    if disagree:
        contested = _contested(_predicted(out, _summary(out), len(names)))[order]
        order = order[np.argsort(_turns(contested), kind="stable")]
    chosen = order[:n]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "label"])
    rows.writerows([csv_cell(names[i]), ""] for i in chosen)
    write_bytes(sheet, text.getvalue().encode(errors="surrogateescape"))
    return len(chosen)


def _turns(contested: NDArray[np.bool_]) -> NDArray[np.float64]:
    """When each image's turn comes, if three contested ones come for every one that is agreed.
    (n,)"""
    return np.where(contested, np.cumsum(contested), 3 * np.cumsum(~contested) - 0.5).astype(
        np.float64
    )


# --- reading ---


def _summary(out: Path) -> dict[str, Any]:
    """The adaptation's summary.json."""
    try:
        require_file(out / "summary.json")
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
        if not _is_sound(summary):
            raise ValueError
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ):
        raise UserError(f"{out} is not a finished adaptation.", _OUT) from None
    return summary


def _is_sound(summary: Mapping[str, Any]) -> bool:
    """Tell whether a summary, which may be a stranger's, has all that an audit uses; an exception
    if it is none at all."""
    classes, methods = summary["classes"], summary["methods"]
    names, runs = [m["name"] for m in methods], [m["run"] for m in methods]
    shares = np.array(summary["target_shares"]["shares"], dtype=np.float64)
    verdicts = [m["verdict"] or "" for m in methods]
    texts = [*classes, *names, *runs, *verdicts, summary["saved"]]
    return (
        isinstance(classes, list)
        and all(isinstance(text, str) for text in texts)
        and 0 < len(classes) == len(set(classes)) == len(shares)
        and bool(np.isfinite(shares).all())
        and len(set(names)) == len(names)
        and summary["saved"] in names
    )


def _predicted(out: Path, summary: Mapping[str, Any], images: int) -> list[Labels]:
    """Read the class that each method predicts for each target image. (n_t,) each"""
    try:
        found = [read_outputs(out / "runs" / m["run"]) for m in summary["methods"]]
    except FileNotFoundError as error:
        raise UserError(
            f"The file {error.args[0]} is missing.",
            "run `askew adapt` again with the same -o, which makes it again.",
        ) from None
    if any(outputs.classes != len(summary["classes"]) for outputs in found):
        raise UserError(f"The networks in {out} have other classes than its summary.", _OUT)
    predicted = [as_labels(outputs.target_uniform.argmax(axis=1)) for outputs in found]
    if any(len(own) != images for own in predicted):
        raise UserError(
            f"{out} has {images} rows of the target by name, and {len(predicted[0])} predictions.",
            _AGAIN,
        )
    if not (out / TARGET_FILE).exists() and not summary.get("known_shares"):
        _require_stored_order(out, summary, predicted)
    return predicted


def _require_stored_order(
    out: Path, summary: Mapping[str, Any], predicted: Sequence[Labels]
) -> None:
    """Refuse a predictions.csv whose classes are not those of the stored network, row by row.

    An adaptation of an earlier version stored the order of its rows nowhere else.
    """
    number = {name: k for k, name in enumerate(summary["classes"])}
    shown = [number.get(from_csv_cell(row.get("class") or ""), -1) for row in _csv_rows(out)]
    saved = [method["name"] for method in summary["methods"]].index(summary["saved"])
    if shown != predicted[saved].tolist():
        raise UserError(
            f"The rows of {out / 'predictions.csv'} are not in the order in which they were "
            "written.",
            _AGAIN,
        )


def target_names(out: Path) -> Sequence[str]:
    """Give the names of the target's images in their stored order."""
    return target_rows(out).names


def target_rows(out: Path) -> TargetRows:
    """Read the identity of the target's rows; of an earlier version, their names alone."""
    stored = read_target_rows(out)
    return stored or TargetRows([from_csv_cell(row["path"]) for row in _csv_rows(out)])


def _csv_rows(out: Path) -> list[dict[str, str]]:
    """Read predictions.csv."""
    try:
        require_file(out / "predictions.csv")
        with (out / "predictions.csv").open(
            newline="", encoding="utf-8", errors="surrogateescape"
        ) as lines:
            rows = list(csv.DictReader(lines))
        if any(row["path"] is None for row in rows):  # of a line without a path
            raise ValueError
    except (OSError, KeyError, ValueError, csv.Error):
        raise UserError(f"{out} has no predictions.csv as `askew adapt` writes it.", _OUT) from None
    return rows
