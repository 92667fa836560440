"""The files that an adaptation writes: the model, predictions of the target, the report, and a
summary."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from askew.adaptation.assessment import Adaptation
from askew.adaptation.findings import adaptation_findings
from askew.adaptation.report import MapFeatures, render_report, tsne
from askew.adaptation.request import AdaptRequest
from askew.adaptation.source_free import Readapted
from askew.adaptation.switch import PREDICTIONS, REPORT, finish_result, identity, new_result
from askew.adaptation.target_rows import TargetRows
from askew.core.errors import UserError
from askew.core.files import write_bytes
from askew.data.custom import CustomDomain
from askew.data.image_lists import Columns
from askew.data.paths import require_file
from askew.inference.cached_embeddings import STORE
from askew.inference.embeddings import Embedders
from askew.inference.model_card import TargetPrior
from askew.inference.predictor import Predictor
from askew.inference.writers import write_predictions_csv
from askew.nets.adabn import STATISTICS
from askew.nets.network import keeps_source_statistics, with_source_statistics
from askew.reports.findings import Finding
from askew.runs.root import open_root

FORM = 2
"""Version of the layout of an adaptation's folder."""


def write_artifacts(found: Adaptation, out: Path, *, map_features: MapFeatures = tsne) -> None:
    """Write model/, predictions.csv, report.html, target.json and summary.json; a result that was
    there is replaced as a whole."""
    names = found.data.target.names
    problems, marked = [""] * len(names), found.unknown.marked
    findings = adaptation_findings(found)
    with new_result(out) as new:
        write_predictions_csv(
            new / PREDICTIONS, names, problems, found.probabilities, found.classes, marked
        )
        page = render_report(found, findings, map_features)
        write_bytes(new / REPORT, page.encode(errors="replace"))
        target = TargetRows.of(found.data.target)
        finish_result(new, final_model(found), target, summary(found, findings))


def final_model(found: Adaptation) -> Predictor:
    """Make the model that is saved, from images (or rows) to classes: one network."""
    shares = TargetPrior.of(found.diagnosis.target_prior)
    if found.inputs.target_shares is not None:
        shares = TargetPrior(tuple(found.inputs.target_shares.tolist()), "known")
    made = {"by": "askew adapt", "method": found.final.name, "verdict": found.sentence}
    run = found.final.run
    model = Predictor.of_run(found.final.folder, "cpu", shares, made, run.method)
    bias = tuple((found.temperature * found.bias).tolist()) if found.bias.any() else ()
    columns = () if found.inputs.data is None else found.inputs.data.columns
    card = dataclasses.replace(
        model.card, temperature=found.temperature, bias=bias, columns=columns
    )
    model = Predictor(card, model.weights, "cpu")
    shape = tuple(found.inputs.task.training_data.source.x.shape[1:])
    if model.card.shape == shape:
        return model
    if found.final.below is not None:
        below = found.final.below
        return join_tuned_backbone(
            model, Predictor.of_run(below.folder, "cpu", rule=below.run.method)
        )
    assert found.inputs.embedders is not None, "rows of images are made by a backbone"
    return join_frozen_backbone(model, found.inputs.embedders, shape)


def join_tuned_backbone(head: Predictor, below: Predictor) -> Predictor:
    """Put a head that was computed on a network's features in place of that network's own."""
    net = below.card.net
    weights = {n: v for n, v in below.weights.items() if n.startswith("features.")}
    parts = below.classifier.net["features"]
    assert isinstance(parts, nn.Sequential), "a backbone and layers on it"
    layers = parts[1]
    assert isinstance(layers, nn.Sequential), "layers are one after another"
    centre = f"features.1.{len(layers) + 1}."  # unit length comes before it
    for name, value in head.weights.items():
        weights[name.replace("features.1.", centre, 1)] = value
    card = dataclasses.replace(
        head.card,
        net=dataclasses.replace(
            head.card.net, embedding=net.embedding, layers=f"{net.layers}-centred", norm="split"
        ),
        shape=below.card.shape,
    )
    return Predictor(card, with_source_statistics(weights), "cpu")


def join_frozen_backbone(
    model: Predictor, embedders: Embedders, shape: tuple[int, ...]
) -> Predictor:
    """A model of embeddings as one of images of a shape, with the frozen backbone below it."""
    weights, card = _frozen_weights(embedders), model.card
    for name, value in model.weights.items():
        weights[
            name.replace("features.", "features.1.", 1) if name.startswith("features.") else name
        ] = value
    split = keeps_source_statistics(weights)
    if split:  # of one part; others have the same for both domains
        weights = with_source_statistics(weights)
    norm = "split" if split else card.net.norm
    net = dataclasses.replace(card.net, embedding=embedders.target.embedding, norm=norm)
    made = {**card.made, STORE: embedders.target.store}
    return Predictor(dataclasses.replace(card, net=net, shape=shape, made=made), weights, "cpu")


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


def summary(found: Adaptation, findings: Sequence[Finding] | None = None) -> dict[str, Any]:
    """Give every number as plain JSON values."""
    findings = adaptation_findings(found) if findings is None else findings
    training_data, labels = found.inputs.task.training_data, found.inputs.labels
    known = found.inputs.target_shares
    return {
        "form": FORM,
        "source": str(found.data.source.path),
        "target": str(found.data.target.path),
        "images": {
            "source": len(training_data.source),
            "source_val": len(training_data.source_val),
            "target": len(training_data.target),
        },
        "classes": list(found.classes),
        "network": found.inputs.description,
        "saved": found.final.name,
        "rejected": found.rejected,
        "verdict": None if found.verdict is None else found.verdict.as_dict(),
        "sentence": found.sentence,
        "expected_accuracy": None if found.expected is None else found.expected.as_dict(),
        "methods": [
            {
                "name": one.name,
                "run": one.run.key,
                "scores": dict(scores),
                "verdict": found.verdicts[one.name].verdict if i else None,
            }
            for i, (one, scores) in enumerate(zip(found.networks, found.scores, strict=True))
        ],
        "failures": dict(found.failures),
        "labels": None if labels is None else len(labels.y),
        "known_shares": None if known is None else known.tolist(),
        "source_shares": found.data.source_prior.tolist(),
        "target_shares": found.diagnosis.target_prior.as_dict(),
        "predicted": np.bincount(found.predicted, minlength=len(found.classes)).tolist(),
        "unknown": found.unknown.as_dict(),
        "diagnosis": found.diagnosis.as_dict(),
        "findings": [finding.as_dict() for finding in findings],
        "seconds": round(found.seconds, 1),
        "request": None if found.request is None else request_as_json(found.request),
        "identity": None if found.request is None else identity(found.request),
    }


# --- a model adapted again ---


def write_again(
    found: Readapted, domain: CustomDomain, out: Path, asked: Mapping[str, Any]
) -> None:
    """Write model/, predictions.csv, target.json and summary.json."""
    open_root(out / "runs")  # marks the folder as ours
    with new_result(out) as new:
        write_predictions_csv(
            new / PREDICTIONS,
            domain.names,
            [""] * len(domain.names),
            found.after,
            found.predictor.classes,
        )
        told = {**again_as_json(found, domain), "identity": dict(asked)}
        finish_result(new, found.predictor, TargetRows.of(domain), told)


def again_as_json(found: Readapted, domain: CustomDomain) -> dict[str, Any]:
    counts = np.bincount(found.after.argmax(axis=1), minlength=found.after.shape[1])
    return {
        "target": str(domain.path),
        "images": {"target": len(domain.names)},
        "classes": list(found.predictor.classes),
        "sentence": found.sentence,
        "changed": found.changed,
        "collapsed": found.collapsed,
        "target_shares": {"estimator": "em", "shares": found.prior.tolist()},
        "predicted": counts.tolist(),
    }


# --- switching ---


def request_as_json(request: AdaptRequest) -> dict[str, Any] | None:
    """What was asked for, with whole paths, so that another command can ask for it again; None if
    it was in memory."""
    if not all(
        isinstance(given, Path | None)
        for given in (request.source, request.target, request.labels, request.target_shares)
    ):
        return None
    values = dataclasses.asdict(request)
    del values["log"]  # trackers hear of training, and a switch needs none
    paths = {
        name: str(value.resolve()) for name, value in values.items() if isinstance(value, Path)
    }
    return values | paths | {"training": dict(request.training)}


_KINDS: dict[str, Any] = {
    **dict.fromkeys(("source", "target", "backbone", "weights", "take"), str),
    **dict.fromkeys(("labels", "target_shares"), str | None),
    **dict.fromkeys(("quick", "skip_broken"), bool),
    **dict.fromkeys(("training", "params"), dict),
    "methods": list,
    "fine_tune": bool | None,
    **dict.fromkeys(("seed", "resamples"), int),
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
            for name in ("source", "target", "labels", "target_shares")
            if values[name]
        }
        if not all(isinstance(values[name], kind) for name, kind in _KINDS.items()):
            raise TypeError
        columns = Columns(*(str(values["columns"][name]) for name in ("path", "label")))
        more = {"columns": columns, "log": (), "methods": tuple(map(str, values["methods"]))}
        return AdaptRequest(**(values | paths | more))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{out} is not a finished adaptation, or one of an earlier version.",
            "name the folder that `askew adapt … -o` wrote, or run that again.",
        ) from None
