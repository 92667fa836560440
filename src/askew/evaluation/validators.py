"""Label-free scores of a trained network, higher is better, and a choice among networks by them.

Each says something of what a network said of the target; none has seen a target label. Which of them deserve belief
under label shift, and how much, is judged in docs/trust.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.evaluation.mixtures import calibrate, consensus_prior, target_prior_of
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, softmax

SOFT_ROWS, MATCHED_ROWS, DENSITY_ROWS = 1500, 1000, 3000
"""Most target images that SND, transport and DEV look at: their cost grows faster than the images."""
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class Reading:
    """One network's words, as they are and calibrated, read under a target mix."""

    val: Floats
    """Softmax of the held-out source. (n_v, c)"""
    val_y: Labels
    target: Floats
    """Softmax of the target. (n_t, c)"""
    val_sure: Floats
    """Calibrated posterior of the held-out source, as if its classes were equally many. (n_v, c)"""
    even: Floats
    """The same of the target, by the same rule. (n_t, c)"""
    posterior: Floats
    """Calibrated posterior of the target under the mix. (n_t, c)"""
    mix: Floats
    """(c,)"""
    val_looks: Floats
    """What the domains are compared by. (n_v, d)"""
    target_looks: Floats
    """(n_t, d)"""

    @classmethod
    def of(cls, said: DomainOutputs, mix: Floats) -> Reading:
        fitted, level = calibrate(said), np.full(said.classes, 1 / said.classes)
        return cls(
            softmax(said.source_val),
            said.source_val_y,
            softmax(said.target),
            fitted.posterior(said.source_val, level),
            fitted.posterior(said.target, level),
            fitted.posterior(said.target, mix),
            mix,
            *said.looks,
        )

    def rows(self, val: Labels, target: Labels) -> Reading:
        """Of these images alone."""
        source = {name: getattr(self, name)[val] for name in ("val", "val_y", "val_sure", "val_looks")}
        other = {name: getattr(self, name)[target] for name in ("target", "even", "posterior", "target_looks")}
        return replace(self, **source, **other)

    @property
    def predicted(self) -> Labels:
        predicted: Labels = self.target.argmax(axis=1)
        return predicted

    @property
    def correct(self) -> Floats:
        """1 where a held-out image was recognised. (n_v,)"""
        correct: Floats = (self.val.argmax(axis=1) == self.val_y).astype(np.float64)
        return correct

    @property
    def val_weights(self) -> Floats:
        """Each held-out image's weight if classes were equally many; they sum to one. (n_v,)"""
        sizes = np.bincount(self.val_y)
        return 1 / (sizes[self.val_y] * np.count_nonzero(sizes))

    @property
    def target_weights(self) -> Floats:
        """The same of target images, which belong to classes as the posterior says. (n_t,)"""
        weights: Floats = (self.posterior / np.maximum(self.posterior.sum(axis=0), TINY)).mean(axis=1)
        return weights


# --- the scores ---


def source_accuracy(r: Reading) -> float:
    """mean over classes of the held-out source's accuracy"""
    return float(r.val_weights @ r.correct)


def negative_entropy(r: Reading) -> float:
    """−mean H(p_i)"""
    return float((r.target * np.log(np.maximum(r.target, TINY))).sum(axis=1).mean())


def information(r: Reading) -> float:
    """H(p̄) − mean H(p_i)"""
    mean = r.target.mean(axis=0)
    return negative_entropy(r) - float(mean @ np.log(np.maximum(mean, TINY)))


def prior_information(r: Reading) -> float:
    """−KL(P̄ ‖ mix) − mean H(P_i)"""
    mean, mix = r.posterior.mean(axis=0), np.maximum(r.mix, 1e-3 / len(r.mix))
    entropy = -(r.posterior * np.log(np.maximum(r.posterior, TINY))).sum(axis=1).mean()
    return float(-entropy - mean @ np.log(np.maximum(mean, TINY) / mix))


def nuclear_norm(r: Reading) -> float:
    """‖P‖_* / √(n·c)"""
    squares = np.linalg.eigvalsh(r.target.T @ r.target)
    return float(np.sqrt(np.maximum(squares, 0)).sum() / np.sqrt(r.target.size))


def neighbourhood_density(r: Reading) -> float:
    """mean entropy of softmax_j(cos(p_i, p_j)/0.05), j ≠ i"""
    p = _some(r.target, SOFT_ROWS)
    if len(p) < 2:
        return 0.0
    unit = p / np.linalg.norm(p, axis=1, keepdims=True)
    near = unit @ unit.T / 0.05
    np.fill_diagonal(near, -np.inf)
    share = softmax(near)
    return float(-(share * np.log(np.maximum(share, TINY))).sum(axis=1).mean())


def class_correlation(r: Reading) -> float:
    """cosine of PᵀP and the identity"""
    square = r.target.T @ r.target
    return float(np.trace(square) / (np.linalg.norm(square) * np.sqrt(len(square))))


def deep_embedded(r: Reading) -> float:
    """−(mean(w·e) + η·mean(w) − η), e = 1 for an error, w = q(f)/p(f), η = −Cov(w·e, w)/Var(w)"""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import StandardScaler

    target = _some(r.target_looks, DENSITY_ROWS)
    n_v, n_t = len(r.val_looks), len(target)
    x, domain = np.vstack([r.val_looks, target]), np.repeat([0, 1], [n_v, n_t])
    folds = min(5, n_v, n_t)
    if folds < 2:
        return -float(1 - r.correct.mean())
    x = StandardScaler().fit_transform(x)
    p = cross_val_predict(LogisticRegression(max_iter=200), x, domain, cv=folds, method="predict_proba")[:n_v]
    w = p[:, 1] / np.maximum(p[:, 0], 1e-6) * n_v / n_t
    error = w * (1 - r.correct)
    eta = -np.cov(error, w)[0, 1] / max(float(w.var(ddof=1)), TINY)
    return -float(error.mean() + eta * w.mean() - eta)


def thresholded(r: Reading) -> float:
    """share of the target above the confidence above which lies as much of the held-out source as is right"""
    return _share_above(r.val.max(axis=1), r.correct, np.full(len(r.val), 1 / len(r.val)), r.target.max(axis=1), None)


def thresholded_by_class(r: Reading) -> float:
    """the same with classes equally many on both sides"""
    return _share_above(r.val_sure.max(axis=1), r.correct, r.val_weights, r.even.max(axis=1), r.target_weights)


def expected_by_class(r: Reading) -> float:
    """mean over k of Σ_i 1[ŷ_i = k]·P_ik / Σ_i P_ik"""
    said = np.zeros_like(r.posterior)
    said[np.arange(len(said)), r.predicted] = 1
    mass = r.posterior.sum(axis=0)
    there = mass > 0.5  # less than half an image is no class to be right about
    return float(((said * r.posterior).sum(axis=0)[there] / mass[there]).mean())


def transported_by_class(r: Reading) -> float:
    """mean over k of the mean P_ik of the images that the cheapest transport to the mix, at cost 1 − P, gives to k"""
    from scipy.optimize import linear_sum_assignment

    p = _some(r.posterior, MATCHED_ROWS)
    exact = r.mix * len(p)
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: len(p) - sizes.sum()]] += 1  # largest remainders
    owner = np.repeat(np.arange(len(sizes)), sizes)
    row, column = linear_sum_assignment(p[:, owner], maximize=True)
    gain = np.bincount(owner[column], weights=p[row, owner[column]], minlength=len(sizes))
    return float((gain[sizes > 0] / sizes[sizes > 0]).mean())


def agreement(targets: Sequence[Floats], *, by_class: bool = False) -> list[float]:
    """How often each network says what the mean of all their softmaxes says; or the mean of that over its classes."""
    together = np.mean(targets, axis=0).argmax(axis=1)
    sizes = np.bincount(together)
    weights = 1 / (sizes[together] * np.count_nonzero(sizes)) if by_class else np.full(len(together), 1 / len(together))
    return [float(weights @ (p.argmax(axis=1) == together)) for p in targets]


def _some(rows: Floats, most: int) -> Floats:
    """Evenly spread rows, so that a score is the same every time."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _share_above(val: Floats, correct: Floats, weights: Floats, target: Floats, target_weights: Floats | None) -> float:
    order = np.argsort(-val, kind="stable")
    reached = np.cumsum(weights[order])
    place = int(np.searchsorted(reached, weights @ correct - 1e-9))
    above = target >= val[order][min(place, len(val) - 1)]
    return float(above.mean() if target_weights is None else target_weights @ above)


@dataclass(frozen=True)
class Score:
    """One label-free score."""

    title: str
    says: str
    """What a high value means."""
    citation: str
    value: Callable[[Reading], float]


SCORES: dict[str, Score] = {
    "source": Score(
        "source accuracy", "it still knows the source, class by class; nothing of the target", "", source_accuracy
    ),
    "entropy": Score("entropy", "it is sure of the target, rightly or not", "Morerio et al. 2018", negative_entropy),
    "information": Score(
        "information", "it is sure, and says all classes equally often: wrong under label shift",
        "Shi and Sha 2012", information,
    ),
    "prior-information": Score(
        "prior-aware information", "it is sure, and says classes as often as the target is estimated to have them",
        "after Shi and Sha 2012", prior_information,
    ),
    "bnm": Score("BNM", "it is sure and says many classes", "Cui et al. 2020", nuclear_norm),
    "snd": Score("SND", "target images have many neighbours that it says the same of", "Saito et al. 2021",
                 neighbourhood_density),
    "corr-c": Score("Corr-C", "it mixes no classes up and says all equally often", "Tu et al. 2023", class_correlation),
    "dev": Score("DEV", "it is right on source images that look like the target's", "You et al. 2019", deep_embedded),
    "atc": Score("ATC", "as many target images are as sure as right source ones", "Garg et al. 2022", thresholded),
    "atc-class": Score(
        "ATC by class", "the same for the per-class mean, with the estimated mix", "after Garg et al. 2022",
        thresholded_by_class,
    ),
    "expected": Score(
        "expected accuracy", "per-class mean accuracy, were its calibrated posterior under the estimated mix true", "",
        expected_by_class,
    ),
    "transport": Score(
        "transport", "its posteriors need little change to have the estimated mix; a per-class mean",
        "after Lu et al. 2023", transported_by_class,
    ),
}  # fmt: skip
ENSEMBLE = {
    "ensemble": "it agrees with the mean of all candidates (EnsV, Hu et al. 2024)",
    "ensemble-class": "the same, mean over the classes that the candidates together say",
}
"""Scores of a network among others."""


def scores(said: DomainOutputs, mix: Floats | None = None) -> dict[str, float]:
    """All scores of one network; without a mix, under the one that it estimates itself."""
    reading = Reading.of(said, target_prior_of(said) if mix is None else mix)
    return {name: score.value(reading) for name, score in SCORES.items()}


def score_all(saids: Sequence[DomainOutputs], mix: Floats | None = None) -> list[dict[str, float]]:
    """All scores of networks that speak of the same target images, and how they agree; one mix for all of them."""
    sizes = [len(said.target) for said in saids]
    if len(set(sizes)) > 1:
        raise ValueError(f"the networks speak of different target images: {', '.join(map(str, sizes))}")
    mix = consensus_prior(saids) if mix is None else mix
    targets = [softmax(said.target) for said in saids]
    together = [agreement(targets), agreement(targets, by_class=True)]
    return [
        scores(said, mix) | dict(zip(ENSEMBLE, own, strict=True)) for said, *own in zip(saids, *together, strict=True)
    ]


CHOOSERS = ("source", "prior-information", "corr-c", "expected", "ensemble")
"""Scores whose ranks `choose` adds up; chosen on the development tasks alone."""


def choose(saids: Sequence[DomainOutputs]) -> int:
    """The network to prefer, without a label: the best sum of ranks by scores that err in different ways.

    Prior-aware information and expected accuracy believe the estimated mix, and praise a network that says one class
    of everything where the mix is lost; Corr-C wants all classes, which is wrong under label shift, and sees just that.
    The ensemble looks at the other candidates, and the source's accuracy at what was forgotten. All have to speak of
    the same target images; of equals, the first is taken, so put source-only first.
    """
    from scipy.stats import rankdata

    found = score_all(saids)
    ranks = sum(rankdata(np.round([each[name] for each in found], 9)) for name in CHOOSERS)
    return int(np.argmax(ranks))
