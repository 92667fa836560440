"""What is told of an adaptation: probabilities, expected accuracy, class shares, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from askew.adaptation.inputs import Inputs
from askew.adaptation.recipe import Outcome, has_posterior
from askew.adaptation.request import AdaptRequest
from askew.adaptation.session import Session, Trained
from askew.data.custom import CustomData
from askew.evaluation.calibration import impose_prior, temperature_for
from askew.evaluation.calibration import temperature as fitted_temperature
from askew.evaluation.diagnosis import Diagnosis, diagnose
from askew.evaluation.expected_accuracy import (
    ExpectedAccuracy,
    accuracy_by_posterior,
    at_most,
    best_accuracy,
    expected_accuracy,
    target_posterior,
)
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, as_labels, softmax
from askew.evaluation.priors import TargetShares
from askew.evaluation.unknown_classes import UnknownImages, find_unknown_images
from askew.evaluation.verdict import Verdict


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Adaptation:
    """Everything that an adaptation computed."""

    inputs: Inputs
    networks: tuple[Trained, ...]
    """Source-only first."""
    failures: Mapping[str, str]
    """Candidates that could not be trained, and why."""
    scores: tuple[Mapping[str, float], ...]
    """Label-free scores of each network."""
    verdicts: Mapping[str, Verdict]
    """On each network but source-only, by name."""
    saved: int
    """Which network is the final model."""
    rejected: str
    """The network that looked harmful, so that source-only was saved; empty otherwise."""
    diagnosis: Diagnosis
    probabilities: Floats
    """Of the target's images, calibrated, for equal or for the known class shares. (n_t, c)"""
    expected: ExpectedAccuracy | None
    """Which share of the target is expected to be right, if several networks can tell."""
    temperature: float
    """What the final model's logits are divided by."""
    bias: Floats
    """What its calibrated logits lack for the known class shares; zero without them. (c,)"""
    unknown: UnknownImages
    """Possible unknown-class images."""
    requested: bool
    """Whether the user named the network that is saved."""
    seconds: float = 0.0
    request: AdaptRequest | None = None
    """What was asked for; None for an estimator and a benchmark."""

    def __repr__(self) -> str:
        return f"<Adaptation: {self.final.name} of {len(self.networks)} networks>"

    @property
    def final(self) -> Trained:
        """The network that is saved."""
        return self.networks[self.saved]

    @property
    def data(self) -> CustomData:
        """The user's own data."""
        assert self.inputs.data is not None
        return self.inputs.data

    @property
    def verdict(self) -> Verdict | None:
        """On the saved network; None if that is source-only."""
        return self.verdicts.get(self.final.name)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.inputs.classes

    @property
    def predicted(self) -> Labels:
        """The class of each target image. (n_t,)"""
        return as_labels(self.probabilities.argmax(axis=1))

    @property
    def how_chosen(self) -> str:
        """Tell who or what decided which network was saved."""
        if self.requested:
            return "as requested"
        labels = self.inputs.labels
        if labels is None:
            return "without target labels"
        return f"trained with {len(labels.y)} labels of the target"

    @property
    def sentence(self) -> str:
        """Tell whether adaptation helped, and which network was saved if that is not obvious."""
        if self.verdict is not None and self.verdict.verdict == "hurt":
            return (
                f"{self.verdict.sentence} The network {self.final.name} was saved because it was "
                "requested; `--method source` gives the one without adaptation."
            )
        if self.verdict is not None:
            return self.verdict.sentence
        if self.rejected:
            return (
                "The network without adaptation was saved, because the adapted one looks "
                f"harmful. {self.verdicts[self.rejected].sentence}"
            )
        return "The network was trained on the source alone: there is nothing to compare it with."


def assess(session: Session, inputs: Inputs, outcome: Outcome) -> Adaptation:
    """Tell what users want to know of the saved network: probabilities, shares, accuracy."""
    saved, scored = outcome.saved, outcome.scored
    outputs, temperature = scored[saved].outputs, scored[saved].temperature
    if outcome.networks[saved].run.method.calibrated and not outcome.alone:
        outputs, temperature = outcome.networks[saved].outputs, 1.0
    expected, softer = None, 1.0
    if saved and has_posterior(outcome.networks[saved]):
        expected = _by_posterior(outcome)
    elif saved and not outcome.alone:
        expected = _by_agreement(outcome)
    if expected is not None and expected.before is None:
        softer = temperature_for(outputs.target_uniform, expected.overall)
    logits, bias = impose_prior(outputs.target_uniform / softer, inputs.target_shares)
    others = [one.outputs for one in scored[1:] if one is not scored[saved]]
    diagnosis = diagnose(
        scored[0].outputs, outputs if saved else None, others, resamples=session.resamples
    )
    if saved and has_posterior(outcome.networks[saved]):
        diagnosis = replace(diagnosis, target_prior=_moved_shares(diagnosis.target_prior, outputs))
    return Adaptation(
        inputs=inputs,
        networks=outcome.networks,
        failures=session.failures,
        scores=tuple(one.scores for one in scored),
        verdicts=outcome.verdicts,
        saved=saved,
        rejected=outcome.rejected,
        diagnosis=diagnosis,
        probabilities=softmax(logits),
        expected=expected,
        temperature=temperature * softer,
        bias=bias,
        unknown=_unknown_images(outcome),
        requested=outcome.requested,
    )


def _unknown_images(outcome: Outcome) -> UnknownImages:
    """Mark images on which networks disagree; on tables the two disagree where shares differ."""
    outputs = [one.outputs for one in outcome.scored]
    if any(has_posterior(one) for one in outcome.networks):
        return UnknownImages(np.zeros(len(outputs[0].target)), 1.0)
    return find_unknown_images(outputs)


def with_saved(found: Adaptation, number: int) -> Adaptation:
    """The same adaptation with another network as the final model, calibrated by itself."""
    if number == found.saved:
        return found
    network = found.networks[number]
    outputs = network.outputs
    temperature = 1.0 if network.run.method.calibrated else fitted_temperature(outputs)
    known = found.inputs.target_shares
    _, bias = impose_prior(outputs.target_uniform / temperature, known)
    return replace(found, saved=number, temperature=temperature, bias=bias)


def _by_agreement(outcome: Outcome) -> ExpectedAccuracy | None:
    """Networks that assume different things are right about as often as two of them agree."""
    candidates = [one.outputs for one in outcome.scored[1:] if one.compared]
    final = outcome.scored[outcome.saved].outputs
    return expected_accuracy(candidates, as_labels(final.target_uniform.argmax(axis=1)))


def _by_posterior(outcome: Outcome) -> ExpectedAccuracy:
    """The posterior of Gaussians that moved to the target tells how often it is right."""
    final = outcome.networks[outcome.saved]
    posterior, _ = target_posterior(final.outputs)
    expected = accuracy_by_posterior(posterior, final.predicted, outcome.networks[0].predicted)
    return at_most(expected, best_accuracy(final.outputs))


def _moved_shares(shown: TargetShares, final: DomainOutputs) -> TargetShares:
    """Show the shares of greatest likelihood, within intervals that hold the other estimates."""
    _, shares = target_posterior(final)
    low, high = np.minimum(shown.low, shares), np.maximum(shown.high, shares)
    return TargetShares(estimator="em", prior=shares, low=low, high=high, unsure=shown.unsure)
