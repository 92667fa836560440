"""The networks of one adaptation: each trained once, in a folder of its own, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from askew.core.errors import UserError
from askew.core.files import Unwritable, read_tensors, write_tensors
from askew.core.tracking import Maker
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import Task, TrainingData
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, as_labels, read_outputs
from askew.nets.network import fetch_weights
from askew.reports.features import network_features
from askew.runs.config import RunRequest, plan_run
from askew.runs.execute import Execution, Progress, execute
from askew.runs.root import open_root
from askew.runs.store import RunFolder
from askew.training.run import Run

USUAL_BATCH, LARGEST_BATCH = 32, 128
"""Images of each domain in a step: usually, and at most where a method compares many classes."""

RESAMPLES = 100
"""How often images are drawn again for intervals, unless a caller decides otherwise."""

Expect = Callable[[int, int], None]
"""Hears how many trainings of one kind begin, and how many of another kind come later."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train a network."""

    name: str
    method: str
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that differ."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the method that differ."""
    images_per_class: int = 0
    """Room for so many images of each class in a batch, where classes are many."""

    def run(self, training_set: TrainingSet, seed: int) -> Run:
        """Plan its run on a task of the user's own."""
        task = training_set.task
        room = min(self.images_per_class * len(task.training_data.classes), LARGEST_BATCH)
        batch = {"batch": room} if room > USUAL_BATCH else {}
        request = RunRequest(
            task=task.name,
            method=self.method,
            seed=seed,
            shift="natural",
            params=self.params,
            training=batch | dict(training_set.training) | dict(self.training),
        )
        return plan_run(request, task, training_set.network)


SOURCE_ONLY = Candidate(name="source", method="source")
"""Trained on the source alone. It always comes first: the others have to beat it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A candidate with its finished run and its network's outputs."""

    candidate: Candidate
    run: Run
    folder: Path
    task: Task
    """What it was trained on."""
    outputs: DomainOutputs
    below: Trained | None = None
    """The fine-tuned network whose features it was trained on."""

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def predicted(self) -> Labels:
        """Predict the class of each target image under a uniform prior. (n_t,)"""
        return as_labels(self.outputs.target_uniform.argmax(axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingSet:
    """What networks are trained on, and how."""

    task: Task
    network: str
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training settings that differ from the committed ones."""

    def with_soft_labels(self, soft: Floats) -> TrainingSet:
        """Add soft labels of the target images. (n_t, c)"""
        data = replace(self.task.training_data, soft_labels=soft.astype(np.float32))
        return replace(self, task=replace(self.task, training_data=data))

    def with_whole_source(self) -> TrainingSet:
        """Train on the held-out source images too, and look at all of them afterwards."""
        data = self.task.training_data
        if data.source_val is data.source:
            return self
        source = data.source.followed_by(data.source_val)
        whole = replace(data, source=source, source_val=source)
        return replace(self, task=replace(self.task, training_data=whole))


class Session:
    """Trains the networks of one adaptation, and keeps why others failed.

    A network that is already in the folder is read, not trained again.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        *,
        seed: int = 0,
        log: tuple[str | Maker, ...] = (),
        resamples: int = RESAMPLES,
        train_missing: bool = True,
        expect: Expect = lambda trainings, later: None,
    ) -> None:
        """`train_missing=False` only reads what an earlier session trained.

        `resamples` says how often images are drawn again for intervals.
        """
        self.folder, self.device, self.seed, self.log = folder, device, seed, log
        self.resamples = resamples
        self.train_missing, self.expect = train_missing, expect
        self.failures: dict[str, str] = {}
        """Candidates that could not be trained, and why."""

    def train(
        self, candidates: Sequence[Candidate], training_set: TrainingSet
    ) -> Generator[Progress, None, list[Trained]]:
        """Train every candidate; source-only may not fail."""
        task = training_set.task
        runs = [(one, one.run(training_set, self.seed)) for one in candidates]
        self.expect(self._missing([run for _, run in runs]), 0)
        trained = []
        for candidate, run in runs:
            try:
                yield from self._train(candidate, run, task)
                outputs = read_outputs(self.folder / run.key)
            except UserError as error:
                # A full disk is no method's fault.
                if candidate.name == SOURCE_ONLY.name or isinstance(error, Unwritable):
                    raise
                self.failures[candidate.name] = error.sentence
                continue
            trained.append(
                Trained(
                    candidate=candidate,
                    run=run,
                    folder=self.folder / run.key,
                    task=task,
                    outputs=outputs,
                )
            )
        return trained

    def embed(self, network: Trained, task: Task) -> Generator[Progress, None, TrainingSet]:
        """Replace a task's images by the features of a network that was trained on them.

        They are kept: a GPU would compute slightly other ones, and the student would be another.
        """
        data, file = task.training_data, self.folder / f"features-{network.run.key}.safetensors"
        if not file.exists():
            yield from self._write_features(network, data, file)
        stored = read_tensors(file)[0]
        rows = [stored[str(number)].numpy() for number in range(len(stored))]
        target = Unlabeled(rows[2])
        embedded = replace(
            data,
            source=Labeled(rows[0], data.source.y),
            source_val=Labeled(rows[1], data.source_val.y),
            target=target,
            test_images=Unlabeled(rows[3]) if len(rows) > 3 else target,
            soft_labels=None,
        )
        made = Task("own/embeddings", embedded, task.test, task.notes)
        return TrainingSet(task=made, network="mlp")

    def _write_features(
        self, network: Trained, data: TrainingData, file: Path
    ) -> Generator[Progress, None, None]:
        """Compute the features of source, held-out source, target and other test images."""
        described, label = network.run.describe(), f"features of {network.name}"
        features = network_features(network.folder, described, data, str(self.device))
        parts: list[tuple[Any, Literal["source", "target"]]] = [
            (data.source.x, "source"),
            (data.source_val.x, "source"),
            (data.target.x, "target"),
        ]
        if data.test_images is not data.target:
            parts.append((data.test_images.x, "target"))
        rows = {}
        for step, (x, domain) in enumerate(parts):
            yield Progress(key="features", label=label, step=step, steps=len(parts), losses={})
            rows[str(step)] = torch.from_numpy(np.ascontiguousarray(features(x, domain)))
        write_tensors(file, rows, {"form": "1"})

    def _train(self, candidate: Candidate, run: Run, task: Task) -> Generator[Progress, None, None]:
        if not RunFolder(self.folder / run.key).done:
            if not self.train_missing:
                raise UserError(
                    f"The network of {candidate.name} is not there: it failed, or data or settings "
                    "have changed.",
                    "run `askew adapt` again with the same -o.",
                )
            fetch_weights(run.net, tuple(task.training_data.source.x.shape[1:]))
        how = Execution(root=open_root(self.folder), device=self.device, log=self.log)
        for step in execute(run, task, how):
            yield replace(step, label=candidate.name) if step.key == run.key else step

    def _missing(self, runs: Sequence[Run]) -> int:
        """Count the trainings that are still to do, with the pre-trainings that they share."""
        keys = set()
        for last in runs:
            run: Run | None = last
            while run is not None and not RunFolder(self.folder / run.key).done:
                keys.add(run.key)
                run = run.before
        return len(keys)
