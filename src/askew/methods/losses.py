"""Pure tensor functions that methods are written in: fixed shapes, no Python branches on values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from askew.core.device import wide


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """(1/n) Σ_i w_i · −log softmax(z_i)[y_i]; the mean is over all rows, whatever their weights.
    (n, c), (n,) → ()"""
    each = F.cross_entropy(logits, y, reduction="none")
    return (each if weight is None else each * weight).mean()


def soft_cross_entropy(logits: Tensor, p: Tensor) -> Tensor:
    """−(1/n) Σ_i Σ_k p_ik log softmax(z_i)[k]. (n, c), (n, c) with rows that sum to one → ()"""
    return -(p * logits.log_softmax(dim=-1)).sum(dim=-1).mean()


def row_entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of each row's softmax, −Σ_k p_ik log p_ik. (n, c) → (n,)"""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def entropy(logits: Tensor) -> Tensor:
    """Mean Shannon entropy of the softmax, −(1/n) Σ_i Σ_k p_ik log p_ik. (n, c) → ()"""
    return row_entropy(logits).mean()


def log_other(logits: Tensor, y: Tensor) -> Tensor:
    """log(1 − softmax(z_i)[y_i]), with a gradient even where the softmax rounds to one. (n, c),
    (n,) → (n,)"""
    own = F.one_hot(y, logits.shape[-1]).bool()
    return logits.masked_fill(own, -math.inf).logsumexp(dim=-1) - logits.logsumexp(dim=-1)


def class_confusion(p: Tensor, weight: Tensor) -> Tensor:
    """(1/c) Σ_j Σ_(k≠j) C_jk/Σ_l C_jl with C = Σ_i w_i p_i p_iᵀ: how often classes are probable
    together. → ()

    (n, c) with rows that sum to one, (n,)
    """
    together = p.T @ (weight[:, None] * p)
    share = together / together.sum(dim=-1, keepdim=True).clamp(
        min=1e-12
    )  # a class without any probability: nothing
    return (share.sum() - share.diagonal().sum()) / p.shape[-1]


def confusion(z: Tensor) -> Tensor:
    """The class confusion of softmax(z), sure rows counting up to twice as much, as MCC has it. (n,
    c) → ()"""
    return class_confusion(z.softmax(dim=-1), mean_one(certainty(z)))


# --- weights ---


def mean_one(weight: Tensor) -> Tensor:
    """w_i / mean(w), a constant to the gradient; all ones where the weights vanish. (n,) → (n,)"""
    weight = weight.detach()
    mean = weight.mean()
    return torch.where(mean > 1e-12, weight / mean.clamp(min=1e-12), 1.0)


def unit_range(weight: Tensor) -> Tensor:
    """(w_i − min w)/(max w − min w); all ones where the weights are equal. (n,) → (n,)"""
    low, high = weight.amin(), weight.amax()
    return torch.where(high - low > 1e-12, (weight - low) / (high - low).clamp(min=1e-12), 1.0)


def certainty(logits: Tensor) -> Tensor:
    """1 + e^(−H(p)): images that the classifier is sure of count more (entropy conditioning of Long
    et al. 2018).

    (n, c) → (n,)
    """
    return 1 + torch.exp(-row_entropy(logits))


# --- adversaries ---


def ramp(t: Tensor) -> Tensor:
    """2/(1 + e^(−10t)) − 1, from 0 to 1: an adversary's say grows as it learns (Ganin et al.
    2016)."""
    return 2 / (1 + torch.exp(-10 * t)) - 1


def reverse_grad(x: Tensor, strength: Tensor | float = 1.0) -> Tensor:
    """x itself going forward; the gradient times −strength going back (Ganin et al. 2016).

    Written with `detach`, it also works under `torch.func.vmap`, where an autograd.Function would
    not.
    """
    return x.detach() - strength * (x - x.detach())


def domain_loss(
    source: Tensor,
    target: Tensor,
    source_weight: Tensor | float = 1.0,
    target_weight: Tensor | float = 1.0,
) -> Tensor:
    """½ E_s −w log σ(d) + ½ E_t −w log(1 − σ(d)): a critic's cross-entropy, source being 1. (n,),
    (m,) → ()"""
    return (
        (source_weight * F.softplus(-source)).mean() + (target_weight * F.softplus(target)).mean()
    ) / 2


def relaxed_divergence(source: Tensor, target: Tensor, beta: Tensor | float) -> Tensor:
    """E_s log σ(d) + E_t log(2 + β − σ(d)) − log(1 + β): a relaxed Jensen–Shannon objective (Wu et
    al. 2019).

    Its maximum over critics is 0 as long as q/p, target over source, is at most 1 + β. (n,), (m,) →
    ()
    """
    # log(2 + β − σ) − log(1 + β) in one, so that β may be a number or a tensor
    return F.logsigmoid(source).mean() + torch.log1p((1 - target.sigmoid()) / (1 + beta)).mean()


def leaky_softmax(logits: Tensor) -> Tensor:
    """e^(z_k)/(Σ_j e^(z_j) + c): a softmax whose rows sum to less than one (Cao et al. 2019). (n,
    c) → (n, c)"""
    leak = torch.full_like(logits[..., :1], math.log(logits.shape[-1]))
    return torch.cat([logits, leak], dim=-1).softmax(dim=-1)[..., :-1]


def leaky_logit(logits: Tensor) -> Tensor:
    """a = log Σ_j e^(z_j) − log c, of which σ(a) is the sum of the leaky softmax. (n, c) → (n,)"""
    return logits.logsumexp(dim=-1) - math.log(logits.shape[-1])


def one_vs_rest(probability: Tensor, y: Tensor) -> Tensor:
    """−(1/n) Σ_i [log p_i,y_i + Σ_(k≠y_i) log(1 − p_ik)]. (n, c), (n,) → ()"""
    p = probability.to(torch.promote_types(probability.dtype, torch.float32)).clamp(1e-7, 1 - 1e-6)
    own = F.one_hot(y, p.shape[-1]).to(p.dtype)
    return -(own * p.log() + (1 - own) * torch.log1p(-p)).sum(dim=-1).mean()


# --- distances between samples ---


def squared_distances(x: Tensor) -> Tensor:
    """‖x_i − x_j‖² between all rows. (n, d) → (n, n)"""
    x = x - x.detach().mean(dim=0)  # moves no distance, and spares digits
    size = x.square().sum(dim=-1)
    return (size[:, None] + size[None, :] - 2 * x @ x.T).clamp(min=0)


def gaussian_kernels(x: Tensor, count: int = 5) -> Tensor:
    """Σ_k exp(−‖x_i − x_j‖²/(2^k m)), k = −2 … 2 for five, m their mean squared distance (a
    constant to the gradient).

    (n, d) → (n, n)
    """
    square = squared_distances(x)
    n = len(x)
    unit = (square.detach().sum() / max(1, n * (n - 1))).clamp(min=1e-12)
    return torch.stack(
        [torch.exp(-square / (unit * 2.0 ** (k - count // 2))) for k in range(count)]
    ).sum(dim=0)


def mmd(kernel: Tensor, n: int) -> Tensor:
    """Squared maximum mean discrepancy of the first n rows and the rest: mean K_ss + mean K_tt − 2
    mean K_st.

    The quadratic estimator over all pairs (Gretton et al. 2012). (n + m, n + m) → ()
    """
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def top_singular_square(x: Tensor, squarings: int = 12) -> Tensor:
    """σ₁², the square of the largest singular value. (n, d) → ()

    Squaring the Gram matrix G = xxᵀ again and again leaves the projector P on its leading vector,
    and σ₁² = ⟨P, G⟩. P is a constant to the gradient, which is then 2Px = 2σ₁u₁v₁ᵀ, the true one;
    unlike torch.linalg.svdvals it needs no word from the host, so it can be part of a graph.
    """
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    projector = gram.detach().to(wide(gram.device))
    for _ in range(squarings):
        projector = projector / projector.diagonal().sum().clamp(min=1e-30)
        projector = projector @ projector
    projector = (projector / projector.diagonal().sum().clamp(min=1e-30)).to(x.dtype)
    return (projector * gram).sum()


# --- pseudo-labels ---


def top_share_mask(confidence: Tensor, group: Tensor, share: Tensor | float, groups: int) -> Tensor:
    """1 for the ⌈share·n_g⌉ most confident of each group g, else 0; ties go to the lower row. (n,),
    (n,) → (n,)"""
    by_confidence = confidence.argsort(descending=True, stable=True)
    order = by_confidence[
        group[by_confidence].argsort(stable=True)
    ]  # groups one after another, best first
    sizes = torch.bincount(group, minlength=groups)
    start = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - start[group[order]]
    # Rounded first: 0.2 · 15 is a hair above 3 in floating point, and must not become 4.
    keep = (share * sizes.to(wide(sizes.device))).mul(1e6).round().div(1e6).ceil()
    return (rank < keep[group]).to(confidence.dtype)
