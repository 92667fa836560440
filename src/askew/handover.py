"""What an adaptation leaves behind: the model, predictions of the target, the report, and a summary."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np

from askew.adapt import Adaptation
from askew.card import TargetMix
from askew.embed import frozen
from askew.letter import make_letter
from askew.predictor import Predictor
from askew.remarks import remarks
from askew.store import write_bytes, write_json


def hand_over(found: Adaptation, out: Path) -> None:
    """model/, predictions.csv, report.html and, last, summary.json; each is there whole or not at all."""
    predictor(found).save(out / "model")
    write_bytes(out / "predictions.csv", predictions(found).encode(errors="surrogateescape"))
    write_bytes(out / "report.html", make_letter(found).encode(errors="replace"))
    write_json(out / "summary.json", summary(found))


def predictor(found: Adaptation) -> Predictor:
    """The chosen network, from images (or rows) to classes; a frozen backbone is part of it."""
    mix, backbone = found.diagnosis.mix, found.setup.backbone
    estimate = TargetMix(tuple(mix.mix.tolist()), mix.estimator, tuple(mix.low.tolist()), tuple(mix.high.tolist()))
    made = {"by": "askew adapt", "method": found.winner.candidate.name, "said": found.sentence}
    plain = Predictor.of_run(found.winner.folder, "cpu", estimate, made)
    if backbone is None:
        return plain
    shape = tuple(found.setup.data.task.study.source.x.shape[1:])
    weights = {f"features.0.{name}": value for name, value in frozen(backbone, shape).state_dict().items()}
    for name, value in plain.weights.items():
        weights[name.replace("features.", "features.1.", 1) if name.startswith("features.") else name] = value
    net = dataclasses.replace(plain.card.net, name=f"{backbone.name}+{plain.card.net.name}", crop=backbone.crop)
    return Predictor(dataclasses.replace(plain.card, net=net, shape=shape), weights, "cpu")


def predictions(found: Adaptation) -> str:
    """A CSV: each target image with its class, the probability of that, and the probability of every class."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["path", "class", "probability", *(f"p_{name}" for name in found.classes)])
    for name, k, p in zip(found.setup.data.target.names, found.predicted, found.probabilities, strict=True):
        rows.writerow([name, found.classes[k], f"{p[k]:.4f}", *(f"{v:.4f}" for v in p)])
    return text.getvalue()


def summary(found: Adaptation) -> dict[str, Any]:
    """As plain JSON values."""
    winner, study = found.winner, found.setup.data.task.study
    return {
        "source": str(found.order.source),
        "target": str(found.order.target),
        "images": {"source": len(study.source), "source_val": len(study.source_val), "target": len(study.target)},
        "classes": list(found.classes),
        "network": found.setup.said,
        "chosen": winner.candidate.name,
        "verdict": found.verdicts[winner.candidate.name].as_dict() if found.chosen else None,
        "sentence": found.sentence,
        "methods": [
            {
                "name": t.candidate.name,
                "run": t.run.key,
                "scores": dict(scores),
                "against_source": found.verdicts[t.candidate.name].verdict if i else None,
            }
            for i, (t, scores) in enumerate(zip(found.trained, found.scores, strict=True))
        ],
        "failed": dict(found.failed),
        "source_mix": found.setup.data.source_mix.tolist(),
        "target_mix": found.diagnosis.mix.as_dict(),
        "predicted": np.bincount(found.predicted, minlength=len(found.classes)).tolist(),
        "diagnosis": found.diagnosis.as_dict(),
        "remarks": [
            {"code": r.code, "what": r.what, "why": r.why, "do": r.remedy, "where": list(r.where)}
            for r in remarks(found)
        ],
        "seconds": round(found.seconds, 1),
    }
