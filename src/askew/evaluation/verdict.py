"""Did adaptation help? The adapted network against source-only, without a label: helped, unclear or hurt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.mixtures import ESTIMATORS, LEVEL, consensus_prior, predicted_distribution, target_prior_of
from askew.evaluation.outputs import DomainOutputs, Labels, softmax
from askew.evaluation.validators import SCORES, Reading, agreement

Answer = Literal["helped", "unclear", "hurt"]
VOTERS = ("snd", "ensemble", "expected", "atc", "source")
"""Scores that say whether a network became better. Not those of `choose`: Corr-C, which guards a choice among many
against a network that collapsed, rises with every adaptation, good or bad."""
MARGIN, LEAD = 0.05, 3
"""What a verdict takes, set on development tasks: so large a share of the target by which agreement differs, at the
nearer end of its interval; or so many more scores that rose than fell."""
LOST = 0.6
"""Expected accuracy below which source-only is lost on the target itself, so that to depart from it is no harm; set on
development tasks too, where 0.5 to 0.65 make no difference."""
ROWS = 500
"""Most target images in each half that an interval is made from."""
COLLAPSED = 0.5
"""Total variation from every plausible mix at which a network that says fewer classes than before has collapsed."""


@dataclass(frozen=True)
class Evidence:
    """What one score says of the difference that adaptation made."""

    score: str
    before: float
    after: float
    low: float
    high: float
    """Ends of the 95 % interval of after − before."""

    @property
    def votes(self) -> Answer:
        return _beyond(self, 0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"votes": self.votes}


@dataclass(frozen=True)
class Verdict:
    """What adaptation did, as far as this can be told without labels, and why."""

    verdict: Answer
    sentence: str
    evidence: tuple[Evidence, ...]
    """Of every one of the VOTERS."""
    far: float
    """Total variation between the classes that the adapted network says and the nearest plausible mix."""
    collapsed: bool
    """Whether that is too far to be true, and fewer classes are said than before."""

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
    """Compare two networks that speak of the same images, beside others that were trained for them too.

    It looks at five scores, and at whether the adapted network collapsed, which those may praise.
    """
    found = evidence(source_only, adapted, others, resamples, seed)
    far, collapsed = _collapse(source_only, adapted)
    verdict = "hurt" if collapsed else judged(found, alone=not others)
    return Verdict(verdict, _sentence(verdict, found, len(others) + 2, far, collapsed), found, far, collapsed)


def judged(found: Sequence[Evidence], *, alone: bool) -> Answer:
    """*Helped*: the adapted network says what all networks together say (EnsV, Hu et al. 2024) more often than
    source-only does, by an interval beyond MARGIN; or LEAD more scores rose than fell. *Hurt*: the same downwards,
    unless source-only is lost. All else is unclear. Two networks alone say together what the surer one does: there,
    agreement is a score like any other.
    """
    answer = "unclear" if alone else _beyond(_by(found, "ensemble"), MARGIN)
    if answer == "unclear":
        votes = [e.votes for e in found]
        lead = votes.count("helped") - votes.count("hurt")
        if abs(lead) >= LEAD:
            answer = "helped" if lead > 0 else "hurt"
    return "unclear" if answer == "hurt" and _lost(found) else answer


def _lost(found: Sequence[Evidence]) -> bool:
    """Whether source-only does not believe itself on the target."""
    return _by(found, "expected").before < LOST


def _by(found: Sequence[Evidence], score: str) -> Evidence:
    return next(e for e in found if e.score == score)


def _beyond(found: Evidence, margin: float) -> Answer:
    if found.low > margin:
        return "helped"
    return "hurt" if found.high < -margin else "unclear"


def _collapse(source_only: DomainOutputs, adapted: DomainOutputs) -> tuple[float, bool]:
    """How far the classes that are said are from every plausible mix, and whether that is a collapse.

    Plausible are the mixes that source-only estimates, what it says without any estimator, and the source's own. A
    source-only that is lost makes all of them wrong; so a network whose commonest class became rarer did not collapse.
    """
    _, said = predicted_distribution(adapted)
    _, before = predicted_distribution(source_only)
    plausible = [before, adapted.source_prior, *(target_prior_of(source_only, name) for name in ESTIMATORS)]
    far = float(min(np.abs(said - mix).sum() / 2 for mix in plausible))
    return far, bool(far > COLLAPSED and said.max() > before.max())


def _sentence(verdict: Answer, found: Sequence[Evidence], networks: int, far: float, collapsed: bool) -> str:
    if collapsed:
        return (
            f"Adaptation hurt: the network collapsed. The classes that it says are {far:.2f} (total variation) from "
            "every mix that the target may plausibly have."
        )
    begun = {"helped": "seems to have helped", "hurt": "seems to have hurt", "unclear": "may have helped or hurt"}
    e = _by(found, "ensemble")
    told = [
        f"Adaptation {begun[verdict]}: it says what {networks} networks together say on {100 * e.after:.0f} % of the "
        f"target, source-only on {100 * e.before:.0f} % (difference {100 * e.low:+.0f} to {100 * e.high:+.0f} points)"
    ]
    for answer, what in (("helped", "better"), ("hurt", "worse")):
        names = [SCORES[one.score].title for one in found if one is not e and one.votes == answer]
        if names:
            told.append(f"{what} by {', '.join(names)}")
    if _lost(found):
        told.append(
            f"source-only itself expects to be right on no more than {100 * _by(found, 'expected').before:.0f} %"
        )
    return f"{'; '.join(told)}."


def evidence(
    source_only: DomainOutputs, adapted: DomainOutputs, others: Sequence[DomainOutputs], resamples: int, seed: int
) -> tuple[Evidence, ...]:
    """The difference by every one of the VOTERS, with an interval over images drawn again, the same for both networks.

    Held-out images are drawn class by class with replacement; of the target's, random halves without it, whose spread
    is that of the whole (Politis and Romano 1994), since an image drawn twice would be its own neighbour to SND.
    """
    everyone = [source_only, adapted, *others]
    mix = consensus_prior(everyone)
    both = [Reading.of(said, mix) for said in everyone[:2]]
    targets = [softmax(said.target) for said in everyone]
    rng = np.random.default_rng(seed)
    classes = [np.flatnonzero(source_only.source_val_y == k) for k in np.unique(source_only.source_val_y)]
    rows = rng.permutation(len(source_only.target))[: 2 * ROWS]

    def scores(val: Labels, target: Labels) -> list[list[float]]:
        agree = agreement([p[target] for p in targets])
        read = [reading.rows(val, target) for reading in both]
        return [
            [SCORES[name].value(r) if name in SCORES else agreed for name in VOTERS]
            for r, agreed in zip(read, agree[:2], strict=True)
        ]

    values = scores(np.arange(len(source_only.source_val_y)), np.arange(len(source_only.target)))
    drawn = [
        np.diff(
            scores(
                np.concatenate([own[rng.integers(len(own), size=len(own))] for own in classes]),
                rng.permutation(rows)[: max(1, len(rows) // 2)],
            ),
            axis=0,
        )[0]
        for _ in range(resamples)
    ]
    ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return tuple(
        Evidence(name, before, after, float(low), float(high))
        for name, before, after, low, high in zip(VOTERS, *values, *ends, strict=True)
    )
