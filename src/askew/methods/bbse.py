"""BBSE: black-box shift estimation (Lipton, Wang, Smola, ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from askew.core.options import Search
from askew.evaluation.priors import Solver, bbse_prior
from askew.methods.base import Batch, Losses, Method, Outputs, State
from askew.methods.losses import cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class BBSE(Method):
    """Estimates the target prior by a source-only network, then trains anew on the source, weighted
    to have it.

    Assumes: p(x|y) = q(x|y): classes look the same in both domains and only the class prior
        differs.
    Minimises: E_s (q̂_y/u_y)·CE(h(x), y), u the class prior that the sampler delivers, and q̂ from
        the held-out source's confusion matrix C(ŷ|y) and the mean prediction μ on the target:
        simplex: q̂ = argmin over the simplex of ‖μ − C q‖²; ridge (as published): w = (JᵀJ +
        I/n)⁻¹Jᵀμ, J joint
    Cites: Z. Lipton, Y.-X. Wang, A. Smola, Detecting and Correcting for Label Shift with Black Box
        Predictors, ICML 2018.
    Use when: label distributions differ and images look alike.
    """

    id = "bbse"
    restarts = True

    estimator: Solver = "simplex"
    """simplex, or the published ridge, which shrinks rare classes far too much under strong label
    shift."""
    soft: Annotated[bool, Search(0, 1)] = False
    """Whether predictions are probabilities, or the most probable class alone, as published."""

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        if round > 0:  # the estimate is the source-only network's, which has finished training
            return {}
        prior = bbse_prior(
            outputs.source_val,
            outputs.source_val_y,
            outputs.target,
            solver=self.estimator,
            soft=self.soft,
        )
        source_prior = outputs.source_prior
        prior = torch.where(
            source_prior > 0, prior, 0.0
        )  # no weight can make up for a class that the source lacks
        prior = torch.where(prior.sum() > 0, prior / prior.sum().clamp(min=1e-12), source_prior)
        return {"ratio": prior / source_prior.clamp(min=1e-12)}

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        logits = net["head"](net["features"](batch.xs))
        return {"label": cross_entropy(logits, batch.ys, weight=state["ratio"][batch.ys])}

    def training_prior(self, source_prior: Tensor, state: State) -> Tensor:
        prior = source_prior * state["ratio"]
        return prior / prior.sum()
