"""Publish a model on the Hub, with a card that says what it was made from, what is known of it, and
what is not.

Only the model's description, its weights and the card leave this machine: no picture, no
prediction, no path.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from askew.core import hub
from askew.core.errors import UserError
from askew.inference.predictor import Predictor, load


@dataclass(frozen=True)
class AuditSection:
    """What a card says of an audit: a sentence, and a row for each method."""

    sentence: str
    rows: Sequence[Sequence[str]]
    """Method, per-class mean, gain, verdict."""


def push(out: Path, name: str, *, public: bool = False, audited: AuditSection | None = None) -> str:
    """Put the model of `out` (an adaptation's folder, a model's, a finished run's) on the Hub; its
    address there."""
    predictor = load(out, "cpu")
    with tempfile.TemporaryDirectory(prefix="askew-") as scratch:
        predictor.save(Path(scratch) / "model")
        files = {
            path.name: path.read_bytes() for path in sorted((Path(scratch) / "model").iterdir())
        }
    try:
        card = model_card(hub.repository(name), predictor, read_summary(out), audited)
        files["README.md"] = card.encode()
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ):  # it may be a stranger's
        raise UserError(
            f"What is told of the model in {out} is not what askew wrote.",
            "run `askew adapt` again with the same -o.",
        ) from None
    return hub.push(
        name, files, "A model made by askew", public=public, replaces="weights-*.safetensors"
    )


def read_summary(out: Path) -> dict[str, Any] | None:
    """The adaptation's summary, where the model comes from one."""
    file = out / "summary.json"
    return json.loads(file.read_text()) if file.is_file() else None


def model_card(
    name: str,
    predictor: Predictor,
    summary: dict[str, Any] | None,
    audited: AuditSection | None = None,
) -> str:
    """The repository's README: front matter that the Hub reads, then text for people."""
    card = predictor.card
    front = {"library_name": "askew", "tags": ["askew", "domain-adaptation", "label-shift"]}
    if card.images:
        front["pipeline_tag"] = "image-classification"
    parts = [
        "---\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items()) + "---",
        f"# {name.partition('/')[2]}",
        f"A classifier of {len(card.classes)} classes for {card.input}, adapted to unlabelled "
        "target data by "
        "askew (`pip install askew`).",
        f'```python\nimport askew\n\nmodel = askew.load("hf://{name}")\n'
        'model.predict(images, shares="target")\n```',
        "## Data",
        _data(predictor, summary),
        "## Label distributions",
        _distributions(predictor),
        "## Did adaptation help?",
        _cell(summary["sentence"])
        if summary
        else "Nobody has compared it with a network that was not adapted.",
        "" if summary is None else "This was judged without target labels, so it is an estimate.",
        *([] if audited is None else ["## Audit", _audit(audited)]),
        "## Limits",
        _limits(predictor, summary, audited),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _data(predictor: Predictor, summary: dict[str, Any] | None) -> str:
    made = predictor.card.made
    images = (summary or made).get("images", {})
    rows = [[what, f"{images[key]:,}"] for key, what in _COUNTED.items() if key in images]
    method = (summary or {}).get("saved") or made.get("method", "")
    network = (summary or {}).get("network") or predictor.card.net.name
    return f"Method: {_cell(method) or 'unknown'}; network: {_cell(network)}.\n\n" + _table(
        ["part", "images"], rows
    )


_COUNTED = {
    "source": "labelled source",
    "source_val": "held-out source",
    "target": "unlabelled target",
}


def _distributions(predictor: Predictor) -> str:
    card, target = predictor.card, predictor.card.target_prior
    rows = []
    for k, label in enumerate(card.classes):
        source = "" if card.source_prior is None else _percent(card.source_prior[k])
        estimate = "" if target is None else _percent(target.prior[k])
        if target is not None and target.low is not None and target.high is not None:
            estimate += f" ({_percent(target.low[k])} – {_percent(target.high[k])})"
        rows.append([label, source, _percent(card.training_prior[k]), estimate])
    head = ["class", "source, %", "in training, %", "target, estimated, % (95 % interval)"]
    return _table(head, rows)


def _audit(found: AuditSection) -> str:
    return f"{found.sentence}\n\n" + _table(
        ["method", "per-class mean, %", "above source", "verdict"], found.rows
    )


def _limits(
    predictor: Predictor, summary: dict[str, Any] | None, audited: AuditSection | None
) -> str:
    lines = [
        f"It answers with one of its {len(predictor.classes)} classes for every input, also for "
        "what is none of them.",
        "It was adapted to one target; on other data, or when the target changes, nothing here "
        "holds.",
        "Probabilities are calibrated on held-out source images, not on the target.",
    ]
    if predictor.card.target_prior is not None:
        lines.append(
            "The target's label distribution is an estimate. Predict with a prior of your own if "
            "you know it."
        )
    if audited is None:
        lines.append(
            "No target labels were used: its accuracy on the target is not known. `askew audit` "
            "measures it."
        )
    findings = [
        f"{finding['what']}: {finding['remedy']}" for finding in (summary or {}).get("findings", [])
    ]
    return "\n".join(f"- {_cell(line)}" for line in [*lines, *findings])


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that stays in its cell and is no markup, whatever a class is named."""
    plain = " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
    return plain.replace("<", "&lt;").replace("[", "\\[")
