"""COAL: co-alignment of feature and label distribution (Tan, Peng, Saenko, ECCV workshops 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, Outputs, Phase, State, join_domains
from askew.methods.losses import cross_entropy, entropy, reverse_grad, top_share_mask
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class COAL(Method):
    """Prototypes move to the target by minimax entropy; the classifier learns from confident target
    images.

    Assumes: p(y|x) = q(y|x), while p(x|y) and p(y) may both differ; a pre-trained network that is
        often right.
    Minimises: classifier C: L_ST − α·L_H, features F: L_ST + α·L_H, with
        L_ST = E_s CE(h(x), y) + E_t CE(h(x), ŷ)·m
            (m = 1 for the top k % most confident of each pseudo-class)
        L_H  = E_t −Σ_i h_i(x) log h_i(x)
    Cites: S. Tan, X. Peng, K. Saenko, Class-imbalanced Domain Adaptation: An Empirical Odyssey,
        arXiv 1910.10320.
    Use when: both differ, looks and label distributions, and no random views of the data make
        sense.
    """

    id = "coal"
    head = "cosine"

    alpha: Annotated[float, Between(0), Search(0.01, 1, log=True)] = 0.1
    """Weight α of the entropy that the classifier maximises and the features minimise."""
    k0: Annotated[float, Between(0, 1), Search(0.05, 0.5)] = 0.05
    """Share of each pseudo-class that is trusted in the first round."""
    k_step: Annotated[float, Between(0, 1), Search(0, 0.1)] = 0.05
    """Growth of that share per round."""
    k_max: Annotated[float, Between(0, 1), Search(0.1, 1)] = 0.3
    """Where the growth ends."""
    self_training: bool = True
    """Whether L_ST has its target term (off for the ablation)."""
    minimax: bool = True
    """Whether L_H takes part (off for the ablation)."""
    updates: Literal["one", "two"] = "one"
    """One optimiser step for both terms, or two in turn, as MME (Saito et al. 2019) does it; the
    paper is silent."""

    def refresh(self, outputs: Outputs, round: int) -> dict[str, Tensor]:
        """Step A: pseudo-labels of all target images, and which of them to trust."""
        confidence, pseudo = outputs.target.softmax(dim=-1).max(dim=-1)
        share = min(self.k0 + round * self.k_step, self.k_max)
        return {
            "pseudo": pseudo,
            "mask": top_share_mask(confidence, pseudo, share, outputs.target.shape[-1]),
        }

    def phases(self) -> tuple[Phase, ...]:
        if self.updates == "one" or not self.minimax:
            return (Phase(self.losses),)
        return Phase(replace(self, minimax=False).losses), Phase(self.entropy_alone)

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """Step B."""
        fs, ft = join_domains(net, batch)
        terms = {"label": cross_entropy(net["head"](fs), batch.ys)}
        if self.self_training:
            pseudo, mask = state["pseudo"][batch.it], state["mask"][batch.it]
            terms["self"] = cross_entropy(net["head"](ft), pseudo, weight=mask)
        if self.minimax:
            # C climbs the entropy; the reversal lets F descend it.
            terms["entropy"] = -self.alpha * entropy(net["head"](reverse_grad(ft)))
        return terms

    def entropy_alone(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        """The second of two updates."""
        _, ft = join_domains(net, batch)
        return {"entropy": -self.alpha * entropy(net["head"](reverse_grad(ft)))}
