"""Heads: from features to logits, or to whether an image is of the source or of the target."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.nets.layers import Dropout, Linear


class LinearHead(Linear):
    """logits = W f + b."""

    def set_weight(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take these weights. (c, d), (c,)"""
        with torch.no_grad():
            self.weight.copy_(weight)
            self.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)


class CosineHead(nn.Module):
    """logits_i = f·w_i / (T‖f‖): prototypes w_i, not normalised, no bias (Tan et al. 2020, section
    3.2)."""

    def __init__(self, width: int, classes: int, temperature: float) -> None:
        super().__init__()
        self.prototypes = nn.Linear(width, classes, bias=False)
        self.temperature = temperature

    def set_weight(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Take these prototypes, which have no bias. (c, d)"""
        if bias is not None:
            raise UserError(
                "The method's head has an offset, which a cosine head has not.", "-t head=linear."
            )
        with torch.no_grad():
            self.prototypes.weight.copy_(weight)

    def forward(self, f: Tensor) -> Tensor:
        logits: Tensor = self.prototypes(F.normalize(f, dim=-1)) / self.temperature
        return logits


class Critic(nn.Module):
    """Tells source from target: two hidden layers with ReLU and dropout, one logit per row. (n, d)
    → (n,)

    Each critic of a method has a number of its own, so that their dropout masks differ.
    """

    def __init__(self, width: int, hidden: int, number: int = 0) -> None:
        super().__init__()
        layers = [
            Linear(width, hidden),
            nn.ReLU(),
            Dropout(0.5, 1000 + 2 * number),
            Linear(hidden, hidden),
            nn.ReLU(),
            Dropout(0.5, 1001 + 2 * number),
            Linear(hidden, 1),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, f: Tensor) -> Tensor:
        logit: Tensor = self.layers(f)
        return logit.squeeze(-1)


class ConditionalCritic(nn.Module):
    """A critic on f ⊗ p, features times class probabilities (Long et al. 2018). (n, d), (n, c) →
    (n,)

    Where d·c is more than `most`, on (R f) ⊙ (S p)/√m with fixed random R, S to m columns, whose
    inner products are the same in expectation.
    """

    def __init__(
        self, width: int, classes: int, hidden: int, most: int = 4096, columns: int = 1024
    ) -> None:
        super().__init__()
        self.random = width * classes > most
        if self.random:
            self.register_buffer("map_f", torch.randn(width, columns))
            self.register_buffer("map_p", torch.randn(classes, columns))
        self.scale = columns**-0.5
        self.critic = Critic(columns if self.random else width * classes, hidden)

    map_f: Tensor
    map_p: Tensor

    def forward(self, f: Tensor, p: Tensor) -> Tensor:
        joint = (
            (f @ self.map_f) * (p @ self.map_p) * self.scale
            if self.random
            else (p[:, :, None] * f[:, None, :])
        )
        logit: Tensor = self.critic(joint.flatten(1))
        return logit
