"""Adapt to data of one's own: train a few methods, choose one without labels, and judge whether it
helped."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from askew.adaptation.candidates import FROZEN, Candidate, refits
from askew.adaptation.given import TargetLabels
from askew.adaptation.members import Trained, answer, ensemble_of, teach, train, train_guided
from askew.adaptation.setup import AdaptRequest, Setup, on_rows, set_up
from askew.core.errors import unknown
from askew.core.files import sweep
from askew.core.options import checked
from askew.evaluation.agreement import (
    ExpectedAccuracy,
    Unfamiliar,
    expected_accuracy,
    find_unfamiliar,
)
from askew.evaluation.calibration import temperature_for
from askew.evaluation.diagnosis import Diagnosis, diagnose
from askew.evaluation.logits import Floats, Labels, as_labels, decide, softmax
from askew.evaluation.metrics import Estimate
from askew.evaluation.validators import ScoredNetwork, choose, score_another, score_networks
from askew.evaluation.verdict import Verdict, judge_transfers
from askew.methods import method_class
from askew.runs.config import Training
from askew.runs.execute import Progress
from askew.runs.root import check_out
from askew.runs.store import RunFolder
from askew.training.run import Run

Expect = Callable[[int, int], None]
"""What hears how many trainings of a kind begin, and how many of another kind come later:
`Journal.expect`."""


@dataclass(frozen=True, eq=False)
class Adaptation:
    """All results."""

    request: AdaptRequest
    setup: Setup
    trained: tuple[Trained, ...]
    failed: Mapping[str, str]
    """Candidates that could not be trained, and why."""
    scores: tuple[Mapping[str, float], ...]
    """Label-free scores of each."""
    verdicts: Mapping[str, Verdict]
    """Of each candidate against source-only."""
    chosen: int
    """Whose network is saved."""
    rejected: str
    """The candidate that the scores preferred, if its verdict was against it; empty otherwise."""
    diagnosis: Diagnosis
    probabilities: Floats
    """Of the target's images, calibrated, under a uniform class prior or under the one that is
    known. (n_t, c)"""
    expected: ExpectedAccuracy | None
    """What share of the target is right, if several networks can tell."""
    temperature: float
    """What calibrated the chosen network: on the held-out source, or by what share of the target is
    right."""
    bias: Floats
    """What its calibrated logits lack for the target to have its known shares; zero without them.
    (c,)"""
    unfamiliar: Unfamiliar
    """Target images that may be of no known class."""
    seconds: float

    @property
    def winner(self) -> Trained:
        return self.trained[self.chosen]

    @property
    def verdict(self) -> Verdict | None:
        """On the saved network; None if that is source-only."""
        return self.verdicts.get(self.winner.candidate.name)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.setup.task.training_data.classes

    @property
    def predicted(self) -> Labels:
        return as_labels(self.probabilities.argmax(axis=1))

    @property
    def sentence(self) -> str:
        """Whether it helped, and which network was saved if that is not obvious."""
        return f"{self._judgement}{self._by_labels}"

    @property
    def how_chosen(self) -> str:
        """Who or what decided which network was saved."""
        if self.request.take or self.request.method != "auto":
            return "as requested"
        return (
            "chosen without target labels"
            if self.setup.labels is None
            else "chosen with labels of the target"
        )

    @property
    def on_labels(self) -> Mapping[str, Estimate]:
        """The accuracy of each candidate on the labels that the user has, but for those trained
        with them."""
        labels = self.setup.labels
        own = [t for t in self.trained if not t.candidate.taught]
        return (
            {} if labels is None else {t.candidate.name: labels.accuracy(t.predicted) for t in own}
        )

    @property
    def _by_labels(self) -> str:
        """What the user's labels say, as a sentence; empty without labels."""
        labels = self.setup.labels
        if labels is None:
            return ""
        name, n = self.winner.candidate.name, len(labels.y)
        if self.winner.candidate.taught:
            return (
                f" {name} was trained with {n} labels of the target, which cannot tell how good "
                "it is."
            )
        accuracy = (
            f" On {n} labels of the target, {name} is right on "
            f"{labels.accuracy(self.winner.predicted)} %"
        )
        if not self.chosen:
            return f"{accuracy}, as a mean over classes."
        gain = labels.gain(self.trained[0].predicted, self.winner.predicted)
        return f"{accuracy}, as a mean over classes; a difference of {gain} points to source-only."

    @property
    def _judgement(self) -> str:
        if self.request.take:
            verdict = "" if self.verdict is None else f" {self.verdict.sentence}"
            return (
                f"The network of {self.winner.candidate.name} was saved because it was asked "
                f"for.{verdict}"
            )
        if self.verdict is not None and self.verdict.verdict == "hurt":
            return (
                f"{self.verdict.sentence} The network of {self.winner.candidate.name} was saved "
                "because it was "
                "asked for; `--method source` gives the one without adaptation."
            )
        if self.verdict is not None:
            return self.verdict.sentence
        if self.rejected:
            return (
                f"The network without adaptation was saved: {self.rejected} had the best scores, "
                "but looks harmful "
                f"when compared with it. {self.verdicts[self.rejected].sentence}"
            )
        if len(self.trained) > 1:
            return "No method looks better than the network without adaptation, which was saved."
        return "The network was trained on the source alone: there is nothing to compare it with."


def adapt(
    request: AdaptRequest,
    out: Path,
    device: torch.device,
    expect: Expect = lambda trainings, later: None,
) -> Generator[Progress, None, Adaptation]:
    """Everything but the files at the end, which `write_artifacts` writes."""
    began = time.monotonic()
    check_out(out)
    sweep(out)
    request.candidates("embeddings")  # what is wrong in the request is an error before any work
    checked(Training, dict(request.training), "training")
    setup = yield from set_up(request, out, device)
    setup, rows, trained, failed = yield from _train_all(setup, request, out, device, expect)
    networks = score_networks([t.outputs for t in trained], setup.prior)
    if request.method == "auto":
        more, failures = yield from ensemble_of(trained, networks, rows, request, out, device)
        networks += [score_another(networks, t.outputs) for t in more]
        trained, failed = trained + more, failed | failures
    if request.train_labels and setup.labels is not None:
        winner = trained[prefer(replace(request, take=""), setup.labels, trained, networks)]
        expect(len(winner.members or (winner,)), 0)
        more, failures = yield from teach(winner, setup.labels, setup, request, out, device)
        networks += [score_another(networks, t.outputs) for t in more]
        trained, failed = trained + more, failed | failures
    verdicts = yield from _verdicts(trained, networks)
    preferred = prefer(request, setup.labels, trained, networks)
    chosen = 0 if _harmful(request, setup, trained, preferred, verdicts) else preferred
    outputs = networks[chosen].outputs
    single = [
        network.outputs for t, network in zip(trained, networks, strict=True) if not t.members
    ]
    others = [one for one in single[1:] if one is not outputs]
    expected = _expected(request, trained, networks, chosen)
    softer = 1.0 if expected is None else temperature_for(outputs.target_uniform, expected.overall)
    logits, bias = decide(outputs.target_uniform / softer, setup.prior)
    return Adaptation(
        request,
        setup,
        tuple(trained),
        failed,
        tuple(network.scores for network in networks),
        verdicts,
        chosen,
        "" if chosen == preferred else trained[preferred].candidate.name,
        diagnose(networks[0].outputs, outputs if chosen else None, others),
        softmax(logits),
        expected,
        networks[chosen].temperature * softer,
        bias,
        find_unfamiliar(single),
        time.monotonic() - began,
    )


def _expected(
    request: AdaptRequest,
    trained: Sequence[Trained],
    networks: Sequence[ScoredNetwork],
    chosen: int,
) -> ExpectedAccuracy | None:
    """By the methods that `auto` compares; settings of one method would agree whatever they are
    worth."""
    if not chosen or request.method != "auto":
        return None
    alike = [
        network.outputs
        for t, network in zip(trained[1:], networks[1:], strict=True)
        if not t.members
        and not t.candidate.is_refit
        and t.candidate.taught == trained[chosen].candidate.taught
    ]
    return expected_accuracy(
        alike, as_labels(networks[chosen].outputs.target_uniform.argmax(axis=1))
    )


def _train_all(
    setup: Setup, request: AdaptRequest, out: Path, device: torch.device, expect: Expect
) -> Generator[Progress, None, tuple[Setup, Setup | None, list[Trained], dict[str, str]]]:
    """The candidates, and why others failed. Where a backbone is fine-tuned, networks on its
    embeddings come first: the setup is returned with their answers, and beside it the one with
    rows, which LDA can be fitted to."""
    joined = request.method == "auto" and not request.quick
    rows, before, failed = None, list[Trained](), dict[str, str]()
    if joined or (request.method != "auto" and method_class(request.method).takes_answers):
        rows = yield from on_rows(request, setup, device)
    if rows is not None and rows is not setup:
        expect(_missing(FROZEN, rows, request, out) + 1, len(request.candidates("guided pictures")))
        before, failed, answers = yield from answer(rows, request, out, device)
        setup = setup.guided(answers)
    candidates, refit = (
        setup.candidates(request),
        int(joined and rows is not None and refits(rows.task)),
    )
    first, later = (
        [one for one in candidates if bool(one.guided_by) == guided] for guided in (False, True)
    )
    expect(_missing(first, setup, request, out) + refit + len(later) * (1 + refit), 0)
    trained, failures = yield from train(setup, request, first, out, device)
    if not joined:  # one method was asked for, and others only answered for it
        return setup, None, trained, failures
    if rows is not None and later:
        failed |= failures
        more, failures = yield from train_guided(
            later, trained, before[1:], setup, rows, request, out, device
        )
        trained += more
    return setup, rows, trained + before[1:], failed | failures


def _missing(
    candidates: Sequence[Candidate], setup: Setup, request: AdaptRequest, out: Path
) -> int:
    """How many trainings the candidates still take, with the pre-trainings that they share."""
    keys = set()
    for candidate in candidates:
        run: Run | None = candidate.run(setup.task, setup.network, setup.training, request.seed)
        while run is not None and not RunFolder(out / "runs" / run.key).done:
            keys.add(run.key)
            run = run.before
    return len(keys)


def _verdicts(
    trained: Sequence[Trained], networks: Sequence[ScoredNetwork]
) -> Generator[Progress, None, dict[str, Verdict]]:
    """On each candidate but source-only."""
    verdicts, steps = {}, len(trained) + 1
    yield Progress(key="choice", label="choosing without labels", step=0, steps=steps, losses={})
    for i, (t, verdict) in enumerate(
        zip(trained[1:], judge_transfers(networks), strict=True), start=1
    ):
        verdicts[t.candidate.name] = verdict
        yield Progress(
            key="choice", label="choosing without labels", step=i, steps=steps, losses={}
        )
    yield Progress(
        key="choice",
        label="estimating the label distribution",
        step=steps - 1,
        steps=steps,
        losses={},
    )
    return verdicts


def prefer(
    request: AdaptRequest,
    labels: TargetLabels | None,
    trained: Sequence[Trained],
    networks: Sequence[ScoredNetwork],
) -> int:
    """The network that was asked for, or the one that was trained with labels, or the one chosen
    among all."""
    if request.take:
        names = [t.candidate.name for t in trained]
        if request.take not in names:
            raise unknown("method", request.take, names, "its report lists them.")
        return names.index(request.take)
    if trained[-1].candidate.taught:
        return len(trained) - 1
    # A method that was asked for is taken in any case: what is chosen are its hyper-parameters.
    first = 1 if request.method != "auto" and len(trained) > 1 else 0
    preferred = len(trained) - 1 if trained[-1].members else choose(networks[first:])
    if labels is not None:
        preferred = labels.choose([t.predicted for t in trained[first:]], preferred)
    return first + preferred


def _harmful(
    request: AdaptRequest,
    setup: Setup,
    trained: Sequence[Trained],
    preferred: int,
    verdicts: Mapping[str, Verdict],
) -> bool:
    """Whether a choice of ours looks harmful, and no labels say otherwise."""
    if not preferred or request.take or request.method != "auto":
        return False
    one = trained[preferred]
    labels = None if one.candidate.taught else setup.labels
    if labels is not None and labels.better(trained[0].predicted, one.predicted):
        return False
    return verdicts[one.candidate.name].verdict == "hurt"
