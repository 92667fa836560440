"""Pure tensor functions that methods are written in: fixed shapes, no Python branches on values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
    """(1/n) Σ_i w_i · −log softmax(z_i)[y_i]; the mean is over all rows, whatever their weights. (n, c), (n,) → ()"""
    each = F.cross_entropy(logits, y, reduction="none")
    return (each if weight is None else each * weight).mean()


def entropy(logits: Tensor) -> Tensor:
    """Mean Shannon entropy of the softmax, −(1/n) Σ_i Σ_k p_ik log p_ik. (n, c) → ()"""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1).mean()


def reverse_grad(x: Tensor, strength: Tensor | float = 1.0) -> Tensor:
    """x itself going forward; the gradient times −strength going back (Ganin et al. 2016).

    Written with `detach`, it also works under `torch.func.vmap`, where an autograd.Function would not.
    """
    return x.detach() - strength * (x - x.detach())


def top_share_mask(confidence: Tensor, group: Tensor, share: Tensor | float, groups: int) -> Tensor:
    """1 for the ⌈share·n_g⌉ most confident of each group g, else 0; ties go to the lower row. (n,), (n,) → (n,)"""
    by_confidence = confidence.argsort(descending=True, stable=True)
    order = by_confidence[group[by_confidence].argsort(stable=True)]  # groups one after another, best first
    sizes = torch.bincount(group, minlength=groups)
    start = sizes.cumsum(0) - sizes
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - start[group[order]]
    # Rounded first: 0.2 · 15 is a hair above 3 in floating point, and must not become 4.
    keep = (share * sizes.double()).mul(1e6).round().div(1e6).ceil()
    return (rank < keep[group]).to(confidence.dtype)
