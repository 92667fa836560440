"""`auto` in five steps: embed, train candidates, combine them, train one student, judge it.

The command line, `askew.adapt`, the scikit-learn estimator, the benchmark's method `auto` and the
studies call `auto` below. docs/how-auto-works.md explains it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.adaptation.inputs import Inputs
from askew.adaptation.session import SOURCE_ONLY, Candidate, Session, Trained, TrainingSet
from askew.core.errors import UserError, unknown
from askew.evaluation.calibration import mean_outputs
from askew.evaluation.expected_accuracy import best_accuracy, target_posterior
from askew.evaluation.neighbours import smooth_over_neighbours
from askew.evaluation.outputs import Floats, softmax
from askew.evaluation.scores import ScoredNetwork, score_another, score_networks
from askew.evaluation.selection import choose
from askew.evaluation.verdict import Verdict, judge_by_posterior, judge_transfers
from askew.methods import method_class
from askew.runs.execute import Progress
from askew.runs.tune import trials

EMBEDDED = (
    Candidate(name="coal-balanced", method="coal", training={"target_sampler": "balanced"}),
    # MCC compares the classes of a batch: 32 images would show each of 31 classes once.
    Candidate(name="mcc", method="mcc", images_per_class=2),
    Candidate(name="teacher", method="teacher"),
    Candidate(name="lda", method="lda"),
    Candidate(name="prototypes", method="prototypes"),
)
CANDIDATES: Mapping[str, tuple[Candidate, ...]] = {
    "embeddings": EMBEDDED,
    "images": EMBEDDED,
    "small-images": (
        Candidate(name="fixmatch", method="fixmatch"),
        Candidate(name="teacher", method="teacher"),
    ),
    # On tables, networks that are trained on equally frequent classes lose to logistic regression.
    "tables": (),
}
"""What is trained beside source-only, by kind of data."""
SOURCE_ON_TABLES = Candidate(name=SOURCE_ONLY.name, method="logistic")
GUIDED = Candidate(name="guided", method="guided")
"""Fine-tunes a backbone, or trains a small network, on soft labels."""
STUDENT = Candidate(name="student", method="lda")
"""Fits one linear layer on embeddings to soft labels."""
STUDENT_ON_TABLES = Candidate(name="student", method="shares")
"""Fits one linear layer on a table by itself: its parts assume different things."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What was trained, and which network is saved."""

    networks: tuple[Trained, ...]
    """Source-only first."""
    scored: tuple[ScoredNetwork, ...]
    verdicts: Mapping[str, Verdict]
    """On each network but the first, by its name."""
    saved: int
    """The network that is saved."""
    rejected: str = ""
    """The network that would have been saved, if its verdict had not been `hurt`."""
    requested: bool = False
    """Whether the user named the network that is saved."""
    alone: bool = False
    """Whether one method was trained, so that there are no others to compare it with."""


def auto(
    session: Session, inputs: Inputs, candidates: Sequence[Candidate] = ()
) -> Generator[Progress, None, Outcome]:
    """Adapt in five steps; other candidates than the usual ones may be given."""
    # 1. Embed the images with a frozen backbone (done while they were read), or take the rows.
    features = inputs.rows or inputs.pixels
    assert features is not None
    if inputs.kind == "tables" and not candidates:
        features = features.with_whole_source()  # closed forms hold rows out by cross-validation
    # 2. Train candidates that assume different things, source-only first.
    networks = yield from session.train([source_only(inputs)], features)
    features = inputs.with_labels(features)
    networks += yield from session.train(candidates or CANDIDATES[inputs.kind], features)
    teachers = len(networks)
    # 3. Average them, and smooth the soft labels over mutual nearest neighbours.
    soft = soft_labels(networks, inputs)
    # 4. Train one network on the soft labels: the only one that is saved.
    if inputs.kind == "tables" and teachers == 1:
        networks += yield from session.train([STUDENT_ON_TABLES], features)
    elif inputs.pixels is not None and teachers > 1:
        pixels = inputs.with_labels(inputs.pixels).with_soft_labels(soft)
        networks += yield from fine_tune(session, inputs, networks, pixels)
    elif teachers > 1:
        networks += yield from session.train([STUDENT], features.with_soft_labels(soft))
    # 5. Judge it without target labels; if it looks harmful, save source-only.
    students = len(networks) - teachers
    scored, verdicts = yield from judge(session, networks, inputs.target_shares, students=students)
    return choose_network(networks, scored, verdicts, students)


def fine_tune(
    session: Session, inputs: Inputs, teachers: Sequence[Trained], pixels: TrainingSet
) -> Generator[Progress, None, list[Trained]]:
    """Train on images and soft labels; then fit one linear layer on the features that were learnt.

    The layer learns from the new network and the others, which count as much all together.
    """
    guided = yield from session.train([GUIDED], pixels)
    if not guided or not inputs.fine_tune or guided[0].run.net.layers not in CENTRED:
        return guided
    features = yield from session.embed(guided[0], pixels.task)
    soft = soft_labels([*teachers, *guided], inputs, last=len(teachers) - 1)
    students = yield from session.train([STUDENT], features.with_soft_labels(soft))
    return [*guided, *(replace(one, below=guided[0]) for one in students)]


CENTRED = ("mlp", "bottleneck")
"""Layers of a fine-tuned backbone that a computed head can follow."""


def choose_network(
    networks: Sequence[Trained],
    scored: Sequence[ScoredNetwork],
    verdicts: Mapping[str, Verdict],
    students: int,
) -> Outcome:
    """Save the student unless it looks harmful; where it failed, the network with the best
    scores."""
    best = len(networks) - 1 if students else choose(scored)
    hurt = best > 0 and verdicts[networks[best].name].verdict == "hurt"
    return Outcome(
        networks=tuple(networks),
        scored=tuple(scored),
        verdicts=verdicts,
        saved=0 if hurt else best,
        rejected=networks[best].name if hurt else "",
    )


def source_only(inputs: Inputs) -> Candidate:
    """Give what is trained on the source alone: logistic regression on tables."""
    return SOURCE_ON_TABLES if inputs.kind == "tables" else SOURCE_ONLY


def soft_labels(networks: Sequence[Trained], inputs: Inputs, last: float = 1.0) -> Floats:
    """Average the adapted networks' calibrated predictions, smoothed over neighbours. (n_t, c)

    The last network counts `last` times as much as each of the others.
    """
    adapted = [one.outputs for one in networks[1:] or networks]
    weights = [1.0] * (len(adapted) - 1) + [last]
    soft = softmax(mean_outputs(adapted, weights).target_uniform)
    exact = soft if inputs.labels is None else inputs.labels.set_in(soft)
    if inputs.rows is None:
        return exact
    soft = smooth_over_neighbours(exact, np.asarray(inputs.rows.task.training_data.target.x))
    return soft if inputs.labels is None else inputs.labels.set_in(soft)


def judge(
    session: Session,
    networks: Sequence[Trained],
    target_shares: Floats | None,
    *,
    students: int = 0,
) -> Generator[Progress, None, tuple[list[ScoredNetwork], dict[str, Verdict]]]:
    """Score every network without target labels, and compare each with source-only.

    The last networks are `students` of the others' mean, so that they have no vote in it.
    """
    teachers = networks[: len(networks) - students]
    scored = score_networks([one.outputs for one in teachers], target_shares)
    scored += [score_another(scored, one.outputs) for one in networks[len(teachers) :]]
    verdicts, steps = {}, len(networks)
    yield Progress(key="choice", label="judging without labels", step=0, steps=steps, losses={})
    found = judge_transfers(scored, resamples=session.resamples)
    for i, (one, verdict) in enumerate(zip(networks[1:], found, strict=True), start=1):
        if has_posterior(one):
            verdict = _by_posterior(networks[0], one, verdict)
        verdicts[one.name] = verdict
        yield Progress(key="choice", label="judging without labels", step=i, steps=steps, losses={})
    return scored, verdicts


def has_posterior(network: Trained) -> bool:
    """Tell whether a network's posterior describes the target: of Gaussians that moved there.

    It is calibrated by cross-validation already.
    """
    return network.candidate.method == STUDENT_ON_TABLES.method


def _by_posterior(source: Trained, student: Trained, verdict: Verdict) -> Verdict:
    """Judge by the student's posterior where no other networks can vote."""
    posterior, _ = target_posterior(student.outputs)
    most = best_accuracy(student.outputs)
    answer, sentence = judge_by_posterior(posterior, source.predicted, student.predicted, most)
    return replace(verdict, verdict=answer, sentence=sentence, collapsed=False)


# --- methods that the user names ---


def one_method(
    session: Session, inputs: Inputs, candidates: Sequence[Candidate]
) -> Generator[Progress, None, Outcome]:
    """Train the one method that was asked for beside source-only, and save it in any case.

    Of several settings of its hyper-parameters, label-free scores choose one.
    """
    features = inputs.pixels or inputs.rows
    assert features is not None
    networks = yield from session.train([source_only(inputs)], features)
    networks += yield from session.train(candidates, inputs.with_labels(features))
    scored, verdicts = yield from judge(session, networks, inputs.target_shares)
    saved = 1 + choose(scored[1:]) if len(networks) > 1 else 0
    if candidates and not networks[1:]:
        raise UserError(
            f"{candidates[0].name} could not be trained: "
            f"{session.failures[candidates[0].name].rstrip('.')}.",
            "lower the rates, as by -t lr=0.001.",
        )
    return Outcome(
        networks=tuple(networks), scored=tuple(scored), verdicts=verdicts, saved=saved, alone=True
    )


def named_candidates(
    methods: Sequence[str], params: Mapping[str, Mapping[str, object]], search: int
) -> list[Candidate]:
    """Make candidates of methods by name, with hyper-parameters by id; several of one to search."""
    found = []
    for method in methods:
        name = method_class(method).id
        if name == SOURCE_ONLY.method:
            continue
        own = dict(params.get(name, {}))
        usual = next((c for c in EMBEDDED if c.method == name == c.name), None)
        room = usual.images_per_class if usual else 0
        found.append(Candidate(name=name, method=method, params=own, images_per_class=room))
        for trial in trials(method, {}, search, fixed=tuple(own)) if search > 1 else ():
            if trial.origin == "searched":
                label, params_of = f"{name} {trial.label}", {**own, **trial.params}
                found.append(Candidate(name=label, method=method, params=params_of))
    return found


def take(outcome: Outcome, name: str) -> Outcome:
    """Save the network that the user names instead."""
    names = [one.name for one in outcome.networks]
    if name not in names:
        raise unknown("method", name, names, "its report lists them.")
    return replace(outcome, saved=names.index(name), rejected="", requested=True)
