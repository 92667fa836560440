"""Several models as one: the mean of their calibrated logits is a linear head on their features
side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from askew.evaluation.outputs import adjust_logits
from askew.inference.predictor import Predictor
from askew.methods.base import Method
from askew.nets.network import keeps_source_statistics
from askew.nets.small import WHOLE, is_own
from askew.training.run import Run


def joins(run: Run) -> bool:
    """Whether the run's logits are a head on features."""
    return type(run.method).predict is Method.predict


def join(
    models: Sequence[Predictor], temperatures: Sequence[float], weights: Sequence[float]
) -> Predictor:
    """One model that predicts what several do on average, for a uniform class prior.

    z = Σ_i w_i (z_i − log π_i)/T_i / Σ_i w_i with the prior π_i that model i was trained on. z_i is
    a linear head on features, or on features of unit length (a cosine head), so z is a linear head
    on all of them side by side.
    """
    cards, total = [model.card for model in models], sum(weights)
    split = any(keeps_source_statistics(model.weights) for model in models)
    tensors: dict[str, Tensor] = {}
    even = (1 / len(cards[0].classes),) * len(cards[0].classes)
    matrices, bias = [], torch.zeros(len(even), dtype=torch.float64)
    for number, (model, temperature, weight) in enumerate(
        zip(models, temperatures, weights, strict=True)
    ):
        own = with_source_statistics(model.weights) if split else model.weights
        for name, value in own.items():
            if name.startswith("features."):
                tensors[name.replace("features.", f"features.members.{number}.", 1)] = value
        (matrix, offset), share = _linear_head(model), weight / total / temperature
        matrices.append(matrix * share)
        uniform = adjust_logits(
            offset.double().numpy(), np.array(even), np.array(model.card.training_prior)
        )
        bias += torch.from_numpy(uniform * share)
    tensors |= {
        "head.weight": torch.cat(matrices, dim=1),
        "head.bias": (bias - bias.mean()).float(),
    }
    names = [card.net.name + (".unit" if card.net.head == "cosine" else "") for card in cards]
    between = "|" if all(is_own(card.net.name) for card in cards) else WHOLE
    net = dataclasses.replace(
        cards[0].net,
        name=between.join(names),
        head="linear",
        norm="split" if split else "joint",
        last_dropout=True,
    )
    return Predictor(dataclasses.replace(cards[0], net=net, training_prior=even), tensors, "cpu")


def _linear_head(model: Predictor) -> tuple[Tensor, Tensor]:
    """The head as a matrix and an offset. (c, d), (c,)"""
    if model.card.net.head == "cosine":
        matrix = model.weights["head.prototypes.weight"] / model.card.net.temperature
        return matrix, torch.zeros(len(matrix))
    return model.weights["head.weight"], model.weights["head.bias"]


def with_source_statistics(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network with statistics of both domains together has the same for each."""
    own = dict(weights)
    for name, value in weights.items():
        leaf = name.rpartition(".")[2]
        if leaf in ("running_mean", "running_var"):
            own.setdefault(name.removesuffix(leaf) + f"source_{leaf}", value)
    return own
