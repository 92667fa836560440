"""BBSE: black-box shift estimation (Lipton, Wang, Smola, ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from askew.core.options import Search
from askew.evaluation.priors import Estimator, target_prior
from askew.methods.base import Batch, Losses, Method, Outputs, State
from askew.methods.losses import cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class BBSE(Method):
    """Asks a source-only network for the target's class mix, then trains anew on source weighed to have it.

    Assumes: p(x|y) = q(x|y): classes look the same in both domains and only their mix differs.
    Minimises: E_s (q̂_y/u_y)·CE(h(x), y), u the class mix that the sampler delivers, and q̂ from the held-out source's
        confusion matrix C(ŷ|y) and the mean prediction μ on the target:
        simplex: q̂ = argmin over the simplex of ‖μ − C q‖²; ridge (as published): w = (JᵀJ + I/n)⁻¹Jᵀμ, J joint
    Cites: Z. Lipton, Y.-X. Wang, A. Smola, Detecting and Correcting for Label Shift with Black Box Predictors,
        ICML 2018.
    """

    id = "bbse"
    restarts = True

    estimator: Estimator = "simplex"
    """simplex, or the published ridge, which shrinks rare classes far too much under strong label shift."""
    soft: Annotated[bool, Search(0, 1)] = False
    """Whether predictions are probabilities, or the most probable class alone, as published."""

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        if round > 0:  # the network that is being trained has no say
            return {}
        mix = target_prior(
            outputs.source_val, outputs.source_val_y, outputs.target, estimator=self.estimator, soft=self.soft
        )
        seen = outputs.source_prior
        mix = torch.where(seen > 0, mix, 0.0)  # a class that the source lacks cannot be weighed up
        mix = torch.where(mix.sum() > 0, mix / mix.sum().clamp(min=1e-12), seen)
        return {"ratio": mix / seen.clamp(min=1e-12)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        logits = net["head"](net["features"](batch.xs))
        return {"label": cross_entropy(logits, batch.ys, weight=state["ratio"][batch.ys])}

    def training_prior(self, source_prior: Tensor, state: State) -> Tensor:
        seen = source_prior * state["ratio"]
        return seen / seen.sum()
