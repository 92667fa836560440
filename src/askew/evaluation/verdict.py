"""Did adaptation help? An adapted network against source-only, without a label: helped, unclear or
hurt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.expected_accuracy import Z_ONE_SIDED
from askew.evaluation.outputs import DomainOutputs, Floats, Labels
from askew.evaluation.priors import ESTIMATORS, LEVEL, target_prior
from askew.evaluation.scores import (
    SCORES,
    ScoredNetwork,
    ScoreInputs,
    neighbourhood_densities,
    score_networks,
)

Answer = Literal["helped", "unclear", "hurt"]
VOTERS = ("snd", "ensemble", "expected", "atc", "source")
"""Scores that tell whether a network became better. Not those of `choose`: Corr-C, which guards a
choice among many against a collapsed network, rises with every adaptation, good or bad."""
MARGIN, LEAD = 0.05, 3
"""What a verdict takes, set on development tasks: so large a share of the target by which agreement
differs, at the nearer end of its interval; or so many more scores that rose than fell."""
UNRELIABLE = 0.6
"""Confidence by class (`expected`) below which source-only itself is unreliable on the target, so
that to depart from it is no harm; set on development tasks too, where 0.5 to 0.65 make no
difference."""
ROWS = 500
"""Most target images in each half that an interval is made from."""
COLLAPSED = 0.5
"""What a collapse takes: total variation from every plausible prior beyond it, and an effective
number of predicted classes below this share of what it was."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One score before and after adaptation."""

    score: str
    before: float
    after: float
    low: float
    high: float
    """Ends of the 95 % interval of after − before."""

    @property
    def votes(self) -> Answer:
        return _vote(self, 0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"votes": self.votes}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What adaptation did, as far as this can be told without labels, and why."""

    verdict: Answer
    sentence: str
    evidence: tuple[Evidence, ...]
    """Of every one of the VOTERS."""
    far: float
    """Total variation between the adapted network's predicted distribution and the nearest
    plausible prior."""
    collapsed: bool
    """Whether that is too far to be true, and predictions became more concentrated than before."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": [e.as_dict() for e in self.evidence]}


def judge_transfer(
    source_only: DomainOutputs,
    adapted: DomainOutputs,
    others: Sequence[DomainOutputs] = (),
    *,
    resamples: int = 100,
    seed: int = 0,
) -> Verdict:
    """Compare two networks on the same images, beside others that were trained for them too."""
    networks = score_networks([source_only, adapted, *others])
    return next(judge_transfers(networks, resamples=resamples, seed=seed))


def judge_transfers(
    networks: Sequence[ScoredNetwork], *, resamples: int = 100, seed: int = 0
) -> Iterator[Verdict]:
    """A verdict on each network but the first, which is source-only.

    It rests on five scores, and on whether the adapted network collapsed, which those may praise.
    """
    source_only, *adapted = networks
    before = resample_scores(source_only.inputs, resamples, seed)
    plausible = plausible_priors(source_only.outputs)
    for network in adapted:
        differences = resample_scores(network.inputs, resamples, seed) - before
        evidence = gather_evidence(source_only, network, differences)
        far, collapsed = _collapse(source_only.outputs, network.outputs, plausible)
        answer = "hurt" if collapsed else judge(evidence, alone=len(adapted) == 1)
        sentence = _sentence(
            answer, evidence, sum(one.compared for one in networks), far, collapsed
        )
        yield Verdict(
            verdict=answer, sentence=sentence, evidence=evidence, far=far, collapsed=collapsed
        )


def judge_by_posterior(
    posterior: Floats, before: Labels, after: Labels, most: float = 1.0
) -> tuple[Answer, str]:
    """Compare predictions before and after adaptation by one posterior, and say so in a sentence.

    A posterior that promises more than `most` does not describe the target, so nothing is told.

    The expected gain is Σ_i (r_i,after − r_i,before)/n; it counts where it exceeds what chance in
    the images on which the two differ explains. A loss counts only if it is one as a mean over
    classes too: predictions for equal class shares trade frequent classes for rare ones.
    (n_t, c), (n_t,), (n_t,)
    """
    rows = np.arange(len(posterior))
    gained, lost = posterior[rows, after], posterior[rows, before]
    differ = after != before
    gain = float((gained - lost).sum())
    by_chance = Z_ONE_SIDED * float(np.sqrt((gained + lost)[differ].sum()))
    answer: Answer = "unclear"
    if gain > by_chance:
        answer = "helped"
    elif gain < -by_chance and _gain_by_class(posterior, before, after) < 0:
        answer = "hurt"
    if gained.mean() > most:
        return "unclear", (
            "Adaptation may have helped or hurt: the model promises to be right on "
            f"{100 * gained.mean():.0f} % of the target, but the source allows "
            f"{100 * most:.0f} % at most, so it does not describe the target well."
        )
    begin = {"helped": "helped", "hurt": "hurt", "unclear": "may have helped or hurt"}[answer]
    sentence = (
        f"Adaptation {begin}: it changes {100 * differ.mean():.0f} % of the predictions, and about "
        f"{100 * gained.mean():.0f} % are expected to be right, instead of "
        f"{100 * lost.mean():.0f} %."
    )
    return answer, sentence


def _gain_by_class(posterior: Floats, before: Labels, after: Labels) -> float:
    """Give the expected gain as a mean over classes: one that is rare counts as much as others."""
    rows, weight = np.arange(len(posterior)), 1 / np.maximum(posterior.sum(axis=0), 1.0)
    gained, lost = posterior[rows, after] * weight[after], posterior[rows, before] * weight[before]
    return float((gained - lost).sum())


def judge(evidence: Sequence[Evidence], *, alone: bool) -> Answer:
    """*Helped*: the adapted network agrees with the ensemble of all networks (EnsV, Hu et al. 2024)
    more often than source-only does, by an interval beyond MARGIN; or LEAD more scores rose than
    fell. *Hurt*: the same downwards, unless source-only is unreliable. All else is unclear. An
    ensemble of two follows the more confident one: there, agreement is a score like any other.
    """
    answer = "unclear" if alone else _vote(_evidence_of(evidence, "ensemble"), MARGIN)
    if answer == "unclear":
        votes = [e.votes for e in evidence]
        lead = votes.count("helped") - votes.count("hurt")
        if abs(lead) >= LEAD:
            answer = "helped" if lead > 0 else "hurt"
    return "unclear" if answer == "hurt" and _unreliable(evidence) else answer


def _unreliable(evidence: Sequence[Evidence]) -> bool:
    """Whether source-only's own posterior expects it to be wrong on much of the target."""
    return _evidence_of(evidence, "expected").before < UNRELIABLE


def _evidence_of(evidence: Sequence[Evidence], score: str) -> Evidence:
    return next(e for e in evidence if e.score == score)


def _vote(evidence: Evidence, margin: float) -> Answer:
    if evidence.low > margin:
        return "helped"
    return "hurt" if evidence.high < -margin else "unclear"


# --- evidence, with intervals ---


def gather_evidence(
    source_only: ScoredNetwork,
    adapted: ScoredNetwork,
    differences: Floats,
    names: Sequence[str] = VOTERS,
) -> tuple[Evidence, ...]:
    """Scores before and after, with an interval from resampled differences. (resamples, names)"""
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return tuple(
        Evidence(
            score=name,
            before=source_only.scores[name],
            after=adapted.scores[name],
            low=float(low[i]),
            high=float(high[i]),
        )
        for i, name in enumerate(names)
    )


def resample_scores(
    inputs: ScoreInputs, resamples: int, seed: int, names: Sequence[str] = VOTERS
) -> Floats:
    """Scores on resampled images, which are the same for every network with the same seed.
    (resamples, names)"""
    rows = list(
        _resamples(inputs.source_val_y, len(inputs.target), resamples, np.random.default_rng(seed))
    )
    samples = [inputs.rows(val, target) for val, target in rows]
    values = np.empty((resamples, len(names)))
    for j, name in enumerate(names):
        if (
            name == "snd"
        ):  # it compares images in pairs, which are mostly the same ones in every half
            values[:, j] = neighbourhood_densities(
                inputs.target, np.array([target for _, target in rows])
            )
        else:
            values[:, j] = [SCORES[name].value(sample) for sample in samples]
    return values


def _resamples(
    source_val_y: Labels, images: int, resamples: int, rng: np.random.Generator
) -> Iterator[tuple[Labels, Labels]]:
    """Rows of the held-out source and of the target, drawn again.

    Held-out images are drawn class by class with replacement; of the target's, random halves
    without it, whose standard deviation is that of the whole (Politis and Romano 1994), since an
    image drawn twice would be its own neighbour to SND.
    """
    classes = [np.flatnonzero(source_val_y == k) for k in np.unique(source_val_y)]
    rows = rng.permutation(images)[: 2 * ROWS]
    for _ in range(resamples):
        val = np.concatenate([own[rng.integers(len(own), size=len(own))] for own in classes])
        yield val, rng.permutation(rows)[: max(1, len(rows) // 2)]


# --- collapse ---


def plausible_priors(source_only: DomainOutputs) -> list[Floats]:
    """Label distributions that the target may have: source-only's predictions and estimates, and
    the source's own."""
    estimates = [target_prior(source_only, name) for name in ESTIMATORS]
    return [source_only.predicted_distribution, source_only.source_prior, *estimates]


def _collapse(
    source_only: DomainOutputs, adapted: DomainOutputs, plausible: Sequence[Floats]
) -> tuple[float, bool]:
    """How far the predicted distribution is from every plausible prior, and whether that is a
    collapse.

    An unreliable source-only makes all of these wrong, and a target may have one frequent class; so
    a network that predicts about as many classes as before did not collapse.
    """
    before, after = source_only.predicted_distribution, adapted.predicted_distribution
    far = float(min(np.abs(after - prior).sum() / 2 for prior in plausible))
    return far, far > COLLAPSED and _effective_classes(after) < COLLAPSED * _effective_classes(
        before
    )


def _effective_classes(shares: Floats) -> float:
    """How many classes of equal shares would have the same entropy: e^H."""
    some = shares[shares > 0]
    return float(np.exp(-(some * np.log(some)).sum()))


# --- words ---


def _sentence(
    answer: Answer, evidence: Sequence[Evidence], networks: int, far: float, collapsed: bool
) -> str:
    if collapsed:
        return (
            "Adaptation hurt: the network collapsed. Its predicted label distribution is "
            f"{far:.2f} (total variation) from every one that the target may plausibly have."
        )
    begin = {
        "helped": "seems to have helped",
        "hurt": "seems to have hurt",
        "unclear": "may have helped or hurt",
    }
    agreement = _evidence_of(evidence, "ensemble")
    others = [e for e in evidence if e is not agreement]
    better, worse = (
        [SCORES[e.score].title for e in others if e.votes == vote] for vote in ("helped", "hurt")
    )
    clauses = [
        f"Adaptation {begin[answer]}: {len(better)} of {len(others)} scores without target labels "
        f"improved{_in_brackets(better)}"
    ]
    if worse:
        clauses.append(f"{len(worse)} fell{_in_brackets(worse)}")
    # The adapted network is one of those averaged, so that it agrees with them is no evidence.
    if agreement.votes == "helped":
        clauses.append(
            f"without adaptation {100 - 100 * agreement.before:.0f} % of the predictions differ "
            f"from the average of {networks} networks"
        )
    elif agreement.votes == "hurt":
        clauses.append(
            f"{100 - 100 * agreement.after:.0f} % of its predictions differ from the average of "
            f"{networks} networks, without adaptation {100 - 100 * agreement.before:.0f} %"
        )
    if _unreliable(evidence):
        expected = _evidence_of(evidence, "expected").before
        clauses.append(
            "source-only itself is unreliable on the target: its confidence by class is "
            f"{100 * expected:.0f} %"
        )
    return f"{'; '.join(clauses)}."


def _in_brackets(titles: Sequence[str]) -> str:
    return f" ({', '.join(titles)})" if titles else ""
