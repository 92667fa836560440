"""Label-free scores: each maps one network's probabilities to a number, and higher is better.

No score sees a target label. docs/trust.md tells how far each can be trusted under label shift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.evaluation.calibration import at_temperature, calibrate, temperature
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, as_labels, floor_prior, softmax
from askew.evaluation.priors import consensus_prior

SND_ROWS = 1500
"""Most target images that SND compares: its cost grows with their square."""
TINY = 1e-12


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoreInputs:
    """One network's probabilities, raw and calibrated to a target prior, from which scores are
    computed."""

    source_val: Floats
    """Softmax of the held-out source. (n_v, c)"""
    source_val_y: Labels
    """(n_v,)"""
    target: Floats
    """Softmax of the target. (n_t, c)"""
    posterior: Floats
    """Calibrated posterior of the target under the target prior. (n_t, c)"""
    ensemble: Labels
    """The class that the ensemble predicts for each target image. (n_t,)"""
    prior: Floats
    """The target prior. (c,)"""

    @classmethod
    def of(
        cls, outputs: DomainOutputs, prior: Floats, ensemble: Labels | None = None
    ) -> ScoreInputs:
        """Compute the inputs; without an ensemble, the network is compared with itself."""
        calibration = calibrate(outputs)
        return cls(
            source_val=softmax(outputs.source_val),
            source_val_y=outputs.source_val_y,
            target=softmax(outputs.target),
            posterior=calibration.posterior(outputs.target, prior),
            ensemble=outputs.target.argmax(axis=1) if ensemble is None else ensemble,
            prior=prior,
        )

    def rows(self, val: Labels, target: Labels) -> ScoreInputs:
        """Select some of the held-out images and some of the target images."""
        return ScoreInputs(
            source_val=self.source_val[val],
            source_val_y=self.source_val_y[val],
            target=self.target[target],
            posterior=self.posterior[target],
            ensemble=self.ensemble[target],
            prior=self.prior,
        )

    @property
    def predicted(self) -> Labels:
        """The most probable class of each target image. (n_t,)"""
        predicted: Labels = self.target.argmax(axis=1)
        return predicted

    @property
    def correct(self) -> Floats:
        """1 where a held-out image was recognised. (n_v,)"""
        correct: Floats = (self.source_val.argmax(axis=1) == self.source_val_y).astype(np.float64)
        return correct


def class_weights(y: Labels) -> Floats:
    """Weight images so that all classes that occur count the same; they sum to one. (n,) → (n,)"""
    sizes = np.bincount(y)
    return 1 / (sizes[y] * np.count_nonzero(sizes))


# --- the scores ---


def source_accuracy(s: ScoreInputs) -> float:
    """mean over classes of the held-out source's accuracy"""
    return float(class_weights(s.source_val_y) @ s.correct)


def prior_information(s: ScoreInputs) -> float:
    """−KL(P̄ ‖ prior) − mean H(P_i)"""
    mean = s.posterior.mean(axis=0)
    entropy = -(s.posterior * np.log(np.maximum(s.posterior, TINY))).sum(axis=1).mean()
    return float(-entropy - mean @ np.log(np.maximum(mean, TINY) / floor_prior(s.prior)))


def neighbourhood_density(s: ScoreInputs) -> float:
    """mean entropy of softmax_j(cos(p_i, p_j)/0.05), j ≠ i"""
    p = _take_evenly(s.target, SND_ROWS)
    return float(neighbourhood_densities(p, np.arange(len(p))[None])[0])


def neighbourhood_densities(p: Floats, subsets: Labels) -> Floats:
    """Compute the density of several subsets of the images, each without repeats. (n, c), (r, m) →
    (r,)

    With e_ij = exp(cos(p_i, p_j)/0.05), all of which are between 1 and exp(20), and Z_i = Σ_j e_ij,
    image i has the entropy log Z_i − Σ_j e_ij log e_ij/Z_i. Sums over a subset are products with a
    matrix that marks it, so that similarities and exponentials are computed once for all of them.
    """
    r, m = subsets.shape
    if m < 2:
        return np.zeros(r)
    rows, place = np.unique(subsets, return_inverse=True)
    inside = np.zeros((r, len(rows)))
    np.put_along_axis(inside, place.reshape(r, m), 1, axis=1)
    unit = p[rows] / np.linalg.norm(p[rows], axis=1, keepdims=True)
    near = unit @ unit.T / 0.05
    e = np.exp(near)
    np.fill_diagonal(e, 0)
    z = inside @ e
    density: Floats = (inside * (np.log(z) - inside @ (e * near) / z)).sum(axis=1) / m
    return density


def class_correlation(s: ScoreInputs) -> float:
    """cosine of PᵀP and the identity"""
    square = s.target.T @ s.target
    return float(np.trace(square) / (np.linalg.norm(square) * np.sqrt(len(square))))


def average_thresholded_confidence(s: ScoreInputs) -> float:
    """share of the target above a confidence threshold

    On the held-out source, as many images are above the threshold as are predicted correctly.
    """
    ordered = np.sort(s.source_val.max(axis=1))[::-1]
    threshold = ordered[max(0, int(s.correct.sum()) - 1)]
    return float((s.target.max(axis=1) >= threshold).mean())


def confidence_by_class(s: ScoreInputs) -> float:
    """mean over k of Σ_i 1[ŷ_i = k]·P_ik / Σ_i P_ik"""
    predicted = np.eye(len(s.prior))[s.predicted]
    mass = s.posterior.sum(axis=0)
    present = mass > 0.5  # half an expected image or less is no class to measure recall on
    return float(((predicted * s.posterior).sum(axis=0)[present] / mass[present]).mean())


def ensemble_agreement(s: ScoreInputs) -> float:
    """share of target images for which the ensemble's class is predicted"""
    return float((s.predicted == s.ensemble).mean())


def _take_evenly(rows: Floats, most: int) -> Floats:
    """At most so many rows, evenly spaced, so that a score is the same every time."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


# --- the table of scores ---


@dataclass(frozen=True)
class Score:
    """One label-free score."""

    title: str
    meaning: str
    """What a high value means."""
    citation: str
    value: Callable[[ScoreInputs], float]


SCORES: dict[str, Score] = {
    "source": Score(
        "source accuracy",
        "held-out source images are recognised, class by class; nothing about the target",
        "",
        source_accuracy,
    ),
    "prior-information": Score(
        "prior-aware information",
        "predictions are confident, and classes as frequent as the estimated target prior",
        "after Shi and Sha 2012",
        prior_information,
    ),
    "snd": Score(
        "SND",
        "target images have many neighbours with the same prediction",
        "Saito et al. 2021",
        neighbourhood_density,
    ),
    "corr-c": Score(
        "Corr-C",
        "no classes are confused, and all are equally frequent",
        "Tu et al. 2023",
        class_correlation,
    ),
    "atc": Score(
        "ATC",
        "as many target images are as confident as correct source images",
        "Garg et al. 2022",
        average_thresholded_confidence,
    ),
    "expected": Score(
        "confidence by class",
        "confident, as a mean over classes under the estimated prior; not an accuracy",
        "",
        confidence_by_class,
    ),
    "ensemble": Score(
        "ensemble",
        "the mean of all compared networks predicts the same class",
        "EnsV, Hu et al. 2024",
        ensemble_agreement,
    ),
}


# --- networks with their scores ---


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoredNetwork:
    """One network with its label-free scores."""

    outputs: DomainOutputs
    inputs: ScoreInputs
    scores: Mapping[str, float]
    """By the names of SCORES."""
    temperature: float = 1.0
    """What the network's logits were divided by."""
    compared: bool = True
    """Whether the network is part of the ensemble that `ensemble` compares with."""


def score_networks(
    networks: Sequence[DomainOutputs], prior: Floats | None = None
) -> list[ScoredNetwork]:
    """Calibrate networks on the held-out source and score them on the same target images.

    All are scored under one target prior: the given one, or the median of their estimates.
    """
    sizes = [len(outputs.target) for outputs in networks]
    if len(set(sizes)) > 1:
        raise ValueError(f"the networks have different target images: {', '.join(map(str, sizes))}")
    # A network with a soft head, such as COAL's, would have no vote against confident ones.
    temperatures = [temperature(outputs) for outputs in networks]
    calibrated = [
        at_temperature(outputs, t) for outputs, t in zip(networks, temperatures, strict=True)
    ]
    scored = score_calibrated(calibrated, prior)
    return [
        replace(network, temperature=t) for network, t in zip(scored, temperatures, strict=True)
    ]


def score_calibrated(
    networks: Sequence[DomainOutputs], prior: Floats | None = None, ensemble: Labels | None = None
) -> list[ScoredNetwork]:
    """Score networks that are calibrated already.

    `ensemble` has the class of each target image, (n,). By default it is that of the networks'
    mean probabilities.
    """
    prior = consensus_prior(networks) if prior is None else prior
    if ensemble is None:
        ensemble = as_labels(
            np.mean([softmax(outputs.target) for outputs in networks], axis=0).argmax(axis=1)
        )
    return [
        _score_network(outputs, ScoreInputs.of(outputs, prior, ensemble)) for outputs in networks
    ]


def score_another(networks: Sequence[ScoredNetwork], outputs: DomainOutputs) -> ScoredNetwork:
    """Score one more network under the same prior and against the same ensemble."""
    t, known = temperature(outputs), networks[0].inputs
    calibrated = at_temperature(outputs, t)
    scored = _score_network(calibrated, ScoreInputs.of(calibrated, known.prior, known.ensemble))
    return replace(scored, temperature=t, compared=False)


def _score_network(outputs: DomainOutputs, inputs: ScoreInputs) -> ScoredNetwork:
    return ScoredNetwork(
        outputs=outputs,
        inputs=inputs,
        scores={name: score.value(inputs) for name, score in SCORES.items()},
    )
