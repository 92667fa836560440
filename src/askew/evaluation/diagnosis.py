"""Is there label shift, feature shift, or both, and how sure are we?

Three tests, each of one question. Do the classifier's outputs differ at all? Is the estimated label
distribution another than the source's? And does a difference remain that no label distribution
explains? The last one tells whether the estimated distribution, and everything that is built on it,
can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.outputs import DomainOutputs, Floats, Labels, softmax
from askew.evaluation.priors import (
    DEFAULT,
    PredictionRates,
    PriorEstimate,
    PriorEstimator,
    TargetShares,
    estimate_priors,
    rests_on_few,
    simplex_prior,
    target_shares,
)

Kind = Literal["none", "label", "feature", "both"]
Sureness = Literal["sure", "likely", "unsure"]
PriorEstimates = dict[PriorEstimator, PriorEstimate]
LEVEL = 0.05
"""Of each test."""
PLAIN = 0.01
"""A p-value below this is plain."""
SLIGHT = 0.1
"""A remaining difference of fewer standard deviations within a class is called slight, however
plain it is."""
OPEN = 0.5
"""One of more than this that is not plain is not ruled out either: there were too few images to
tell."""
DIRECTIONS = 8
"""Most principal directions of features (or logits) that are compared."""
BORROWED = 4
"""Images that a class's variance borrows from the other classes: a class of two images hardly has
one of its own."""
SPREAD = 10
"""Held-out images beyond the first of each class that tell how much a class varies; with fewer,
target images of one predicted class tell: of one image per class the variance is nought, and any
difference would be infinitely plain."""


@dataclass(frozen=True)
class Test:
    """One question, answered with a p-value and the size of the difference."""

    question: str
    p: float
    size: float
    unit: str
    """What `size` counts."""

    __test__ = False  # pytest would collect a class of this name

    @property
    def significant(self) -> bool:
        return self.p < LEVEL

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"significant": self.significant}

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{self.size:.2f} {self.unit}, {p}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis:
    """What differs between source and target, in numbers and in a sentence."""

    kind: Kind
    sure: Sureness
    sentence: str
    source_prior: Floats
    priors: dict[str, PriorEstimates]
    """Estimated target priors by network (unadapted, adapted) and estimator."""
    outputs: Test
    """Whether the unadapted network's outputs differ at all."""
    prior_differs: Test
    """Whether the estimated label distribution is another than the source's."""
    remains: dict[str, Test]
    """By network: whether a difference remains that no label distribution explains."""
    target_prior: TargetShares
    """The one to show: by the adapted network, if one was preferred to the unadapted one. It knows
    the target better, and so errs less in counting its classes."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sure": self.sure,
            "sentence": self.sentence,
            "source_shares": self.source_prior.tolist(),
            "shares": {
                who: {name: one.as_dict() for name, one in by.items()}
                for who, by in self.priors.items()
            },
            "outputs": self.outputs.as_dict(),
            "shares_differ": self.prior_differs.as_dict(),
            "remains": {who: test.as_dict() for who, test in self.remains.items()},
        }


def diagnose(
    unadapted: DomainOutputs,
    adapted: DomainOutputs | None = None,
    others: Sequence[DomainOutputs] = (),
    *,
    resamples: int = 200,
    seed: int = 0,
) -> Diagnosis:
    """What differs between source and target for a network that was trained on the source alone.

    An adapted network adds its own estimates of the label distribution, and whether a difference
    remains for it; one that was trained to see none proves nothing by seeing none, so the kind of
    shift is judged by the unadapted one. Others for the same images show how far what networks say
    of the label distribution differs.
    """
    networks = {"unadapted": unadapted} | ({} if adapted is None else {"adapted": adapted})
    priors = {
        who: estimate_priors(outputs, resamples=resamples, seed=seed)
        for who, outputs in networks.items()
    }
    remains = {who: remaining_difference(outputs) for who, outputs in networks.items()}
    estimates = priors["unadapted"]
    tests = {
        name: prior_differs(unadapted, estimate, seed=seed) for name, estimate in estimates.items()
    }
    outputs, prior, rest = outputs_differ(unadapted), tests[DEFAULT], remains["unadapted"]
    agreed = all(test.significant == prior.significant for test in tests.values())
    confused = any(estimate.unsure for estimate in estimates.values())
    kind = _kind(prior, rest)
    sure = _sure(kind, outputs, prior, rest, agreed and not confused)
    sentence = _sentence(kind, outputs, prior, remains, confused)
    who = "unadapted" if adapted is None else "adapted"
    beside = [*others] if adapted is None else [unadapted, *others]
    shares = target_shares(
        networks[who],
        beside,
        priors[who][DEFAULT],
        images_look_alike(remains.values()),
        few=adapted is None and rests_on_few(unadapted),
    )
    return Diagnosis(
        kind=kind,
        sure=sure,
        sentence=sentence,
        source_prior=unadapted.source_prior,
        priors=priors,
        outputs=outputs,
        prior_differs=prior,
        remains=remains,
        target_prior=shares,
    )


def images_look_alike(remains: Iterable[Test]) -> bool:
    """Tell whether images of a class look alike in both domains, by the remaining differences."""
    return not any(test.significant or test.size > OPEN for test in remains)


def _kind(prior: Test, remains: Test) -> Kind:
    if prior.significant and remains.significant:
        return "both"
    if prior.significant:
        return "label"
    return "feature" if remains.significant else "none"


def _sure(kind: Kind, outputs: Test, prior: Test, remains: Test, agreed: bool) -> Sureness:
    """Sure where every test is plain, all estimators agree, and the prior was not estimated under
    feature shift."""
    if kind == "none":
        return "unsure" if outputs.significant or remains.size > OPEN else "likely"
    plain = all(test.p < PLAIN for test in (prior, remains) if test.significant)
    clean = kind == "feature" or not (remains.significant or remains.size > OPEN)
    if plain and agreed and clean:
        return "sure"
    return "likely" if plain or agreed else "unsure"


def _sentence(
    kind: Kind, outputs: Test, prior: Test, remains: dict[str, Test], confused: bool
) -> str:
    rest = remains["unadapted"]
    slight = " slightly" if rest.size < SLIGHT else ""
    more = (
        "there may be more, which so few held-out images do not show"
        if rest.size > OPEN
        else "no more was found"
    )
    sentence = {
        "none": (
            "No shift was found: the label distribution may be the source's "
            f"({prior}); {more} ({rest})."
        ),
        "label": (
            "Label shift: the label distribution differs from the source's "
            f"({prior}); {more} ({rest})."
        ),
        "feature": (
            f"Feature shift: images look{slight} different ({rest}); "
            f"the label distribution may be the source's ({prior})."
        ),
        "both": (
            f"Both: the label distribution differs from the source's ({prior}), and images "
            f"look{slight} different too, which no label distribution explains ({rest}), so trust "
            "the estimated distribution less."
        ),
    }[kind]
    if kind == "none" and outputs.significant:
        sentence = (
            f"Something differs ({outputs}), but these images do not tell whether it is the "
            "label distribution "
            f"({prior}) or how images look ({rest})."
        )
    if "adapted" in remains:
        after = remains["adapted"]
        found = "such a" if after.significant else "no such"
        sentence += f" The adapted network sees {found} difference ({after})."
    if confused:
        sentence += (
            " The network without adaptation cannot tell some classes apart, so this is unsure."
        )
    return sentence


# --- the three tests ---


def outputs_differ(outputs: DomainOutputs) -> Test:
    """Kolmogorov and Smirnov's test of each class's softmax, times the number of classes
    (Bonferroni).

    Of the tests that Rabanser et al. (2019) compare, this one on a classifier's softmax found
    shifts with fewest images; and its level holds at any size, whatever the outputs' distribution.
    """
    from scipy.stats import ks_2samp

    val, target = softmax(outputs.source_val), softmax(outputs.target)
    tests = [ks_2samp(val[:, k], target[:, k], method="asymp") for k in range(outputs.classes)]
    p = min(1.0, outputs.classes * min(float(test.pvalue) for test in tests))
    size = max(float(test.statistic) for test in tests)
    return Test(
        "Do the network's outputs differ?", p, size, "largest distance of a class's distributions"
    )


def prior_differs(outputs: DomainOutputs, estimate: PriorEstimate, seed: int = 0) -> Test:
    """How often resampling moves the difference of priors by as much as it is: ‖(q*−q̂) − (p*−p̂)‖
    ≥ ‖q̂−p̂‖."""
    n, p = len(outputs.source_val_y), outputs.source_prior
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, p, size=len(estimate.draws)) / n
    distance = np.abs(estimate.prior - p).sum() / 2
    by_chance = np.abs((estimate.draws - estimate.prior) - (drawn - p)).sum(axis=1) / 2
    value = (1 + np.count_nonzero(by_chance >= distance)) / (1 + len(by_chance))
    question = "Is the label distribution another than the source's?"
    return Test(question, float(value), float(distance), "total variation")


def remaining_difference(outputs: DomainOutputs) -> Test:
    """Whether the target's outputs are no mixture of the outputs of the source's classes.

    Under label shift E_t[s] = Σ_k q_k m_k for any summary s of an image whose mean in class k is
    m_k, and likewise for the predicted class ŷ: μ = C q. So u(x) = s(x) − a·e_ŷ(x), with a = m C⁻¹,
    has mean zero in every class, hence in the target, whatever its prior: an over-identification
    test (Hansen 1982) in which no prior needs to be estimated but for the variance,

        Var(ū) = Var_t(u)/n_t + Σ_k q_k² Var_k(u)/n_k,

    whose second term is the cost of estimating m and C. Summaries: the confidence, the margin, and
    the principal directions of features or logits; Student's t (Satterthwaite's degrees), times the
    number of summaries (Bonferroni).
    """
    from scipy.stats import t as student

    val, target = _summaries(outputs)
    y, one_hot = outputs.source_val_y, np.eye(outputs.classes)[outputs.source_val_y]
    rates = PredictionRates.of(outputs.source_val, y, outputs.target)
    counts = np.maximum(rates.sizes, 1)[:, None]
    means = one_hot.T @ val / counts  # (c, s)
    means[rates.sizes == 0] = means[rates.sizes > 0].mean(axis=0)
    a = np.linalg.lstsq(rates.confusion.T, means, rcond=1e-3)[0]  # aᵀC = m
    u_val, u = val - a[outputs.source_val.argmax(axis=1)], target - a[outputs.target.argmax(axis=1)]
    squares = one_hot.T @ (u_val - (one_hot.T @ u_val / counts)[y]) ** 2  # (c, s)
    freedom = rates.sizes.sum() - np.count_nonzero(rates.sizes)
    if freedom >= SPREAD:
        pooled, within = squares.sum(axis=0) / freedom, (val - means[y]).std(axis=0)
    else:
        predicted = outputs.target.argmax(axis=1)
        pooled, within = _within(u, predicted), np.sqrt(_within(target, predicted))
    variance, degrees = _variance_of_mean(u, squares, pooled, rates)
    off = np.abs(u.mean(axis=0))
    p = min(1.0, len(off) * float(2 * student.sf(off / np.sqrt(variance), degrees).min()))
    size = float((off / np.maximum(within, 1e-12)).max())
    question = "Does a difference remain that no label distribution explains?"
    return Test(question, p, size, "standard deviations within a class")


def _within(x: Floats, y: Labels) -> Floats:
    """The variance of rows around the mean of their class. (n, s), (n,) → (s,)"""
    sizes = np.bincount(y)
    means = (
        np.column_stack([np.bincount(y, weights=column) for column in x.T])
        / np.maximum(sizes, 1)[:, None]
    )
    found: Floats = ((x - means[y]) ** 2).mean(axis=0)
    return found


def _variance_of_mean(
    u: Floats, squares: Floats, pooled: Floats, rates: PredictionRates
) -> tuple[Floats, Floats]:
    """Var(ū) and its degrees of freedom, from u on the target, the sums of squares within classes,
    and the variance within them all. (n_t, s), (c, s), (s,) → (s,), (s,)"""
    sizes = rates.sizes
    freedom = np.maximum(sizes - 1, 0)[:, None] + BORROWED
    q = simplex_prior(rates.confusion, rates.target)
    by_class = (q**2 / np.maximum(sizes, 1))[:, None] * (squares + BORROWED * pooled) / freedom
    terms = np.vstack([by_class, u.var(axis=0, ddof=1)[None] / len(u)])
    freedom = np.append(freedom, len(u) - 1)[:, None]
    variance = np.maximum(terms.sum(axis=0), 1e-300)
    return variance, variance**2 / np.maximum((terms**2 / freedom).sum(axis=0), 1e-300)


def _summaries(outputs: DomainOutputs) -> tuple[Floats, Floats]:
    """Confidence, margin, and principal directions, of held-out source and target. (n_v, s), (n_t,
    s)"""
    logits, n_v = np.vstack([outputs.source_val, outputs.target]), len(outputs.source_val)
    ordered = np.sort(logits, axis=1)[:, ::-1]
    margin = ordered[:, 0] - ordered[:, 1] if outputs.classes > 1 else ordered[:, 0]
    features = np.vstack(outputs.representations)
    features = features - features.mean(axis=0)
    wanted = max(1, min(DIRECTIONS, outputs.classes - 1, n_v // 10))
    directions = np.linalg.eigh(features.T @ features)[1][:, ::-1][:, :wanted]
    summaries = np.column_stack([softmax(logits).max(axis=1), margin, features @ directions])
    return summaries[:n_v], summaries[n_v:]
