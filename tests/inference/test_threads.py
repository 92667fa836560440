"""Models predict in many threads at once what they predict in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_models import EMBEDDED, card, images, predictor, rows, shallow_resnets, weights

from askew.inference.predictor import Predictor
from askew.methods import SourceOnly
from askew.nets import forward
from askew.nets.adabn import domain_norms
from askew.nets.backbones import build_backbone
from askew.nets.embedding import Embedding
from askew.nets.forward import fast_backbones
from askew.nets.network import with_source_statistics

Domain = Literal["source", "target"]
THREADS, TIMES = 8, 6
IMAGE = (3, 40, 40)


def in_threads(call: Callable[[int], NDArray[Any]]) -> list[list[NDArray[Any]]]:
    """What each of the threads, which all start together, finds each time."""
    start = Barrier(THREADS)

    def work(thread: int) -> list[NDArray[Any]]:
        start.wait()
        return [call(thread) for _ in range(TIMES)]

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def moved(model: Predictor, prefix: str) -> Predictor:
    """The same with other statistics under some names, so that the sets differ clearly."""
    state = {
        name: value * 1.5 + 0.3 if name.rpartition(".")[2].startswith(prefix) else value
        for name, value in model.weights.items()
    }
    return Predictor(model.card, state, "cpu")


def split(net: str, shape: tuple[int, ...], **how: Any) -> Predictor:
    """A model with batch statistics of each domain."""
    of = card(net, shape, SourceOnly(), **how)
    state = with_source_statistics(weights(of))
    of = dataclasses.replace(of, net=dataclasses.replace(of.net, norm="split"))
    return moved(Predictor(of, state, "cpu"), "source_running")


MODELS: dict[str, Callable[[], Predictor]] = {
    "rows": predictor,
    "backbone": lambda: predictor("resnet18+mlp", IMAGE),
    "fine-tuned backbone": lambda: predictor("resnet18", IMAGE),
    "both statistics": lambda: moved(
        predictor("resnet18+mlp", IMAGE, corners=True, **EMBEDDED), "original_running"
    ),
    "split": lambda: split("mlp", (8,)),
    "split, both statistics": lambda: split("resnet18+mlp", IMAGE, corners=True, **EMBEDDED),
}


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_eight_threads_predict_what_one_predicts(
    kind: str, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow_resnets(monkeypatch)
    monkeypatch.setattr(forward, "fast_bfloat16", lambda device: rounded)
    model = MODELS[kind]()
    x = rows(64) if model.card.shape == (8,) else images(4, *IMAGE)
    domains: tuple[Domain, Domain] = ("source", "target")
    wanted = {domain: model.logits(x, domain=domain) for domain in domains}
    before = {name: value.clone() for name, value in model.classifier.state_dict().items()}
    assert (wanted["source"] == wanted["target"]).all() == (not kind.startswith("split"))

    def domain_of(thread: int) -> Domain:
        return "target" if thread else "source"

    found = in_threads(lambda thread: model.logits(x, domain=domain_of(thread)))
    for thread, each in enumerate(found):
        assert all((logits == wanted[domain_of(thread)]).all() for logits in each)
    after = model.classifier.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@torch.no_grad()
def test_threads_that_prepare_a_backbone_do_not_disturb_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shallow_resnets(monkeypatch)
    monkeypatch.setattr(forward, "fast_bfloat16", lambda device: True)
    net, _ = build_backbone(Embedding(backbone="resnet18", statistics="both"), IMAGE)
    norms = domain_norms(net.eval())
    assert norms is not None
    x = torch.from_numpy(images(4, *IMAGE))
    norms.estimate([x])

    def features(thread: int) -> NDArray[Any]:
        with torch.no_grad():
            if thread % 2:
                return np.asarray(net(x))
            with fast_backbones(net, rows=4 if thread % 4 else 0):
                return np.asarray(net(x))

    wanted = [features(thread) for thread in range(THREADS)]
    assert not (wanted[0] == wanted[1]).all(), "one of them is rounded"
    for thread, each in enumerate(in_threads(features)):
        assert all((f == wanted[thread]).all() for f in each)
