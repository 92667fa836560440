"""What `askew adapt` trains and chooses among, by kind of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from askew.data.task import Task
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.logits import softmax
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.smoothing import smoothed
from askew.evaluation.validators import ScoredNetwork, choose_several
from askew.runs.config import RunRequest, plan_run
from askew.training.run import Run

USUAL_BATCH, LARGEST_BATCH = 32, 128
"""Images of each domain in a step on rows: usually, and at most where a candidate needs room for
many classes."""


@dataclass(frozen=True)
class Candidate:
    """One way to train; the first candidate is always source-only, which the others have to
    beat."""

    name: str
    method: str
    training: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    """Hyper-parameters of the method that differ from the settings."""
    taught: bool = False
    """Whether it is trained with labels of the target that the user gave."""
    weight: float = 1.0
    """How much its network counts beside others: in the choice of those whose mean is handed out,
    and in that mean."""
    per_class: int = 0
    """Images of each class that a batch has room for: it grows where classes are many."""
    frozen: bool = False
    """Whether it is trained on embeddings beside candidates that are fine-tuned."""
    guided_by: tuple[str, ...] = ()
    """Fine-tuned candidates with whose answers it begins, and with those of the frozen ones."""
    is_refit: bool = False
    """Whether it is fitted to what all others answer together, and has no answer of its own."""

    def trained_with(self, training: Mapping[str, Any], classes: int) -> dict[str, Any]:
        """Training settings for so many classes: what the user wants, and what makes the
        candidate."""
        room = min(self.per_class * classes, LARGEST_BATCH)
        return (
            ({"batch": room} if room > USUAL_BATCH else {}) | dict(training) | dict(self.training)
        )

    def run(self, task: Task, network: str, training: Mapping[str, Any], seed: int) -> Run:
        """Its run on a task of one's own."""
        training = self.trained_with(training, len(task.training_data.classes))
        request = RunRequest(
            task=task.name,
            method=self.method,
            seed=seed,
            shift="natural",
            params=self.params,
            training=training,
        )
        return plan_run(request, task, network)


SOURCE_ONLY = Candidate("source", "source")
ENSEMBLE = Candidate("ensemble", "ensemble")
"""The mean of the better adapted networks, which is not trained."""
BALANCED_COAL = Candidate("coal, balanced target", "coal", {"target_sampler": "balanced"})
COAL, MCC, TEACHER, LDA, PROTOTYPES = (
    Candidate(name, name) for name in ("coal", "mcc", "teacher", "lda", "prototypes")
)
# With random views, the teacher is the best single one on nearly every development task
# (results/trust).
TEACHER_OF_VIEWS = replace(TEACHER, weight=2)
GUIDED = Candidate("guided", "guided")
# It begins with what would be handed out without it. On 12 development tasks the better of the
# first two is ahead of it by 2.5 points at most, where one that begins without the first guided one
# is behind by 4.9; it counts twice.
GUIDED_BY_ALL = replace(
    GUIDED, name="guided, by all", guided_by=(TEACHER.name, GUIDED.name), weight=2
)
# MCC compares the classes of a batch: one of 32 images would show each of 31 classes once, or not
# at all.
MCC_ON_ROWS = replace(MCC, per_class=2)


AUTO: Mapping[str, tuple[Candidate, ...]] = {
    "embeddings": (SOURCE_ONLY, BALANCED_COAL, MCC_ON_ROWS, TEACHER, LDA, PROTOTYPES),
    "small-images": (SOURCE_ONLY, Candidate("fixmatch", "fixmatch"), TEACHER_OF_VIEWS),
    "images": (SOURCE_ONLY, COAL, MCC, TEACHER_OF_VIEWS),
    "guided images": (SOURCE_ONLY, TEACHER, GUIDED, GUIDED_BY_ALL),
}
"""What `auto` trains and chooses among, by kind of data: embeddings and other rows, small images,
pictures, and pictures for which networks on embeddings have answered before."""
QUICK_AUTO = {
    "embeddings": (SOURCE_ONLY, BALANCED_COAL, LDA),
    "small-images": (SOURCE_ONLY, TEACHER),
    "images": (SOURCE_ONLY, MCC),
}

FROZEN = tuple(replace(one, name=f"{one.name}, frozen", frozen=True) for one in AUTO["embeddings"])
"""Trained on embeddings by the backbone as it was, before it is fine-tuned: fine-tuning begins with
their answers, and all but the first, source-only, stand beside what comes of it, since the two
kinds fail on different data."""
FROZEN_SHARE = 0.25
"""How much they count, all together, for each unit that fine-tuned ones count. On eight development
pairs 0, a quarter, a half and 1 have 88.8, 88.8, 88.4 and 88.0 %: not much is lost by a say of
those that fine-tuning cannot spoil."""
REFIT = Candidate("lda, from their answers", "lda", weight=4, is_refit=True)
"""LDA by one step from what an ensemble on rows answers; it then counts so many times as much as
all others together. On 21 development tasks at 224 pixels this gains 0.3 points on its counting as
much as they do, and on average as much as being handed out alone (results/own-data)."""
REFIT_BESIDE_TUNED = replace(REFIT, weight=1, frozen=True)
REPEATS = 0.85
"""Share of the answers that it has to repeat to be taken into the ensemble: where it does not, no
linear network tells the classes apart, and answers would be lost. On 36 development tasks 0.9 turns
more away that gain than lose."""
WIDE = 100
"""Numbers in a row from which on it is fitted at all: wide rows are mostly features of a
pre-trained network, which linear networks suit; on narrow tables of numbers it loses 2.6 points on
average, repeated answers or not."""


def choose_members(
    candidates: Sequence[Candidate], networks: Sequence[ScoredNetwork]
) -> list[tuple[int, float]]:
    """Which of the compared networks, source-only first, answer together, and how much each counts:
    the better ones of those that are fine-tuned, and, for their share, of the frozen ones; none
    where source-only is preferred."""
    kinds = []
    for frozen in (False, True):
        own = [0, *(i for i, one in enumerate(candidates) if i and one.frozen == frozen)]
        better = choose_several([networks[i] for i in own], [candidates[i].weight for i in own])
        kinds.append([(own[k], candidates[own[k]].weight) for k in better if k])
    first, second = (sum(weight for _, weight in kind) for kind in kinds)
    scale = FROZEN_SHARE * first / second if first and second else 1.0
    return kinds[0] + [(i, weight * scale) for i, weight in kinds[1]]


def answered(
    task: Task,
    members: Sequence[Candidate],
    outputs: Sequence[DomainOutputs],
    refit: Candidate = REFIT,
) -> tuple[Candidate, Task]:
    """The refit with its weight beside these members of an ensemble, and the task of rows with
    their answers, which have listened to neighbours: among the rows, images that no network got
    right may lie amidst those of their class.
    """
    weights = [member.weight for member in members]
    answers = softmax(mean_outputs(outputs, weights).target_uniform)
    heard = smoothed(answers, np.asarray(task.training_data.target.x))
    data = replace(task.training_data, answers=heard.astype(np.float32))
    return replace(refit, weight=refit.weight * sum(weights)), replace(task, training_data=data)


def refits(task: Task) -> bool:
    """Whether LDA is fitted to the answers of an ensemble: on rows, if they are wide."""
    shape = task.training_data.target.x.shape
    return len(shape) == 2 and shape[1] >= WIDE


def refit_joins(outputs: DomainOutputs, task: Task) -> bool:
    """Whether the network that was fitted to a task's answers may join those who gave them."""
    answers = task.training_data.answers
    assert answers is not None, "they are what it was fitted to"
    return bool((outputs.target.argmax(axis=1) == answers.argmax(axis=1)).mean() >= REPEATS)
