"""What one trained network returns for held-out source images and for the target: all that is
judged without labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from askew.core.errors import UserError
from askew.core.files import Damaged, read_tensors

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]

ABSENT = 1e-3
"""A class with less than this multiple of an even share counts as absent from a prior."""


def softmax(logits: Floats) -> Floats:
    """Rows that sum to one. (n, c) → (n, c)"""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    p: Floats = e / e.sum(axis=1, keepdims=True)
    return p


def floor_prior(prior: Floats) -> Floats:
    """The prior with ABSENT of an even share for every class that has less, so that its logarithm
    is finite. (c,) → (c,)"""
    return np.maximum(prior, ABSENT / len(prior))


def adjust_logits(logits: NDArray[Any], prior: Floats, training_prior: Floats) -> Floats:
    """z_k + log(prior_k/training_prior_k): Bayes' rule from the class prior of training to another
    one. (…, c), (c,), (c,) → (…, c)

    Both priors are floored, so that an estimate of zero rules no class out for good. A class that
    was absent from training keeps its logit: nothing taught the network when to predict it, and to
    divide by its share would let it win every image.
    """
    floored = floor_prior(training_prior)
    absent = training_prior < floored
    shift = np.where(absent, 0.0, np.log(floor_prior(prior) / floored))
    adjusted: Floats = logits + shift
    return adjusted


def prior_bias(logits: Floats, prior: Floats) -> Floats:
    """b with mean_i softmax(z_i + b) = prior: what the logits of these images lack for classes to
    have known shares. (n, c), (c,) → (c,)

    Sinkhorn's iteration: b_k ← b_k + log(prior_k/mean_i softmax(z_i + b)_k), the prior being
    floored.
    """
    wanted = floor_prior(prior)
    wanted, bias = wanted / wanted.sum(), np.zeros(len(prior))
    for _ in range(1000):
        step = np.log(wanted / np.maximum(softmax(logits + bias).mean(axis=0), 1e-300))
        bias += step
        if np.abs(step).max() < 1e-6:
            break
    centred: Floats = bias - bias.mean()
    return centred


def as_floats(values: Any) -> Floats:
    """An array of doubles from a tensor or array of any precision, on any device."""
    return np.asarray(_on_host(values)).astype(np.float64)


def as_labels(values: Any) -> Labels:
    """The same for class indices."""
    return np.asarray(_on_host(values)).astype(np.int64)


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


# --- one network's outputs ---


@dataclass(frozen=True, eq=False, kw_only=True)
class DomainOutputs:
    """Logits of both domains and the held-out labels; no target label. Made by `DomainOutputs.of`,
    which checks it."""

    source_val: Floats
    """Logits of the held-out source images. (n_v, c)"""
    source_val_y: Labels
    """Their labels. (n_v,)"""
    target: Floats
    """Logits of the target images. (n_t, c)"""
    training_prior: Floats
    """The label distribution that the label loss was trained on, which the logits assume. (c,)"""
    source_features: Floats | None = None
    """Features of the held-out source images, where they were kept. (n_v, d)"""
    target_features: Floats | None = None
    """Features of the target images. (n_t, d)"""

    @classmethod
    def of(
        cls,
        source_val: Any,
        source_val_y: Any,
        target: Any,
        training_prior: Any,
        source_features: Any = None,
        target_features: Any = None,
    ) -> DomainOutputs:
        """From tensors or arrays of any precision, on any device."""
        outputs = cls(
            source_val=as_floats(source_val),
            source_val_y=as_labels(source_val_y),
            target=as_floats(target),
            training_prior=as_floats(training_prior),
            source_features=None if source_features is None else as_floats(source_features),
            target_features=None if target_features is None else as_floats(target_features),
        )
        outputs._check()
        return outputs

    def _check(self) -> None:
        n_v, c = self.source_val.shape
        if (
            self.source_val_y.shape != (n_v,)
            or self.target.shape[1:] != (c,)
            or self.training_prior.shape != (c,)
        ):
            raise ValueError(
                f"shapes do not fit: {self.source_val.shape} logits and "
                f"{self.source_val_y.shape} labels of the "
                f"source, {self.target.shape} logits of the target, a prior of "
                f"{self.training_prior.shape}"
            )
        if not n_v or not len(self.target):
            raise ValueError("neither the held-out source nor the target may be empty")
        if self.source_val_y.min() < 0 or self.source_val_y.max() >= c:
            raise ValueError(
                f"labels from {self.source_val_y.min()} to {self.source_val_y.max()} for {c} "
                "classes"
            )
        if (self.source_features is None) != (self.target_features is None):
            raise ValueError("features are needed for both domains or for neither")
        arrays = (self.source_val, self.target, self.training_prior, *self.representations)
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("logits and features have to be finite")

    @property
    def classes(self) -> int:
        return len(self.training_prior)

    @property
    def target_uniform(self) -> Floats:
        """Logits of the target images under a uniform class prior, by which they are labelled.
        (n_t, c)"""
        return adjust_logits(
            self.target, np.full(self.classes, 1 / self.classes), self.training_prior
        )

    @property
    def predicted_distribution(self) -> Floats:
        """Share of the target images for which each class is predicted. (c,)"""
        counts = np.bincount(self.target.argmax(axis=1), minlength=self.classes)
        shares: Floats = counts / len(self.target)
        return shares

    @property
    def source_sizes(self) -> Labels:
        """Held-out source images of each class. (c,)"""
        return np.bincount(self.source_val_y, minlength=self.classes)

    @property
    def source_prior(self) -> Floats:
        """The held-out source's label distribution. (c,)"""
        prior: Floats = self.source_sizes / len(self.source_val_y)
        return prior

    @property
    def representations(self) -> tuple[Floats, Floats]:
        """What the domains are compared by: features where they were kept, else logits less their
        mean, since an offset of all logits changes no prediction. (n_v, d), (n_t, d)"""
        if self.source_features is not None and self.target_features is not None:
            return self.source_features, self.target_features
        val, target = (z - z.mean(axis=1, keepdims=True) for z in (self.source_val, self.target))
        return val, target


OUTPUTS_FORM = "2"
"""Version of the layout of a run's stored outputs."""


def read_stored_outputs(folder: Path) -> dict[str, Any]:
    """Read a finished run's stored tensors; UserError if their layout is another version's."""
    stored, notes = read_tensors(folder / "outputs.safetensors")
    form = notes.get("form", "1")
    if form != OUTPUTS_FORM:
        raise UserError(
            f"The outputs in {folder} are of form {form}, and this askew reads form "
            f"{OUTPUTS_FORM}.",
            "train the run again, or use the askew that made it.",
        )
    return stored


def read_outputs(folder: Path) -> DomainOutputs:
    """The outputs of a finished run's network on held-out source and target."""
    import torch  # late: tables and reports need softmax without it

    stored = read_stored_outputs(folder)
    try:
        if not all(torch.isfinite(stored[name]).all() for name in ("source_val", "target")):
            raise UserError(
                "The outputs of the network are not finite numbers.",
                "lower the rates, as by -t lr=0.001.",
            )
        return DomainOutputs.of(
            stored["source_val"],
            stored["source_val_y"],
            stored["target"],
            stored["training_shares"],
        )
    except (KeyError, ValueError):  # somebody else's, with a hash that is right
        raise Damaged(folder / "outputs.safetensors") from None
