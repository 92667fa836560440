"""Networks compared by label-free scores, and a choice among them.

Every score is computed from a network's outputs on the target and on held-out source images; none
has seen a target label. docs/trust.md judges how far each of them can be trusted under label shift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.evaluation import scores
from askew.evaluation.calibration import at_temperature, temperature
from askew.evaluation.logits import Floats, Labels, as_labels, softmax
from askew.evaluation.outputs import DomainOutputs
from askew.evaluation.prior_estimators import consensus_prior
from askew.evaluation.scores import ScoreInputs


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
        scores.source_accuracy,
    ),
    "entropy": Score(
        "entropy",
        "predictions on the target are confident, rightly or not",
        "Morerio et al. 2018",
        scores.negative_entropy,
    ),
    "information": Score(
        "information",
        "predictions are confident, and all classes equally frequent: wrong under label shift",
        "Shi and Sha 2012",
        scores.information,
    ),
    "prior-information": Score(
        "prior-aware information",
        "predictions are confident, and classes as frequent as the estimated target prior",
        "after Shi and Sha 2012",
        scores.prior_information,
    ),
    "bnm": Score(
        "BNM",
        "predictions are confident and of many classes",
        "Cui et al. 2020",
        scores.nuclear_norm,
    ),
    "snd": Score(
        "SND",
        "target images have many neighbours with the same prediction",
        "Saito et al. 2021",
        scores.neighbourhood_density,
    ),
    "corr-c": Score(
        "Corr-C",
        "no classes are confused, and all are equally frequent",
        "Tu et al. 2023",
        scores.class_correlation,
    ),
    "dev": Score(
        "DEV",
        "source images that look like the target's are recognised",
        "You et al. 2019",
        scores.deep_embedded,
    ),
    "atc": Score(
        "ATC",
        "as many target images are as confident as correct source images",
        "Garg et al. 2022",
        scores.thresholded,
    ),
    "atc-class": Score(
        "ATC by class",
        "the same for the per-class mean, with the estimated prior",
        "after Garg et al. 2022",
        scores.thresholded_by_class,
    ),
    "expected": Score(
        "confidence by class",
        "confident, as a mean over classes under the estimated prior; not an accuracy",
        "",
        scores.expected_by_class,
    ),
    "transport": Score(
        "transport",
        "posteriors need little change to have the estimated prior; a per-class mean",
        "after Lu et al. 2023",
        scores.transported_by_class,
    ),
    "ensemble": Score(
        "ensemble",
        "the mean of all compared networks predicts the same class",
        "EnsV, Hu et al. 2024",
        scores.ensemble_agreement,
    ),
    "ensemble-class": Score(
        "ensemble by class",
        "the same, as a mean over the ensemble's classes",
        "after Hu et al. 2024",
        scores.ensemble_agreement_by_class,
    ),
}


@dataclass(frozen=True, eq=False)
class ScoredNetwork:
    """One of the networks that were compared on a target, with its scores."""

    outputs: DomainOutputs
    inputs: ScoreInputs
    scores: Mapping[str, float]
    """By the names of SCORES."""
    temperature: float = 1.0
    """What the network's logits were divided by."""
    compared: bool = True
    """Whether it is one of those whose mean the others are held against; one that came later is
    not."""


def score_networks(
    networks: Sequence[DomainOutputs], prior: Floats | None = None
) -> list[ScoredNetwork]:
    """Networks compared on the same target images, all calibrated on their held-out source and
    under one prior."""
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
    """The same as they are; the ensemble's classes are those of the mean of their probabilities,
    unless given. (n,)"""
    prior = consensus_prior(networks) if prior is None else prior
    if ensemble is None:
        ensemble = as_labels(
            np.mean([softmax(outputs.target) for outputs in networks], axis=0).argmax(axis=1)
        )
    return [_scored(outputs, ScoreInputs.of(outputs, prior, ensemble)) for outputs in networks]


def score_another(networks: Sequence[ScoredNetwork], outputs: DomainOutputs) -> ScoredNetwork:
    """One more network, under the prior and against the ensemble of those that were compared."""
    t, known = temperature(outputs), networks[0].inputs
    calibrated = at_temperature(outputs, t)
    scored = _scored(calibrated, ScoreInputs.of(calibrated, known.prior, known.ensemble))
    return replace(scored, temperature=t, compared=False)


def _scored(outputs: DomainOutputs, inputs: ScoreInputs) -> ScoredNetwork:
    return ScoredNetwork(
        outputs, inputs, {name: score.value(inputs) for name, score in SCORES.items()}
    )


CHOOSERS = ("source", "prior-information", "corr-c", "expected", "ensemble")
"""Scores whose ranks `choose` adds up; chosen on the development tasks alone."""


JOINS = 0.75
"""Share of the mean sum of ranks from which on a network is one of those whose mean is handed out;
on the development tasks 0.7 and 0.8 make no difference, and 1 costs half a point."""
MANY, JOINS_MANY = 6, 0.5
"""Of so many networks or more, that share suffices: ranks lie further apart, and those that err in
their own way would be left out (28 development tasks with six networks: 0.3 points more,
results/own-data). Of three, it means all."""


def rank_sums(networks: Sequence[ScoredNetwork]) -> Floats:
    """The sum of each network's ranks by scores that err in different ways; large is good. (n,)

    Prior-aware information and confidence by class rely on the estimated prior, and praise a
    network that predicts one class for everything where that estimate fails; Corr-C wants all
    classes, which is wrong under label shift, and notices just that. The ensemble looks at the
    other networks, and the source's accuracy at what was forgotten.
    """
    from scipy.stats import rankdata

    by_score = [
        rankdata(np.round([network.scores[name] for network in networks], 9)) for name in CHOOSERS
    ]
    ranks: Floats = np.sum(by_score, axis=0)
    return ranks


def choose(networks: Sequence[ScoredNetwork]) -> int:
    """The network to prefer, without a label: that of the best sum of ranks.

    Of equals, the first is taken, so put source-only first.
    """
    return int(np.argmax(rank_sums(networks)))


def choose_several(
    networks: Sequence[ScoredNetwork], weights: Sequence[float] | None = None
) -> list[int]:
    """The networks whose mean to hand out: source-only, the first, if it is preferred, or all
    adapted ones whose sum of ranks, times the network's weight, is at least JOINS of the mean sum
    (of many networks, JOINS_MANY). Several together are better than the one that scores prefer, and
    scores are good for telling which one is far worse than the others."""
    ranks = rank_sums(networks)
    weighted = ranks * (1 if weights is None else np.asarray(weights))
    least = (JOINS if len(networks) < MANY else JOINS_MANY) * ranks.mean()
    better = [i for i in range(1, len(networks)) if weighted[i] >= least]
    return better if choose(networks) else [0]
