from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from askew.core.device import pick_device, wide
from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.methods import BSP, COAL, DANN, losses
from askew.methods.base import Method
from askew.training import batches, optim
from askew.training.trainer import fit


@pytest.mark.parametrize("name", ["mps", "cuda", "cuba", "cuda:x", "meta", ""])
def test_a_device_that_cannot_be_used_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError) as caught:
        pick_device(name)
    assert caught.value.hint == "auto, cpu, cuda, cuda:N, or mps."


def test_a_device_that_is_there_is_taken_and_auto_prefers_cuda(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert pick_device("mps").type == "mps"
    for there, chosen in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert pick_device("auto").type == chosen


class NoFloat64(TorchDispatchMode):
    """Refuses what Apple's GPUs have not."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                raise TypeError(f"{func} makes float64")
        return made


@pytest.mark.parametrize("method", [COAL(), BSP(), DANN()])
def test_training_needs_no_float64_where_the_device_has_none(
    method: Method, make_run: Any, training_data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (batches, losses, optim):
        monkeypatch.setattr(module, "wide", lambda _: torch.float32)
    run = make_run(method, pretrain=0, rounds=2, round_steps=2, optimiser="adam")
    run = dataclasses.replace(run, target_sampler="even")
    with NoFloat64():
        *_, last = fit(run, training_data, torch.device("cpu"))
    assert last.outputs.target.isfinite().all()


def test_only_apple_s_gpus_go_without_float64() -> None:
    assert [wide(torch.device(name)) for name in ("cpu", "cuda", "mps")] == [
        torch.float64,
        torch.float64,
        torch.float32,
    ]
