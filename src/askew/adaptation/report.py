"""The report of an adaptation: one page by itself that says what was done, whether it helped, and what to mind.

Every name on it comes from somebody's disk and goes through `html.escape`; the page's policy lets no script run but
its own.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from html import escape
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from askew import __version__
from askew.adaptation.findings import remarks
from askew.adaptation.pipeline import Adaptation, Trained
from askew.evaluation.validators import SCORES
from askew.reports import svg
from askew.reports.features import network_features, some
from askew.reports.html import card, details, finding, legend, number, numbers_td, scroll, table, th, whole
from askew.reports.results import flat
from askew.runs.store import RunFolder

Rows = NDArray[np.int64]

SURE, DOUBTFUL, A_CLASS, CLASSES = 10, 20, 5, 30
"""Most pictures that are shown of each kind, and most classes."""
POINTS = 300
"""Images of each domain on a map."""
_SIDE = 96


def render_report(found: Adaptation) -> str:
    """The whole page, as text."""
    body = "".join(
        [
            _verdict(found), _remarks(found), _mix(found), _pictures(found), _maps(found), _scores(found),
            _curves(found), _made(found),
        ]
    )  # fmt: skip
    footer = f"Written by askew {escape(__version__)}; nothing on this page is loaded from anywhere else."
    style = (resources.files("askew.reports") / "templates" / "letter.css").read_text(encoding="utf-8")
    return whole(f"askew: {_title(found)}", _header(found), body, footer, style)


def _title(found: Adaptation) -> str:
    return f"{found.request.source.name} → {found.request.target.name}"


def _header(found: Adaptation) -> str:
    training_data = found.setup.data.task.training_data
    what = "rows" if found.setup.data.kind == "rows" else "pictures"
    held = len(training_data.source_val)
    facts = {
        f"labelled source {what}": f"{len(training_data.source) + held:,}",
        "of them held out": f"{held:,}",
        f"target {what} without labels": f"{len(training_data.target):,}",
        "classes": f"{len(found.classes):,}",
        "methods": str(len(found.trained)),
        "seconds": f"{found.seconds:,.0f}",
    }
    items = "".join(f"<li><b>{value}</b> {name}</li>" for name, value in facts.items())
    return (
        f"<h1>{escape(_title(found))}</h1><p class='lead'>A classifier that learned its classes on the source was "
        f"adapted to the target: {escape(found.setup.description)}.</p><ul class='facts'>{items}</ul>"
    )


# --- did it help ---


def _verdict(found: Adaptation) -> str:
    verdict = found.verdicts.get(found.winner.candidate.name)
    kind = verdict.verdict if verdict is not None else "unclear"
    heading = {"helped": "Adaptation helped", "unclear": "Unclear whether it helped", "hurt": "Adaptation hurt"}[kind]
    if verdict is None:
        heading = "Not adapted"
    chosen = f"The model is that of <b>{escape(found.winner.candidate.name)}</b>" + (
        ", chosen without a single target label." if found.request.method == "auto" else ", as asked."
    )
    parts = [
        f'<section class="verdict {kind if verdict is not None else ""}" id="verdict"><h2>{heading}</h2>',
        f"<p>{escape(found.sentence)}</p><p>{chosen}</p></section>",
    ]
    if verdict is not None:
        rows = [
            [
                th(SCORES[e.score].title if e.score in SCORES else e.score), number(e.before, 3), number(e.after, 3),
                numbers_td(f"{e.low:+.3f} to {e.high:+.3f}", e.low), numbers_td(e.votes),
            ]
            for e in verdict.evidence
        ]  # fmt: skip
        head = ["score, higher is better", "source only", found.winner.candidate.name, "difference, 95 %", "says"]
        evidence = scroll(table("The evidence: each score before and after", head, rows))
        parts.append(details("The evidence", f"{len(rows)} scores", evidence))
    return "".join(parts)


def _remarks(found: Adaptation) -> str:
    made = [finding(r.code, r.what, r.why, r.remedy, r.where) for r in remarks(found)]
    if not made:
        made = ['<article class="check fine"><h3>No remarks</h3><p>All checks passed.</p></article>']
    return f"<h2>What to mind</h2>{''.join(made)}"


# --- the class mix ---


def _mix(found: Adaptation) -> str:
    prior, before = found.diagnosis.target_prior, found.setup.data.source_prior
    counts = np.bincount(found.predicted, minlength=len(found.classes))
    values = zip(found.classes, 100 * before, 100 * prior.prior, 100 * prior.low, 100 * prior.high, strict=True)
    rows = [(name, float(b), float(v), float(low), float(high)) for name, b, v, low, high in values]
    drawing = svg.ranges(rows[:CLASSES], "share of each class in source and target, in per cent")
    lines = [
        [
            th(name), number(b, 1), number(v, 1), numbers_td(f"{low:.1f} – {high:.1f}", low),
            number(100 * float(n) / max(1, counts.sum()), 1), number(int(n), 0),
        ]
        for (name, b, v, low, high), n in zip(rows, counts, strict=True)
    ]  # fmt: skip
    head = ["class", "source, %", "target, estimated, %", "95 % interval", "given by the model, %", "images"]
    text = (
        f"Estimated by {prior.estimator.upper()} from what the network says of held-out source and of the target; "
        "intervals are a bootstrap's. They hold if a class looks the same on both sides."
    )
    return (
        f"<h2>Class mix</h2><p>{escape(found.diagnosis.sentence)}</p>"
        f"{legend({'c0': 'source, its labels', 'c1': 'target, estimated'})}"
        f'<div class="drawing">{drawing}</div><p class="note">{escape(text)}</p>'
        + details("All numbers", f"{len(rows)} classes", scroll(table("Class mix", head, lines)))
    )


# --- the target's pictures ---


def _pictures(found: Adaptation) -> str:
    p = found.probabilities.max(axis=1)
    order = np.argsort(-p, kind="stable")
    parts = [
        "<h2>Target pictures</h2><p>What the model says of them, and how sure it is. A right answer to the doubtful "
        "ones is worth most: label some of them first.</p>",
        "<h3>Most doubtful</h3>", _gallery(found, order[::-1][:DOUBTFUL]),
        "<h3>Most confident</h3>", _gallery(found, order[:SURE]),
        "<h3>By class</h3>",
    ]  # fmt: skip
    shown = 0
    for k in np.argsort(-np.bincount(found.predicted, minlength=len(found.classes)), kind="stable")[:CLASSES]:
        own = order[found.predicted[order] == k]
        if len(own):
            half = min(A_CLASS, (len(own) + 1) // 2)
            sample = np.unique(
                np.concatenate([np.arange(half), np.arange(len(own) - min(half, len(own) - half), len(own))])
            )
            beside = f"{len(own):,} images, from confident to doubtful"
            parts.append(details(found.classes[k], beside, _gallery(found, own[sample])))
            shown += 1
    if shown < len(np.unique(found.predicted)):
        parts.append(f'<p class="note">Only the {CLASSES} most frequent classes are shown.</p>')
    return "".join(parts)


def _gallery(found: Adaptation, rows: Iterable[int]) -> str:
    """Thumbnails with the model's answer; names alone where the data are rows of numbers."""
    data, figures, lines = found.setup.data, [], []
    x = data.task.training_data.target.x
    for i in rows:
        name, k = data.target.names[i], int(found.predicted[i])
        sure = f"{100 * float(found.probabilities[i, k]):.0f} %"
        if x.ndim == 4:
            figures.append(
                f'<figure title="{escape(name)}"><img src="{_thumbnail(x[i])}" alt="{escape(name)}">'
                f"<figcaption><b>{escape(found.classes[k])}</b> {sure}</figcaption></figure>"
            )
        else:
            lines.append([th(name), numbers_td(found.classes[k]), numbers_td(sure, float(found.probabilities[i, k]))])
    if lines:
        return scroll(table("Rows of the target", ["row", "class", "probability"], lines))
    return f'<div class="gallery">{"".join(figures)}</div>'


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    """A small picture inside the page; a tiny one is enlarged without blur."""
    image = Image.fromarray(np.asarray(pixels).transpose(1, 2, 0).squeeze()).convert("RGB")
    tiny = max(image.size) < _SIDE
    image = image.resize((_SIDE, _SIDE), Image.Resampling.NEAREST if tiny else Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG" if tiny else "JPEG", quality=72)
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(file.getvalue()).decode()}"


# --- both domains on a map ---


def _maps(found: Adaptation) -> str:
    shown = [found.trained[0], *([found.winner] if found.chosen else [])]
    figures = "".join(
        f"<figure>{_map(found, trained)}<figcaption>{escape(trained.candidate.name)}</figcaption></figure>"
        for trained in shown
    )
    text = (
        f"Features of at most {POINTS} images of each domain, laid out by t-SNE: near means alike, axes and distances "
        "between groups mean nothing. Where the two colours mix, the network no longer tells the domains apart; that "
        "is wanted class by class, and wrong where the class mixes differ and everything mixes. Point at a dot for its "
        "class: the source's own, the target's as the model says."
    )
    return (
        f"<h2>Both domains, as the network sees them</h2>{legend({'c0': 'source', 'c1': 'target'})}"
        f'<div class="maps">{figures}</div><p class="note">{escape(text)}</p>'
    )


def _map(found: Adaptation, trained: Trained) -> str:
    training_data, rng = found.setup.task.training_data, np.random.default_rng(0)
    source = some(rng, np.arange(len(training_data.source)), POINTS)
    target = some(rng, np.arange(len(training_data.target)), POINTS)
    of = network_features(trained.folder, trained.run.describe(), training_data)
    places = _laid_out(np.concatenate([of(training_data.source.x[source]), of(training_data.target.x[target])]))
    answers = trained.outputs.target.argmax(axis=1)
    groups = {
        "source": [(*xy, found.classes[training_data.source.y[i]]) for xy, i in zip(places, source, strict=False)],
        "target": [
            (*xy, f"{found.setup.data.target.names[i]}: {found.classes[answers[i]]}?")
            for xy, i in zip(places[len(source) :], target, strict=True)
        ],
    }
    return svg.scatter(groups, f"features of source and target, {trained.candidate.name}")


def _laid_out(features: NDArray[np.float32]) -> list[tuple[float, float]]:
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    n, width = features.shape
    if min(n, width) > 2 and float(features.std()) > 0:
        flat_features = PCA(min(n, width, 30), random_state=0).fit_transform(features)
        perplexity = min(30.0, (n - 1) / 3)
        features = TSNE(2, perplexity=perplexity, random_state=0, max_iter=500, init="pca").fit_transform(flat_features)
    return [(float(row[0]), float(row[-1])) for row in features]


# --- scores, curves, settings ---


def _scores(found: Adaptation) -> str:
    names = list(found.scores[0])
    head = ["method", "against source", *(SCORES[n].title if n in SCORES else n for n in names)]
    rows = []
    for i, (trained, scores) in enumerate(zip(found.trained, found.scores, strict=True)):
        name = trained.candidate.name
        against = found.verdicts[name].verdict if i else "–"
        mark = " (chosen)" if i == found.chosen else ""
        rows.append([th(name + mark), numbers_td(against), *(number(scores[n], 3) for n in names)])
    says = "".join(
        f"<li><b>{escape(SCORES[n].title if n in SCORES else n)}</b>: "
        f"{escape(SCORES[n].meaning)}"
        f"{escape(f' ({SCORES[n].citation})') if n in SCORES and SCORES[n].citation else ''}</li>"
        for n in names
    )
    failed = "".join(f'<p class="note">{escape(n)}: {escape(why)}</p>' for n, why in found.failed.items())
    explained = details("What each score says", f"{len(names)} scores, higher is better", f"<ul>{says}</ul>")
    caption = "No label of the target went into any of these"
    return f"<h2>Label-free scores</h2>{scroll(table(caption, head, rows))}{failed}{explained}"


def _curves(found: Adaptation) -> str:
    cards = []
    for trained in found.trained:
        trace = RunFolder(trained.folder).trace()
        names = list(dict.fromkeys(name for entry in trace for name in entry["losses"]))
        drawings = []
        for name in names:
            line = [(e["step"], e["losses"][name]) for e in trace if name in e["losses"]]
            text = f"loss: {name}, {svg.short(line[0][1])} → {svg.short(line[-1][1])}"
            drawings.append(f"<figure>{svg.sparkline([line], text)}<figcaption>{escape(text)}</figcaption></figure>")
        cards.append(card(trained.candidate.name, "".join(drawings)))
    return f'<h2>Training</h2><div class="cards">{"".join(cards)}</div>'


def _made(found: Adaptation) -> str:
    parts = []
    for trained in found.trained:
        told = [
            [th(name), f'<td class="word"><code>{escape(json.dumps(value, ensure_ascii=False))}</code></td>']
            for name, value in flat(trained.run.describe()).items()
        ]
        settings = scroll(table("Settings", ["setting", "value"], told, kind="plain"))
        parts.append(details(trained.candidate.name, trained.run.key, settings))
    use = (
        "askew predict model NEW_PICTURES -o answers.csv\n"
        "askew predict model NEW_PICTURES --prior target -o answers.csv   # decide under the estimated mix\n"
        "askew audit . --draw 100   # images to label, if you want to be sure that it helped"
    )
    return (
        f"<h2>How it was made, and how to use it</h2><p>Beside this page: <code>model</code>, "
        f"<code>predictions.csv</code> of the target, <code>summary.json</code> with every number, and "
        f"<code>runs</code>. In that folder:</p><pre>{escape(use)}</pre>{''.join(parts)}"
    )
