"""The target's class mix, estimated from what a classifier says of it (Lipton et al. 2018), and how to use it."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Estimator = Literal["simplex", "ridge"]

SINGULAR = 0.01
"""A confusion matrix whose smallest singular value is below this says next to nothing about some classes."""


class UnsureMixWarning(UserWarning):
    """Some classes are so alike to the classifier that the target's class mix cannot be told."""


def says(logits: Tensor, soft: bool) -> Floats:
    """What a classifier says of each image: its softmax, or 1 for the first class and 0 for the rest. (n, c)"""
    p = logits.double().softmax(dim=-1)
    if not soft:
        p = torch.nn.functional.one_hot(p.argmax(dim=-1), p.shape[-1])
    return p.cpu().numpy().astype(np.float64)


def confusion_by_class(said: Floats, y: NDArray[np.int64]) -> Floats:
    """C[i, j] = E[said i | class j]; a class without an image is taken to be recognised. (n, c), (n,) → (c, c)"""
    c = said.shape[1]
    own = np.eye(c)[y]
    counts = own.sum(axis=0)
    return np.where(counts > 0, said.T @ own / np.maximum(counts, 1), np.eye(c))


def simplex_prior(confusion: Floats, said: Floats) -> Floats:
    """argmin over the simplex of ‖μ − C q‖², where μ is what was said of the target on average. (c, c), (c,) → (c,)

    Non-negative least squares, with the sum as one more equation that outweighs the others.
    """
    from scipy.optimize import nnls

    heavy = 1e4
    c = len(said)
    rows = np.vstack([confusion, np.full((1, c), heavy)])
    q: Floats
    q, _ = nnls(rows, np.append(said, heavy), maxiter=100 * c)
    mix: Floats = q / q.sum()
    return mix


def ridge_prior(confusion: Floats, said: Floats, mix: Floats, images: int) -> Floats:
    """The published form: w = (JᵀJ + λI)⁻¹Jᵀμ with the joint J[i, j] = C[i, j]·mix_j and λ = 1/images; then w·mix,
    made to sum to one.

    It shrinks rare classes far too much under strong label shift. (c, c), (c,), (c,) → (c,)
    """
    joint = confusion * mix
    ratio = np.linalg.solve(joint.T @ joint + np.eye(len(mix)) / images, joint.T @ said)
    q: Floats = np.maximum(ratio, 0) * mix
    return q / q.sum() if q.sum() > 0 else mix


def target_prior(
    source_val: Tensor, source_val_y: Tensor, target: Tensor, *, estimator: Estimator = "simplex", soft: bool = False
) -> Tensor:
    """Black-box shift estimation: the mix under which the held-out source would look to the classifier as the target.

    Assumes label shift alone, p(x|y) = q(x|y); where that fails it is a guess. (n_v, c), (n_v,), (n_t, c) → (c,)
    """
    y = source_val_y.cpu().numpy()
    said = says(target, soft).mean(axis=0)
    confusion = confusion_by_class(says(source_val, soft), y)
    weakest = np.linalg.svd(confusion, compute_uv=False)[-1]
    if weakest < SINGULAR:
        warnings.warn(
            f"The confusion matrix is close to singular (smallest singular value {weakest:.1g}): the classifier "
            "cannot tell some classes apart, and the estimated target mix may divide them as it likes.",
            UnsureMixWarning,
            stacklevel=2,
        )
    if estimator == "ridge":
        mix = np.bincount(y, minlength=len(said)) / max(1, len(y))
        found = ridge_prior(confusion, said, mix, max(1, min(len(y), len(target))))
    else:
        found = simplex_prior(confusion, said)
    return torch.from_numpy(found).float().to(target.device)


def reweighted(logits: Tensor, mix: Tensor, seen: Tensor) -> Tensor:
    """z_k + log(mix_k/seen_k): the classifier as it would be, had it seen the target's mix. (n, c), (c,), (c,) → (n, c)

    A class that the estimate leaves empty keeps a thousandth of an even share, so that no image is ruled out for good.
    """
    floor = 1e-3 / len(mix)
    return logits + torch.log(mix.clamp(min=floor) / seen.clamp(min=floor))
