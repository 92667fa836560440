"""The files that an adaptation writes: the model, predictions of the target, the report, and a
summary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from askew.adaptation.findings import adaptation_findings
from askew.adaptation.pipeline import Adaptation
from askew.adaptation.report import render_report
from askew.adaptation.setup import AdaptRequest
from askew.adaptation.source_free import Readapted
from askew.core.errors import UserError
from askew.core.files import write_bytes, write_json
from askew.data.custom import CustomDomain
from askew.data.image_lists import Columns
from askew.data.paths import require_file
from askew.evaluation.calibration import temperature
from askew.inference.embeddings import Embedders
from askew.inference.ensemble import join, with_source_statistics
from askew.inference.model_card import TargetPrior
from askew.inference.predictor import Predictor
from askew.inference.writers import write_predictions_csv
from askew.nets.adabn import STATISTICS
from askew.nets.network import keeps_source_statistics
from askew.runs.root import open_root

Part = tuple[Predictor, float, float]
"""A model, its temperature and its weight."""


def write_artifacts(found: Adaptation, out: Path) -> None:
    """model/, predictions.csv, report.html and, last, summary.json; each appears whole or not at
    all."""
    predictor(found).save(out / "model")
    names = found.setup.data.target.names
    problems, marked = [""] * len(names), found.unfamiliar.marked
    write_predictions_csv(
        out / "predictions.csv", names, problems, found.probabilities, found.classes, marked
    )
    write_bytes(out / "report.html", render_report(found).encode(errors="replace"))
    write_json(out / "summary.json", summary(found))


def predictor(found: Adaptation) -> Predictor:
    """The chosen network, from images (or rows) to classes; a frozen backbone is part of it."""
    embedders, estimate = found.setup.embedders, TargetPrior.of(found.diagnosis.target_prior)
    if found.setup.prior is not None:
        estimate = TargetPrior(tuple(found.setup.prior.tolist()), "known")
    made = {"by": "askew adapt", "method": found.winner.candidate.name, "said": found.sentence}
    shape = tuple(found.setup.data.task.training_data.source.x.shape[1:])
    members = found.winner.members or (found.winner,)
    models = [
        Predictor.of_run(one.folder, "cpu", estimate, made, one.run.method) for one in members
    ]
    temperatures, shares = (
        [temperature(one.outputs) for one in members],
        [one.candidate.weight for one in members],
    )
    parts = list(zip(models, temperatures, shares, strict=True))
    if below := next((one.embedders for one in members if one.embedders is not None), None):
        parts = _on_one(parts, [one.embedders is not None for one in members], below, shape)
    plain = join(*zip(*parts, strict=True)) if len(parts) > 1 else parts[0][0]
    bias = tuple((found.temperature * found.bias).tolist()) if found.bias.any() else ()
    card = dataclasses.replace(plain.card, temperature=found.temperature, bias=bias)
    whole = Predictor(card, plain.weights, "cpu")
    return whole if embedders is None else on_frozen(whole, embedders, shape)


def _on_one(
    parts: Sequence[Part], frozen: Sequence[bool], embedders: Embedders, shape: tuple[int, ...]
) -> list[Part]:
    """Those of embeddings as one model of images, beside the others, so that the backbone is there
    once."""
    inner = [part for part, of_rows in zip(parts, frozen, strict=True) if of_rows]
    others = [part for part, of_rows in zip(parts, frozen, strict=True) if not of_rows]
    if len(inner) == 1:
        ((model, temperature, weight),) = inner
        return [*others, (on_frozen(model, embedders, shape), temperature, weight)]
    model = on_frozen(join(*zip(*inner, strict=True)), embedders, shape)
    return [*others, (model, 1.0, sum(weight for _, _, weight in inner))]


def on_frozen(model: Predictor, embedders: Embedders, shape: tuple[int, ...]) -> Predictor:
    """A model of embeddings as one of images of a shape, with the frozen backbone below it."""
    weights, card = _frozen_weights(embedders), model.card
    for name, value in model.weights.items():
        weights[
            name.replace("features.", "features.1.", 1) if name.startswith("features.") else name
        ] = value
    split = keeps_source_statistics(weights)
    if split:  # of one part; others have the same for both domains
        weights = with_source_statistics(weights)
    backbone = embedders.target.spec
    net = dataclasses.replace(
        card.net,
        name=f"{backbone.name}+{card.net.name}",
        crop=backbone.crop,
        norm="split" if split else card.net.norm,
    )
    return Predictor(dataclasses.replace(card, net=net, shape=shape), weights, "cpu")


def _frozen_weights(embedders: Embedders) -> dict[str, Tensor]:
    """The backbone as the target sees it, and with the source's own batch statistics where it has
    any."""
    of_source, of_target = (
        one.network.state_dict() for one in (embedders.source, embedders.target)
    )
    weights = {f"features.0.{name}": value.cpu() for name, value in of_target.items()}
    for name, value in of_source.items() if embedders.source is not embedders.target else ():
        stem, _, leaf = f"features.0.{name}".rpartition(".")
        if leaf in STATISTICS:
            weights[f"{stem}.source_{leaf}"] = value.cpu()
    return weights


def summary(found: Adaptation) -> dict[str, Any]:
    """As plain JSON values."""
    winner, training_data = found.winner, found.setup.data.task.training_data
    return {
        "source": str(found.setup.data.source.path),
        "target": str(found.setup.data.target.path),
        "images": {
            "source": len(training_data.source),
            "source_val": len(training_data.source_val),
            "target": len(training_data.target),
        },
        "classes": list(found.classes),
        "network": found.setup.description,
        "chosen": winner.candidate.name,
        "rejected": found.rejected,
        "verdict": None if found.verdict is None else found.verdict.as_dict(),
        "sentence": found.sentence,
        "expected_accuracy": None if found.expected is None else found.expected.as_dict(),
        "methods": _methods(found),
        "failed": dict(found.failed),
        "labels": None if found.setup.labels is None else _by_labels(found),
        "known_mix": None if found.setup.prior is None else found.setup.prior.tolist(),
        "source_mix": found.setup.data.source_prior.tolist(),
        "target_mix": found.diagnosis.target_prior.as_dict(),
        "predicted": np.bincount(found.predicted, minlength=len(found.classes)).tolist(),
        "unknown": found.unfamiliar.as_dict(),
        "diagnosis": found.diagnosis.as_dict(),
        "remarks": [
            {"code": r.code, "what": r.what, "why": r.why, "do": r.remedy, "where": list(r.where)}
            for r in adaptation_findings(found)
        ],
        "seconds": round(found.seconds, 1),
        "request": request_as_json(found.request),
    }


def _methods(found: Adaptation) -> list[dict[str, Any]]:
    return [
        {
            "name": t.candidate.name,
            "run": None if t.members else t.run.key,
            "members": [member.candidate.name for member in t.members],
            "weights": [member.candidate.weight for member in t.members],
            "scores": dict(scores),
            "against_source": found.verdicts[t.candidate.name].verdict if i else None,
        }
        for i, (t, scores) in enumerate(zip(found.trained, found.scores, strict=True))
    ]


def _by_labels(found: Adaptation) -> dict[str, Any]:
    labels = found.setup.labels
    assert labels is not None
    accuracy = {name: dataclasses.asdict(estimate) for name, estimate in found.on_labels.items()}
    return {"count": len(labels.y), "trained": found.request.train_labels, "accuracy": accuracy}


# --- a model adapted again ---


def write_again(found: Readapted, domain: CustomDomain, out: Path) -> None:
    """model/, predictions.csv and, last, summary.json."""
    open_root(out / "runs")  # marks the folder as ours
    found.predictor.save(out / "model")
    write_predictions_csv(
        out / "predictions.csv",
        domain.names,
        [""] * len(domain.names),
        found.after,
        found.predictor.classes,
    )
    write_json(out / "summary.json", again_as_json(found, domain))


def again_as_json(found: Readapted, domain: CustomDomain) -> dict[str, Any]:
    counts = np.bincount(found.after.argmax(axis=1), minlength=found.after.shape[1])
    return {
        "target": str(domain.path),
        "images": {"target": len(domain.names)},
        "classes": list(found.predictor.classes),
        "sentence": found.sentence,
        "changed": found.changed,
        "collapsed": found.collapsed,
        "target_mix": {"estimator": "em", "mix": found.prior.tolist()},
        "predicted": counts.tolist(),
    }


# --- switching ---


def request_as_json(request: AdaptRequest) -> dict[str, Any] | None:
    """What was asked for, with whole paths, so that another command can ask for it again; None if
    it was in memory."""
    if not all(
        isinstance(given, Path | None)
        for given in (request.source, request.target, request.labels, request.target_prior)
    ):
        return None
    values = dataclasses.asdict(request)
    del values["log"]  # trackers hear of training, and a switch needs none
    paths = {
        name: str(value.resolve()) for name, value in values.items() if isinstance(value, Path)
    }
    return values | paths | {"training": dict(request.training)}


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("source", "target", "method", "backbone", "weights", "take"), str),
    **dict.fromkeys(("labels", "target_prior"), str | None),
    **dict.fromkeys(("quick", "skip_broken", "train_labels"), bool),
    **dict.fromkeys(("training", "params"), dict),
    "tuned": bool | None,
    "seed": int,
    "search": int,
}
"""What each entry of a request is, in JSON."""


def earlier_request(out: Path) -> AdaptRequest:
    """What the adaptation in a folder was asked for; UserError if there is none."""
    try:
        require_file(out / "summary.json")
        values = dict(json.loads((out / "summary.json").read_text())["request"])
        paths = {
            name: Path(values[name])
            for name in ("source", "target", "labels", "target_prior")
            if values[name]
        }
        if not all(isinstance(values[name], kind) for name, kind in _KINDS.items()):
            raise TypeError
        columns = Columns(*(str(values["columns"][name]) for name in ("path", "label")))
        return AdaptRequest(**(values | paths | {"columns": columns, "log": ()}))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{out} is not a finished adaptation, or one of an earlier version.",
            "name the folder that `askew adapt … -o` wrote, or run that again.",
        ) from None
