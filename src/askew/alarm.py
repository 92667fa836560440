"""Did adaptation help? The adapted network against source-only, without a label: helped, unclear or hurt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from askew.mixtures import ESTIMATORS, LEVEL, consensus_mix, says_of, target_mix_of
from askew.said import Labels, Said
from askew.validators import SCORES, Reading

Answer = Literal["helped", "unclear", "hurt"]
CONFIDENCE = ("atc", "atc-class", "expected", "prior-information")
"""Scores of how sure the network is, calibrated or held against what the source's images deserve."""
VOTERS = ("snd", *CONFIDENCE, "source")
"""Scores that are asked. The usual entropy, information, BNM and Corr-C are not: on the development tasks they praise
what says all classes equally often, which under label shift is what hurts."""
ROWS = 500
"""Most target images in each half that an interval is made from."""
FAR, COLLAPSED = 0.25, 0.5
"""Total variation from every plausible mix at which the classes that are said are suspect, and are a collapse."""


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
        if self.low > 0:
            return "helped"
        return "hurt" if self.high < 0 else "unclear"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"votes": self.votes}


@dataclass(frozen=True)
class Verdict:
    """What adaptation did, as far as this can be told without labels, and why."""

    verdict: Answer
    sentence: str
    evidence: tuple[Evidence, ...]
    far: float
    """Total variation between the classes that the adapted network says and the nearest plausible mix."""
    collapsed: bool
    """Whether that is too far to be true."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"evidence": [e.as_dict() for e in self.evidence]}


def alarm(source_only: Said, adapted: Said, *, resamples: int = 100, seed: int = 0) -> Verdict:
    """Compare two networks that speak of the same images.

    Intervals say what other images would have changed; that a score may be wrong altogether only shows where scores
    disagree. So *hurt* takes two signs or a plain one: neighbours agree less (SND) while the classes that are said left
    every plausible mix; or three of four scores of confidence fell; or it collapsed. *Helped* takes two more of these
    scores that rose than fell, and neither SND nor the source's accuracy fallen. All else is unclear.
    """
    found = evidence(source_only, adapted, resamples, seed)
    far = _distance_to_plausible(source_only, adapted)
    votes = {e.score: e.votes for e in found}
    rose, fell = (sum(votes[name] == answer for name in CONFIDENCE) for answer in ("helped", "hurt"))
    verdict: Answer = "unclear"
    if far > COLLAPSED or fell >= 3 or (votes["snd"] == "hurt" and far > FAR):
        verdict = "hurt"
    elif rose >= fell + 2 and "hurt" not in (votes["snd"], votes["source"]):
        verdict = "helped"
    return Verdict(verdict, _sentence(verdict, votes, far), found, far, far > COLLAPSED)


def _distance_to_plausible(source_only: Said, adapted: Said) -> float:
    """Plausible are the mixes that source-only estimates, what it says without any estimator, and the source's own."""
    _, said = says_of(adapted)
    _, before = says_of(source_only)
    plausible = [before, adapted.source_mix, *(target_mix_of(source_only, name) for name in ESTIMATORS)]
    return float(min(np.abs(said - mix).sum() / 2 for mix in plausible))


def _sentence(verdict: Answer, votes: dict[str, Answer], far: float) -> str:
    if far > COLLAPSED:
        return (
            f"Adaptation hurt: the network collapsed. The classes that it says are {far:.2f} (total variation) from "
            "every mix that the target may plausibly have."
        )
    begun = {"helped": "seems to have helped", "hurt": "seems to have hurt", "unclear": "may have helped or hurt"}
    told = [
        f"{what} by {', '.join(names)}"
        for answer, what in (("helped", "better"), ("hurt", "worse"))
        if (names := [SCORES[name].title for name, vote in votes.items() if vote == answer])
    ]
    if far > FAR:
        told.append(f"the classes that it says are {far:.2f} (total variation) from every plausible mix")
    return f"Adaptation {begun[verdict]}: {'; '.join(told) or 'no score moved'}."


def evidence(source_only: Said, adapted: Said, resamples: int, seed: int) -> tuple[Evidence, ...]:
    """Every voter's difference, with an interval over images drawn again, the same for both networks.

    Held-out images are drawn class by class with replacement; of the target's, random halves without it, whose spread
    is that of the whole (Politis and Romano 1994), since an image drawn twice would be its own neighbour to SND.
    """
    mix = consensus_mix([source_only, adapted])
    both = [Reading.of(said, mix) for said in (source_only, adapted)]
    rng = np.random.default_rng(seed)
    classes = [np.flatnonzero(source_only.source_val_y == k) for k in np.unique(source_only.source_val_y)]
    rows = rng.permutation(len(source_only.target))[: 2 * ROWS]

    def differences(val: Labels, target: Labels) -> list[float]:
        before, after = (reading.rows(val, target) for reading in both)
        return [SCORES[name].value(after) - SCORES[name].value(before) for name in VOTERS]

    drawn = [
        differences(
            np.concatenate([own[rng.integers(len(own), size=len(own))] for own in classes]),
            rng.permutation(rows)[: max(1, len(rows) // 2)],
        )
        for _ in range(resamples)
    ]
    ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    values = [[SCORES[name].value(reading) for name in VOTERS] for reading in both]
    return tuple(
        Evidence(name, before, after, float(low), float(high))
        for name, before, after, low, high in zip(VOTERS, *values, *ends, strict=True)
    )
