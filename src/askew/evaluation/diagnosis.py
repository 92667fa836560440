"""Is there label shift, feature shift, or both, and how sure are we?

Three tests, each of one question. Do the classifier's outputs differ at all? Is the estimated class mix another than
the source's? And does a difference remain that no class mix explains? The last is the one that says whether the
estimated mix, and everything that is built on it, deserves belief.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from askew.evaluation.mixtures import DEFAULT, PriorEstimate, PriorEstimator, estimate_priors, predicted_distribution
from askew.evaluation.outputs import DomainOutputs, Floats, softmax
from askew.evaluation.priors import simplex_prior

Kind = Literal["none", "label", "feature", "both"]
Sureness = Literal["sure", "likely", "unsure"]
LabelDistributions = dict[PriorEstimator, PriorEstimate]
LEVEL = 0.05
"""Of each test."""
PLAIN = 0.01
"""A p-value below this is plain."""
SLIGHT = 0.1
"""A remaining difference of fewer standard deviations within a class is called slight, however plain it is."""
OPEN = 0.5
"""One of more than this that is not plain is not ruled out either: there were too few images to tell."""
DIRECTIONS = 8
"""Most principal directions of features (or logits) that are compared."""
BORROWED = 4
"""Images that a class's variance borrows from the other classes: a class of two images hardly has one of its own."""


@dataclass(frozen=True)
class Test:
    """One question, answered with a p-value and the size of what was found."""

    question: str
    p: float
    size: float
    unit: str
    """What `size` counts."""

    __test__ = False  # pytest, this is none of yours

    @property
    def found(self) -> bool:
        return self.p < LEVEL

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"found": self.found}

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{self.size:.2f} {self.unit}, {p}"


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What differs between source and target, in numbers and in a sentence."""

    kind: Kind
    sure: Sureness
    sentence: str
    source_prior: Floats
    mixes: dict[str, LabelDistributions]
    """By network (unadapted, adapted) and estimator."""
    outputs: Test
    """Whether the unadapted network's outputs differ at all."""
    mix_differs: Test
    """Whether the estimated mix is another than the source's."""
    remains: dict[str, Test]
    """By network: whether a difference remains that no class mix explains."""

    @property
    def mix(self) -> PriorEstimate:
        """The one to show: the unadapted network's. What adapted ones estimate was worse on the development tasks:
        a method that aligns the domains takes a class mix for a look."""
        return self.mixes["unadapted"][DEFAULT]

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "sure": self.sure,
            "sentence": self.sentence,
            "source_mix": self.source_prior.tolist(),
            "mixes": {who: {name: m.as_dict() for name, m in mixes.items()} for who, mixes in self.mixes.items()},
            "outputs": self.outputs.as_dict(),
            "mix_differs": self.mix_differs.as_dict(),
            "remains": {who: test.as_dict() for who, test in self.remains.items()},
        }


def diagnose(
    unadapted: DomainOutputs, adapted: DomainOutputs | None = None, *, resamples: int = 200, seed: int = 0
) -> Diagnosis:
    """What differs between source and target, as a network sees it that was trained on the source alone.

    An adapted network adds its own estimates of the mix, and whether it still sees a difference; one that was trained
    to see none proves nothing by seeing none, so the verdict is the unadapted network's.
    """
    networks = {"unadapted": unadapted} | ({} if adapted is None else {"adapted": adapted})
    mixes = {who: estimate_priors(said, resamples=resamples, seed=seed) for who, said in networks.items()}
    remains = {who: remaining_difference(said) for who, said in networks.items()}
    first = mixes["unadapted"].values()
    outputs, mix = outputs_differ(unadapted), mix_differs(unadapted, mixes["unadapted"][DEFAULT], seed=seed)
    agreed = all(mix_differs(unadapted, estimate, seed=seed).found == mix.found for estimate in first)
    blind = any(estimate.unsure for estimate in first)
    kind = _kind(mix, remains["unadapted"])
    sure = _sure(kind, outputs, mix, remains["unadapted"], agreed and not blind)
    sentence = _sentence(kind, outputs, mix, remains, blind)
    return Diagnosis(kind, sure, sentence, unadapted.source_prior, mixes, outputs, mix, remains)


def _kind(mix: Test, remains: Test) -> Kind:
    if mix.found and remains.found:
        return "both"
    if mix.found:
        return "label"
    return "feature" if remains.found else "none"


def _sure(kind: Kind, outputs: Test, mix: Test, remains: Test, agreed: bool) -> Sureness:
    """Sure where every test is plain, all estimators agree, and the mix was not estimated under feature shift."""
    if kind == "none":
        return "unsure" if outputs.found or remains.size > OPEN else "likely"
    plain = all(test.p < PLAIN for test in (mix, remains) if test.found)
    clean = kind == "feature" or not (remains.found or remains.size > OPEN)
    if plain and agreed and clean:
        return "sure"
    return "likely" if plain or agreed else "unsure"


def _sentence(kind: Kind, outputs: Test, mix: Test, remains: dict[str, Test], blind: bool) -> str:
    rest = remains["unadapted"]
    slight = " slightly" if rest.size < SLIGHT else ""
    ruled = "there may be more, which so few held-out images do not show" if rest.size > OPEN else "no more was found"
    said = {
        "none": f"No shift was found: the class mix may be the source's ({mix}); {ruled} ({rest}).",
        "label": f"Label shift: the class mix is another than the source's ({mix}); {ruled} ({rest}).",
        "feature": f"Feature shift: images look{slight} different ({rest}); the class mix may be the source's ({mix}).",
        "both": f"Both: the class mix is another than the source's ({mix}), and images look{slight} different too, "
        f"which no mix explains ({rest}), so trust the estimated mix less.",
    }[kind]
    if kind == "none" and outputs.found:
        said = (
            f"Something differs ({outputs}), but these images do not tell whether it is the class mix ({mix}) "
            f"or the look ({rest})."
        )
    if "adapted" in remains:
        after = remains["adapted"]
        said += f" The adapted network sees {'such a' if after.found else 'no such'} difference ({after})."
    if blind:
        said += " The network cannot tell some classes apart, and the mix may divide them in any way."
    return said


# --- the three tests ---


def outputs_differ(said: DomainOutputs) -> Test:
    """Kolmogorov and Smirnov's test of each class's softmax, times the number of classes (Bonferroni).

    Of the tests that Rabanser et al. (2019) compare, this one on a classifier's softmax found shifts with fewest
    images; and its level holds at any size, whatever the outputs' distribution.
    """
    from scipy.stats import ks_2samp

    val, target = softmax(said.source_val), softmax(said.target)
    tests = [ks_2samp(val[:, k], target[:, k], method="asymp") for k in range(said.classes)]
    p = min(1.0, said.classes * min(float(test.pvalue) for test in tests))
    size = max(float(test.statistic) for test in tests)
    return Test("Do the network's outputs differ?", p, size, "largest distance of a class's distributions")


def mix_differs(said: DomainOutputs, estimate: PriorEstimate, seed: int = 0) -> Test:
    """How often drawing images again moves the difference of mixes by as much as it is: ‖(q*−q̂) − (p*−p̂)‖ ≥ ‖q̂−p̂‖."""
    n, p = len(said.source_val_y), said.source_prior
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(n, p, size=len(estimate.draws)) / n
    distance = np.abs(estimate.mix - p).sum() / 2
    chance = np.abs((estimate.draws - estimate.mix) - (drawn - p)).sum(axis=1) / 2
    value = (1 + np.count_nonzero(chance >= distance)) / (1 + len(chance))
    return Test("Is the class mix another than the source's?", float(value), float(distance), "total variation")


def remaining_difference(said: DomainOutputs) -> Test:
    """Whether what the network says of the target is no mixture of what it says of the source's classes.

    Under label shift E_t[s] = Σ_k q_k m_k for any summary s of an image whose mean in class k is m_k, and likewise
    for the class ŷ that is said first: μ = C q. So u(x) = s(x) − a·e_ŷ(x), with a = m C⁻¹, has mean zero in every
    class, hence in the target, whatever its mix: an over-identification test (Hansen 1982) in which no mix needs to be
    estimated but for the variance,

        Var(ū) = Var_t(u)/n_t + Σ_k q_k² Var_k(u)/n_k,

    whose second term is what the estimation of m and C costs. Summaries: how sure the network is, by how much, and
    the principal directions of its features or logits; Student's t (Satterthwaite's degrees), times the number of
    summaries (Bonferroni).
    """
    from scipy.stats import t as student

    val, target = _summaries(said)
    y, sizes = said.source_val_y, said.source_sizes
    confusion, counted = predicted_distribution(said)
    own = np.eye(said.classes)[y]  # (n_v, c)
    means = own.T @ val / np.maximum(sizes, 1)[:, None]  # (c, s)
    means[sizes == 0] = means[sizes > 0].mean(axis=0)
    a = np.linalg.lstsq(confusion.T, means, rcond=1e-3)[0]  # aᵀC = m
    u_val, u = val - a[said.source_val.argmax(axis=1)], target - a[said.target.argmax(axis=1)]
    squares = own.T @ (u_val - (own.T @ u_val / np.maximum(sizes, 1)[:, None])[y]) ** 2  # (c, s)
    pooled = squares.sum(axis=0) / max(1, len(y) - np.count_nonzero(sizes))
    free = np.maximum(sizes - 1, 0)[:, None] + BORROWED
    parts = (
        (simplex_prior(confusion, counted) ** 2 / np.maximum(sizes, 1))[:, None] * (squares + BORROWED * pooled) / free
    )
    parts = np.vstack([parts, u.var(axis=0, ddof=1)[None] / len(u)])
    free = np.append(free, len(u) - 1)[:, None]
    variance = np.maximum(parts.sum(axis=0), 1e-300)
    degrees = variance**2 / np.maximum((parts**2 / free).sum(axis=0), 1e-300)
    off = np.abs(u.mean(axis=0))
    p = min(1.0, len(off) * float(2 * student.sf(off / np.sqrt(variance), degrees).min()))
    within = val - means[y]
    size = float((off / np.maximum(within.std(axis=0), 1e-12)).max())
    return Test("Does a difference remain that no class mix explains?", p, size, "standard deviations within a class")


def _summaries(said: DomainOutputs) -> tuple[Floats, Floats]:
    """Confidence, margin, and principal directions, of held-out source and target. (n_v, s), (n_t, s)"""
    logits = np.vstack([said.source_val, said.target])
    first = np.sort(logits, axis=1)[:, ::-1]
    looks = np.vstack(said.looks)
    looks = looks - looks.mean(axis=0)
    wanted = max(1, min(DIRECTIONS, said.classes - 1, len(said.source_val) // 10))
    directions = np.linalg.eigh(looks.T @ looks)[1][:, ::-1][:, :wanted]
    margin = first[:, 0] - first[:, 1] if said.classes > 1 else first[:, 0]
    all_of_it = np.column_stack([softmax(logits).max(axis=1), margin, looks @ directions])
    return all_of_it[: len(said.source_val)], all_of_it[len(said.source_val) :]
