"""FixMatch: pseudo-labels of a weak view for a strong one (Sohn et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from askew.core.options import Between, Search
from askew.methods.base import Batch, Losses, Method, State, features_of
from askew.methods.losses import cross_entropy
from askew.nets.network import Net


@dataclass(frozen=True, kw_only=True)
class FixMatch(Method):
    """What the network is sure of on a weak view of a target image is the label of a strong view.

    Assumes: an image keeps its class under the views, which the run has to turn on (`-t views=…`;
        without them both are the image itself); a pre-trained network that is right where it is
        sure. Nothing about q(y), yet frequent classes soon label rare ones: RLSbench draws target
        images evenly by pseudo-label (`-t target_sampler=even`) and adjusts the finished network to
        the estimated target prior (`--reweight`).
    Minimises: E_s CE(h(x), y) + λ·E_t 1[max p(weak x) ≥ τ]·CE(h(strong x), argmax p(weak x)), p =
        softmax(h), a constant to the gradient; the mean is over all target images, sure or not.
        Source images come as strong views.
    Cites: K. Sohn et al., FixMatch: Simplifying Semi-Supervised Learning with Consistency and
        Confidence, NeurIPS 2020; S. Garg et al., RLSbench: Domain Adaptation Under Relaxed Label
        Shift, ICML 2023.
    Use when: random views that keep an image's class exist, and the pre-trained network is right
        where it is sure.
    """

    id = "fixmatch"
    target_views = (0.4, 1.0)

    weight: Annotated[float, Between(0), Search(0.1, 10, log=True)] = 1.0
    """Weight λ of the pseudo-labels."""
    threshold: Annotated[float, Between(0, 1), Search(0.7, 0.99)] = 0.95
    """How sure τ the network must be of a weak view for its label to count."""

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        fs, weak, strong = features_of(net, batch.xs, *batch.target_views)
        confidence, pseudo = net["head"](weak).detach().softmax(dim=-1).max(dim=-1)
        sure = (confidence >= self.threshold).to(confidence.dtype)
        self_training = cross_entropy(net["head"](strong), pseudo, weight=sure)
        return {
            "label": cross_entropy(net["head"](fs), batch.ys),
            "self": self.weight * self_training,
        }
