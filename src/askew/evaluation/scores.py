"""The label-free scores, each a function of one network's probabilities; higher is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from askew.evaluation.calibration import at_temperature, calibrate, temperature
from askew.evaluation.outputs import DomainOutputs, Floats, Labels, as_labels, floor_prior, softmax
from askew.evaluation.priors import consensus_prior

SOFT_ROWS, MATCHED_ROWS, DENSITY_ROWS = 1500, 1000, 3000
"""Most target images that SND, transport and DEV look at: their cost grows faster than the
images."""
TINY = 1e-12


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """What the scores of one network are computed from: its probabilities, raw and calibrated to a
    target prior."""

    source_val: Floats
    """Softmax of the held-out source. (n_v, c)"""
    source_val_y: Labels
    """(n_v,)"""
    source_val_uniform: Floats
    """Calibrated posterior of the held-out source under a uniform prior. (n_v, c)"""
    source_val_features: Floats
    """What the domains are compared by. (n_v, d)"""
    target: Floats
    """Softmax of the target. (n_t, c)"""
    target_uniform: Floats
    """Calibrated posterior of the target under a uniform prior. (n_t, c)"""
    target_features: Floats
    """(n_t, d)"""
    posterior: Floats
    """Calibrated posterior of the target under the target prior. (n_t, c)"""
    ensemble: Labels
    """The class that all compared networks together predict for each target image. (n_t,)"""
    prior: Floats
    """The target prior. (c,)"""

    @classmethod
    def of(
        cls, outputs: DomainOutputs, prior: Floats, ensemble: Labels | None = None
    ) -> ScoreInputs:
        """Without an ensemble, the network is compared with itself."""
        calibration, uniform = calibrate(outputs), np.full(outputs.classes, 1 / outputs.classes)
        source_val_features, target_features = outputs.representations
        return cls(
            source_val=softmax(outputs.source_val),
            source_val_y=outputs.source_val_y,
            source_val_uniform=calibration.posterior(outputs.source_val, uniform),
            source_val_features=source_val_features,
            target=softmax(outputs.target),
            target_uniform=calibration.posterior(outputs.target, uniform),
            target_features=target_features,
            posterior=calibration.posterior(outputs.target, prior),
            ensemble=outputs.target.argmax(axis=1) if ensemble is None else ensemble,
            prior=prior,
        )

    def rows(self, val: Labels, target: Labels) -> ScoreInputs:
        """The same for some of the held-out and some of the target images."""
        return ScoreInputs(
            source_val=self.source_val[val],
            source_val_y=self.source_val_y[val],
            source_val_uniform=self.source_val_uniform[val],
            source_val_features=self.source_val_features[val],
            target=self.target[target],
            target_uniform=self.target_uniform[target],
            target_features=self.target_features[target],
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

    @property
    def source_val_weights(self) -> Floats:
        """Each held-out image's weight if classes were equally many; they sum to one. (n_v,)"""
        return class_weights(self.source_val_y)

    @property
    def target_weights(self) -> Floats:
        """The same for target images, which belong to classes as the posterior says. (n_t,)"""
        weights: Floats = (self.posterior / np.maximum(self.posterior.sum(axis=0), TINY)).mean(
            axis=1
        )
        return weights


def class_weights(y: Labels) -> Floats:
    """Weights by which every class that occurs counts the same; they sum to one. (n,) → (n,)"""
    sizes = np.bincount(y)
    return 1 / (sizes[y] * np.count_nonzero(sizes))


# --- the scores ---


def source_accuracy(s: ScoreInputs) -> float:
    """mean over classes of the held-out source's accuracy"""
    return float(s.source_val_weights @ s.correct)


def negative_entropy(s: ScoreInputs) -> float:
    """−mean H(p_i)"""
    return float((s.target * np.log(np.maximum(s.target, TINY))).sum(axis=1).mean())


def information(s: ScoreInputs) -> float:
    """H(p̄) − mean H(p_i)"""
    mean = s.target.mean(axis=0)
    return negative_entropy(s) - float(mean @ np.log(np.maximum(mean, TINY)))


def prior_information(s: ScoreInputs) -> float:
    """−KL(P̄ ‖ prior) − mean H(P_i)"""
    mean = s.posterior.mean(axis=0)
    entropy = -(s.posterior * np.log(np.maximum(s.posterior, TINY))).sum(axis=1).mean()
    return float(-entropy - mean @ np.log(np.maximum(mean, TINY) / floor_prior(s.prior)))


def nuclear_norm(s: ScoreInputs) -> float:
    """‖P‖_* / √(n·c)"""
    squares = np.linalg.eigvalsh(s.target.T @ s.target)
    return float(np.sqrt(np.maximum(squares, 0)).sum() / np.sqrt(s.target.size))


def neighbourhood_density(s: ScoreInputs) -> float:
    """mean entropy of softmax_j(cos(p_i, p_j)/0.05), j ≠ i"""
    p = _some(s.target, SOFT_ROWS)
    return float(neighbourhood_densities(p, np.arange(len(p))[None])[0])


def neighbourhood_densities(p: Floats, subsets: Labels) -> Floats:
    """The same for several subsets of the images, each without repeats. (n, c), (r, m) → (r,)

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


def deep_embedded(s: ScoreInputs) -> float:
    """−(mean(w·e) + η·mean(w) − η), e = 1 for an error, w = q(f)/p(f), η = −Cov(w·e, w)/Var(w)"""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict
    from sklearn.preprocessing import StandardScaler

    target = _some(s.target_features, DENSITY_ROWS)
    n_v, n_t = len(s.source_val_features), len(target)
    x, domain = np.vstack([s.source_val_features, target]), np.repeat([0, 1], [n_v, n_t])
    folds = min(5, n_v, n_t)
    if folds < 2:
        return -float(1 - s.correct.mean())
    x = StandardScaler().fit_transform(x)
    p = cross_val_predict(
        LogisticRegression(max_iter=200), x, domain, cv=folds, method="predict_proba"
    )[:n_v]
    w = p[:, 1] / np.maximum(p[:, 0], 1e-6) * n_v / n_t
    error = w * (1 - s.correct)
    eta = -np.cov(error, w)[0, 1] / max(float(w.var(ddof=1)), TINY)
    return -float(error.mean() + eta * w.mean() - eta)


def thresholded(s: ScoreInputs) -> float:
    """share of the target above the confidence above which lies as much of the held-out source as
    is right"""
    n_v, n_t = len(s.source_val), len(s.target)
    threshold = _threshold(s.source_val.max(axis=1), s.correct, np.full(n_v, 1 / n_v))
    return float((s.target.max(axis=1) >= threshold).sum() / n_t)


def thresholded_by_class(s: ScoreInputs) -> float:
    """the same with classes equally many on both sides"""
    threshold = _threshold(s.source_val_uniform.max(axis=1), s.correct, s.source_val_weights)
    return float(s.target_weights @ (s.target_uniform.max(axis=1) >= threshold))


def expected_by_class(s: ScoreInputs) -> float:
    """mean over k of Σ_i 1[ŷ_i = k]·P_ik / Σ_i P_ik"""
    predicted = np.eye(len(s.prior))[s.predicted]
    mass = s.posterior.sum(axis=0)
    present = mass > 0.5  # half an expected image or less is no class to measure recall on
    return float(((predicted * s.posterior).sum(axis=0)[present] / mass[present]).mean())


def transported_by_class(s: ScoreInputs) -> float:
    """mean over k of the mean P_ik of the images that the cheapest transport to the prior, at cost
    1 − P, gives to k"""
    from scipy.optimize import linear_sum_assignment

    p = _some(s.posterior, MATCHED_ROWS)
    exact = s.prior * len(p)
    sizes = np.floor(exact).astype(np.int64)
    sizes[np.argsort(sizes - exact, kind="stable")[: len(p) - sizes.sum()]] += (
        1  # largest remainders
    )
    owner = np.repeat(np.arange(len(sizes)), sizes)
    row, column = linear_sum_assignment(p[:, owner], maximize=True)
    gain = np.bincount(owner[column], weights=p[row, owner[column]], minlength=len(sizes))
    return float((gain[sizes > 0] / sizes[sizes > 0]).mean())


def ensemble_agreement(s: ScoreInputs) -> float:
    """share of target images for which the ensemble's class is predicted"""
    return float((s.predicted == s.ensemble).mean())


def ensemble_agreement_by_class(s: ScoreInputs) -> float:
    """mean of that share over the ensemble's classes"""
    return float(class_weights(s.ensemble) @ (s.predicted == s.ensemble))


def _some(rows: Floats, most: int) -> Floats:
    """At most so many rows, evenly spaced, so that a score is the same every time."""
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]


def _threshold(confidence: Floats, correct: Floats, weights: Floats) -> float:
    """The confidence above which the weight of images is the weight of the correct ones."""
    order = np.argsort(-confidence, kind="stable")
    above = np.cumsum(weights[order])
    place = int(np.searchsorted(above, weights @ correct - 1e-9))
    return float(confidence[order][min(place, len(confidence) - 1)])


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
    "entropy": Score(
        "entropy",
        "predictions on the target are confident, rightly or not",
        "Morerio et al. 2018",
        negative_entropy,
    ),
    "information": Score(
        "information",
        "predictions are confident, and all classes equally frequent: wrong under label shift",
        "Shi and Sha 2012",
        information,
    ),
    "prior-information": Score(
        "prior-aware information",
        "predictions are confident, and classes as frequent as the estimated target prior",
        "after Shi and Sha 2012",
        prior_information,
    ),
    "bnm": Score(
        "BNM", "predictions are confident and of many classes", "Cui et al. 2020", nuclear_norm
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
    "dev": Score(
        "DEV",
        "source images that look like the target's are recognised",
        "You et al. 2019",
        deep_embedded,
    ),
    "atc": Score(
        "ATC",
        "as many target images are as confident as correct source images",
        "Garg et al. 2022",
        thresholded,
    ),
    "atc-class": Score(
        "ATC by class",
        "the same for the per-class mean, with the estimated prior",
        "after Garg et al. 2022",
        thresholded_by_class,
    ),
    "expected": Score(
        "confidence by class",
        "confident, as a mean over classes under the estimated prior; not an accuracy",
        "",
        expected_by_class,
    ),
    "transport": Score(
        "transport",
        "posteriors need little change to have the estimated prior; a per-class mean",
        "after Lu et al. 2023",
        transported_by_class,
    ),
    "ensemble": Score(
        "ensemble",
        "the mean of all compared networks predicts the same class",
        "EnsV, Hu et al. 2024",
        ensemble_agreement,
    ),
    "ensemble-class": Score(
        "ensemble by class",
        "the same, as a mean over the ensemble's classes",
        "after Hu et al. 2024",
        ensemble_agreement_by_class,
    ),
}


# --- networks with their scores ---


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
