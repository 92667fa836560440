"""What is told of an adaptation: probabilities, expected accuracy, class shares, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from askew.adaptation.inputs import Inputs
from askew.adaptation.recipe import Outcome
from askew.adaptation.request import AdaptRequest
from askew.adaptation.session import Session, Trained
from askew.data.custom import CustomData
from askew.evaluation.calibration import impose_prior, temperature_for
from askew.evaluation.diagnosis import Diagnosis, diagnose
from askew.evaluation.expected_accuracy import ExpectedAccuracy, expected_accuracy
from askew.evaluation.outputs import Floats, Labels, as_labels, softmax
from askew.evaluation.unknown_classes import UnknownImages, find_unknown_images
from askew.evaluation.verdict import Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
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
    outputs = scored[saved].outputs
    candidates = [one.outputs for one in scored[1:] if one.compared]
    predicted = as_labels(outputs.target_uniform.argmax(axis=1))
    # Networks that assume different things are right about as often as two of them agree.
    expected = expected_accuracy(candidates, predicted) if saved and not outcome.alone else None
    softer = 1.0
    if expected is not None:
        softer = temperature_for(outputs.target_uniform, expected.overall)
    logits, bias = impose_prior(outputs.target_uniform / softer, inputs.target_shares)
    others = [one.outputs for one in scored[1:] if one is not scored[saved]]
    return Adaptation(
        inputs=inputs,
        networks=outcome.networks,
        failures=session.failures,
        scores=tuple(one.scores for one in scored),
        verdicts=outcome.verdicts,
        saved=saved,
        rejected=outcome.rejected,
        diagnosis=diagnose(
            scored[0].outputs, outputs if saved else None, others, resamples=session.resamples
        ),
        probabilities=softmax(logits),
        expected=expected,
        temperature=scored[saved].temperature * softer,
        bias=bias,
        unknown=find_unknown_images([one.outputs for one in scored]),
        requested=outcome.requested,
    )
