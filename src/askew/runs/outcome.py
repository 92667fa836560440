"""The results of a run: its predictions, its scores and its weights, as files of its folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from askew.core.files import write_json, write_tensors
from askew.data.task import Task
from askew.evaluation.metrics import score_test
from askew.evaluation.outputs import OUTPUTS_FORM
from askew.evaluation.priors import score_under_estimated_prior
from askew.runs.store import RunFolder
from askew.training.snapshot import Checkpoint


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a finished run predicts; as logits or log-probabilities."""

    test: torch.Tensor
    """(n_e, c)"""
    target: torch.Tensor
    """(n_t, c)"""
    source_val: torch.Tensor
    """(n_v, c)"""
    source_val_y: torch.Tensor
    """(n_v,)"""
    training_prior: torch.Tensor
    """The class prior that the predictions were trained under. (c,)"""


@dataclass(frozen=True)
class Outcome:
    """What is written of the predictions: tensors, and scores by the name of their file."""

    tensors: dict[str, torch.Tensor]
    scores: dict[str, Any]


def score_predictions(task: Task, found: Predictions) -> Outcome:
    """The tensors to store, and the scores where there are test labels."""
    logits = {"test": found.test, "target": found.target, "source_val": found.source_val}
    tensors = {name: value.half() for name, value in logits.items()}
    tensors |= {"source_val_y": found.source_val_y, "training_shares": found.training_prior}
    if task.test is None:
        return Outcome(tensors, {})

    others = (found.source_val, found.source_val_y, found.target, found.training_prior)
    scores = {
        "reweighted.json": score_under_estimated_prior(task.test, found.test, *others),
        "scores.json": score_test(task.test, found.test.cpu().numpy()),
    }
    return Outcome(tensors, scores)


def write_outcome(folder: RunFolder, outcome: Outcome, weights: Checkpoint | None) -> None:
    """Write the weights, if any, the predictions, the scores and `done`."""
    if weights is not None:
        write_tensors(folder.path / "weights.safetensors", weights, {"form": "1"})
    write_tensors(folder.path / "outputs.safetensors", outcome.tensors, {"form": OUTPUTS_FORM})
    for name, values in outcome.scores.items():
        write_json(folder.path / name, values)
    folder.finish()


def write_results(
    folder: RunFolder, task: Task, found: Predictions, weights: Checkpoint | None = None
) -> None:
    """Score predictions and finish the run's folder; a method's own runner ends with this."""
    write_outcome(folder, score_predictions(task, found), weights)
