"""The report of an adaptation, as one page: what was done, whether it helped, and what to keep in
mind."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from PIL import Image

from askew.adaptation.assessment import Adaptation
from askew.adaptation.session import Trained
from askew.evaluation.scores import SCORES
from askew.evaluation.unknown_classes import ALARMS
from askew.reports import svg
from askew.reports.features import network_features, some
from askew.reports.findings import Finding
from askew.reports.html import (
    Cell,
    Cells,
    Chart,
    Table,
    interval,
    number,
    render,
    settings_table,
    training_curves,
)
from askew.runs.store import RunFolder

Rows = NDArray[np.int64]
MapFeatures = Callable[[NDArray[np.float32]], list[tuple[float, float]]]
"""Draws features in two dimensions. (n, d)"""

CONFIDENT, DOUBTFUL, PER_CLASS = 10, 20, 10
"""Most images that are shown of each kind, and of a class."""
BY_CLASS = 900
"""Most images of all classes together, but for one of each."""
CLASSES, ONE_CHART = 30, 100
"""Most classes in one chart, and where there are more, so many in the first."""
POINTS = 300
"""Images of each domain on a map."""
_SIDE = 96


def tsne(features: NDArray[np.float32]) -> list[tuple[float, float]]:
    """Map features to two dimensions by t-SNE after PCA. (n, d)"""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    n, width = features.shape
    if min(n, width) > 2 and float(features.std()) > 0:
        reduced = PCA(min(n, width, 30), random_state=0).fit_transform(features)
        perplexity = min(30.0, (n - 1) / 3)
        features = TSNE(
            2, perplexity=perplexity, random_state=0, max_iter=500, init="pca"
        ).fit_transform(reduced)
    return [(float(row[0]), float(row[-1])) for row in features]


def render_report(
    found: Adaptation, findings: Sequence[Finding], map_features: MapFeatures = tsne
) -> str:
    """Render the whole page as text."""
    data, training_data = found.data, found.inputs.task.training_data
    kind = "rows" if len(data.source.shape) == 1 else "images"
    facts = {
        f"labelled source {kind}": f"{len(training_data.source) + len(training_data.source_val):,}",
        "of them held out": f"{len(training_data.source_val):,}",
        f"target {kind} without labels": f"{len(training_data.target):,}",
        "classes": f"{len(found.classes):,}",
        "networks": f"{len(found.networks):,}",
        "seconds": f"{found.seconds:,.0f}",
    }
    networks = found.networks
    traces = {one.name: training_curves([RunFolder(one.folder).trace()]) for one in networks}
    return render(
        "adaptation_report.html.j2",
        title=f"{found.data.source.path.name} → {found.data.target.path.name}",
        facts=facts,
        found=found,
        kind=kind,
        adapted=found.saved > 0,
        verdict="" if found.verdict is None else found.verdict.verdict,
        evidence=_evidence(found),
        findings=findings,
        distributions=_distributions(found),
        shares=_shares(found),
        least_confident=_gallery(found, _by_confidence(found)[::-1][:DOUBTFUL]),
        unknown=_gallery(found, _unknown(found)),
        alarms=ALARMS,
        most_confident=_gallery(found, _by_confidence(found)[:CONFIDENT]),
        by_class=_by_class(found),
        maps=[
            Chart(_map(found, networks[i], map_features), networks[i].name)
            for i in sorted({0, found.saved})
        ],
        points=POINTS,
        scores=_scores(found),
        score_kinds=[SCORES[name] for name in found.scores[0]],
        training={name: charts for name, charts in traces.items() if charts},
        settings=[(one.name, one.run.key, settings_table(one.run.describe())) for one in networks],
    )


# --- scores ---


def _evidence(found: Adaptation) -> Table | None:
    """Each score that the verdict rests on, before and after."""
    if found.verdict is None:
        return None
    rows: list[Cells] = [
        [
            SCORES[e.score].title,
            number(e.before, 3),
            number(e.after, 3),
            Cell(text=f"{e.low:+.3f} to {e.high:+.3f}", key=f"{e.low:.4f}"),
            e.votes,
        ]
        for e in found.verdict.evidence
    ]
    head = [
        "score, higher is better",
        "source only",
        found.final.name,
        "difference, 95 % interval",
        "vote",
    ]
    return Table("Each score before and after adaptation", head, rows)


def _scores(found: Adaptation) -> Table:
    rows: list[Cells] = []
    for i, (one, scores) in enumerate(zip(found.networks, found.scores, strict=True)):
        name = one.name
        verdict = found.verdicts[name].verdict if i else "–"
        saved = " (saved)" if i == found.saved else ""
        rows.append([name + saved, verdict, *(number(value, 3) for value in scores.values())])
    head = ["method", "against source", *(SCORES[name].title for name in found.scores[0])]
    return Table("Scores that use no target labels; higher is better", head, rows)


# --- label distributions ---


def _percent(found: Adaptation) -> list[tuple[str, float, float, float, float]]:
    """The share of each class in % as (name, source, target, low, high)."""
    estimate, source = found.diagnosis.target_prior, found.data.source_prior
    columns = (100 * np.stack([source, estimate.prior, estimate.low, estimate.high])).T.tolist()
    return [(name, *values) for name, values in zip(found.classes, columns, strict=True)]


def _distributions(found: Adaptation) -> list[tuple[str, Chart]]:
    """Charts with their headings: of all classes or, if they are many, of those that differ most
    and of the rest."""
    shown, rows = found.diagnosis.target_prior, _percent(found)
    label = "share of each class in source and target, in per cent"
    legend = {"c0": "source (labels)", "c1": "target (estimated, with its 95 % interval)"}
    if shown.estimator == "em":
        estimated = "The class shares of greatest likelihood under the model's posterior."
    elif shown.estimator == "counting":
        estimated = "The share of target images that each class is predicted for."
    else:
        estimated = (
            f"Estimated by {shown.estimator.upper()} from the network's predictions on held-out "
            "source and target "
            "images, since images of a class look the same in both domains."
        )
    note = (
        f"{estimated} Intervals: from the share on which all networks agree to the share that "
        "any of them predicts, "
        "for the number of images; and what the share would be if the target were confused as "
        "the source is."
    )
    if len(rows) <= ONE_CHART:
        return [("", Chart(svg.ranges(rows, label), note, legend))]
    most = np.sort(
        np.argsort([-abs(target - source) for _, source, target, *_ in rows], kind="stable")[
            :CLASSES
        ]
    )
    rest = np.setdiff1d(np.arange(len(rows)), most)
    return [
        (
            f"The {CLASSES} of {len(rows)} classes whose share differs most",
            Chart(svg.ranges([rows[i] for i in most], label), note, legend),
        ),
        (
            f"The other {len(rest)} of {len(rows)} classes",
            Chart(svg.ranges([rows[i] for i in rest], label), note, legend),
        ),
    ]


def _shares(found: Adaptation) -> Table:
    counts = np.bincount(found.predicted, minlength=len(found.classes))
    rows: list[Cells] = [
        [
            name,
            number(source, 1),
            number(target, 1),
            interval(low, high),
            number(100 * float(n) / max(1, counts.sum()), 1),
            number(int(n), 0),
        ]
        for (name, source, target, low, high), n in zip(_percent(found), counts, strict=True)
    ]
    head = [
        "class",
        "source, %",
        "target, estimated, %",
        "95 % interval",
        "predicted, %",
        "predicted",
    ]
    return Table("Label distribution", head, rows)


# --- the target's images ---


def _by_confidence(found: Adaptation) -> Rows:
    """Target images, the most confident first."""
    order: Rows = np.argsort(-found.probabilities.max(axis=1), kind="stable")
    return order


def _unknown(found: Adaptation) -> Rows:
    """Possible unknown-class images, those with most disagreement first."""
    order: Rows = np.argsort(-found.unknown.score, kind="stable")
    return order[found.unknown.marked[order]][:DOUBTFUL]


def _by_class(found: Adaptation) -> list[tuple[str, int, Any]]:
    """Of each predicted class, the most frequent first, its name, how many images it has, and some
    of them."""
    order, counts = (
        _by_confidence(found),
        np.bincount(found.predicted, minlength=len(found.classes)),
    )
    frequent = [k for k in np.argsort(-counts, kind="stable") if counts[k]]
    most = max(1, min(PER_CLASS, BY_CLASS // len(frequent)))
    shown = []
    for k in frequent:
        own = order[found.predicted[order] == k]
        ends = (
            own
            if len(own) <= most
            else np.concatenate([own[: -(-most // 2)], own[len(own) - most // 2 :]])
        )
        shown.append((found.classes[k], len(own), _gallery(found, ends)))
    return shown


def _gallery(found: Adaptation, rows: Rows) -> Table | list[dict[str, str]]:
    """Thumbnails with the predicted class; a table where the data are rows of numbers."""
    data = found.data
    x = found.inputs.task.training_data.target.x
    names = [data.target.names[i] for i in rows]
    classes = [found.classes[found.predicted[i]] for i in rows]
    confidence = [float(found.probabilities[i].max()) for i in rows]
    if x.ndim == 4:
        return [
            {
                "name": name,
                "class": predicted,
                "confidence": f"{100 * p:.0f} %",
                "image": _thumbnail(x[i]),
            }
            for i, name, predicted, p in zip(rows, names, classes, confidence, strict=True)
        ]
    lines: list[Cells] = [
        [n, k, Cell(text=f"{100 * p:.0f} %", key=f"{p:.4f}")]
        for n, k, p in zip(names, classes, confidence, strict=True)
    ]
    return Table("Rows of the target", ["row", "predicted class", "probability"], lines)


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    """A small image inside the page; a tiny one is enlarged without blur."""
    image = Image.fromarray(np.asarray(pixels).transpose(1, 2, 0).squeeze()).convert("RGB")
    tiny = max(image.size) < _SIDE
    image = image.resize(
        (_SIDE, _SIDE), Image.Resampling.NEAREST if tiny else Image.Resampling.LANCZOS
    )
    file = io.BytesIO()
    image.save(file, "PNG" if tiny else "JPEG", quality=72)
    kind, content = "png" if tiny else "jpeg", base64.b64encode(file.getvalue()).decode()
    return f"data:image/{kind};base64,{content}"


# --- both domains on a map ---


def _map(found: Adaptation, trained: Trained, map_features: MapFeatures) -> Markup:
    training_data, rng = trained.task.training_data, np.random.default_rng(0)
    source = some(rng, np.arange(len(training_data.source)), POINTS)
    target = some(rng, np.arange(len(training_data.target)), POINTS)
    features = network_features(trained.folder, trained.run.describe(), training_data)
    points = map_features(
        np.concatenate(
            [
                features(training_data.source.x[source], "source"),
                features(training_data.target.x[target], "target"),
            ]
        )
    )
    predicted = trained.outputs.target.argmax(axis=1)
    names = found.data.target.names
    groups = {
        "source": [
            (*xy, found.classes[training_data.source.y[i]])
            for xy, i in zip(points, source, strict=False)
        ],
        "target": [
            (*xy, f"{names[i]}: {found.classes[predicted[i]]}?")
            for xy, i in zip(points[len(source) :], target, strict=True)
        ],
    }
    return svg.scatter(groups, f"features of source and target, {trained.name}")
