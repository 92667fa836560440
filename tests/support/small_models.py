"""Models of three classes that were never trained, what to ask them, and how they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import models

from askew.core.errors import UserError
from askew.inference.model_card import ModelCard, TargetPrior
from askew.inference.predictor import Predictor
from askew.methods import COAL
from askew.methods.base import Method
from askew.nets.network import build
from askew.nets.spec import parse_network

EMBEDDED = {"pooling": "gem", "statistics": "both"}
"""As `askew adapt` embeds images, but for corners."""
CLASSES = ("cat", "dog", "<script>'\"")
TRAINING, SOURCE, TARGET = (0.5, 0.3, 0.2), (0.6, 0.2, 0.2), (0.1, 0.2, 0.7)


def card(
    net: str = "mlp", shape: tuple[int, ...] = (8,), rule: Method | None = None, **more: Any
) -> ModelCard:
    priors = {
        "training_prior": TRAINING,
        "source_prior": SOURCE,
        "target_prior": TargetPrior(TARGET, "em", TRAINING, TRAINING),
    }
    how = {name: more.pop(name) for name in ("pooling", "corners", "statistics") if name in more}
    spec = parse_network(net, crop=32)
    if spec.embedding is not None:
        spec = replace(spec, embedding=replace(spec.embedding, **how))
    values: dict[str, Any] = {"net": spec, **priors, "made": {"by": "me"}} | more
    return ModelCard(rule=rule or COAL(), shape=shape, classes=CLASSES, **values)


def weights(of: ModelCard, seed: int = 0) -> dict[str, torch.Tensor]:
    """Of a network as a run saves them, with statistics that are not those of a fresh one."""
    parts, _ = build(of.net, of.shape, len(of.classes), seed)
    rng = torch.Generator().manual_seed(seed)
    state = {
        f"{part}.{n}": t.clone() for part, m in parts.items() for n, t in m.state_dict().items()
    }
    for name, tensor in state.items():
        if "running" in name:
            state[name] = tensor + 0.1 * torch.rand(tensor.shape, generator=rng)
    state["head.weight"] *= 10  # a fresh network hardly tells one input from another
    return state


def predictor(net: str = "mlp", shape: tuple[int, ...] = (8,), **more: Any) -> Predictor:
    of = card(net, shape, **more)
    return Predictor(of, weights(of), "cpu")


def shallow_resnets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Residual networks of a block where there are two: as wide, of the same layers, and twice as
    fast."""

    def shallow(name: str, weights: None) -> models.ResNet:
        assert name == "resnet18"
        return models.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1])

    monkeypatch.setattr(models, "get_model", shallow)


def rows(n: int = 5, width: int = 8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(n, width)).astype(np.float32)


def images(n: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)


def softmax(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as error:
        call()
    assert error.value.sentence.endswith("."), error.value.sentence
    assert error.value.hint
    return error.value.sentence
