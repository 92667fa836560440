"""The benchmarks' method `auto`: the recipe of `askew adapt` on a benchmark's task."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from typing import Any

from askew.adaptation.assessment import Adaptation, assess
from askew.adaptation.inputs import ImageSettings, Inputs, image_inputs
from askew.adaptation.recipe import auto
from askew.adaptation.session import Session, TrainingSet
from askew.core.files import write_json
from askew.data.custom import kind_of
from askew.data.task import Task
from askew.evaluation.outputs import read_stored_outputs
from askew.methods.auto import Auto
from askew.runs.execute import Execution, Progress
from askew.runs.outcome import Predictions, write_results
from askew.runs.store import RunFolder
from askew.training.run import Run

ASSESSMENT = "auto.json"
"""What `auto` tells without labels, in the folder of its run."""


def run_auto(run: Run, task: Task, how: Execution) -> Iterator[Progress]:
    """Adapt to a benchmark's task, and finish the run with the predictions of the saved network."""
    folder = RunFolder(how.root / run.key)
    inputs = yield from benchmark_inputs(run, task, how)
    session = Session(folder.path / "networks", how.device, seed=run.seed)
    found = assess(session, inputs, (yield from auto(session, inputs)))
    tensors = read_stored_outputs(found.final.folder)
    write_json(folder.path / ASSESSMENT, _as_json(found))
    predictions = Predictions(
        test=tensors["test"].float(),
        target=tensors["target"].float(),
        source_val=tensors["source_val"].float(),
        source_val_y=tensors["source_val_y"],
        training_prior=tensors["training_shares"],
    )
    write_results(folder, task, predictions)


def benchmark_inputs(run: Run, task: Task, how: Execution) -> Generator[Progress, None, Inputs]:
    """Choose networks as `askew adapt` does for data of this kind; the backbone is the run's."""
    method, net = run.method, run.net
    assert isinstance(method, Auto), "no other method has this runner"
    shape = tuple(task.training_data.source.x.shape[1:])
    training = {name: v for name, v in run.overrides if name not in ("net", "weights")}
    if net.embedding is not None:
        images = ImageSettings(
            network=net.embedding.backbone,
            weights=net.embedding.weights,
            fine_tune=method.fine_tune,
            training=training,
        )
        own = dataclasses.replace(task, name="own/images")
        return (yield from image_inputs(own, images, how.device))
    kind = kind_of(shape)
    own = dataclasses.replace(task, name=f"own/{kind}")
    training_set = TrainingSet(task=own, network=net.name, training=training)
    if len(shape) == 1:
        return Inputs(task=own, kind=kind, rows=training_set)
    return Inputs(task=own, kind=kind, pixels=training_set)


def _as_json(found: Adaptation) -> dict[str, Any]:
    """Give what is told without labels, and, for studies, what each network reaches with them."""
    accuracies = {
        one.name: RunFolder(one.folder).scores()["whole"]["per_class_mean"]
        for one in found.networks
    }
    return {
        "saved": found.final.name,
        "rejected": found.rejected,
        "verdicts": {name: one.verdict for name, one in found.verdicts.items()},
        "expected_accuracy": None if found.expected is None else found.expected.as_dict(),
        "target_shares": found.diagnosis.target_prior.as_dict(),
        "oracle": accuracies,
        "failures": dict(found.failures),
    }
