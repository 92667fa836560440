"""One contract for all methods, as scikit-learn's `check_estimator` is for estimators."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from askew.core import random
from askew.core.options import options
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData
from askew.methods.base import Batch, Losses, Method, Shape, State
from askew.nets.network import Net, build, new_head
from askew.nets.spec import NetSpec
from askew.training.batches import Feed
from askew.training.lanes import Call, float_options
from askew.training.loop import NetworkOutputs
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.trainer import fit

ROWS, WIDTH, CLASSES = 24, 6, 3


def check_method(method: Method) -> None:
    """Hold a method to its contract on a tiny study; AssertionError says in one sentence what is wrong.

    Losses are finite named scalars, every part learns, lanes under `torch.func.vmap` equal serial runs, the same
    seed gives the same numbers, float hyper-parameters may be tensors, and each hyper-parameter is explained.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a method may well find that this network has learnt nothing
        torch.manual_seed(0)
        _check_options(method)
        lanes = [_lane(method, seed) for seed in (0, 1)]
        _check_losses(method, lanes[0])
        _check_lanes(method, lanes)
        _check_repeats(method)


class _Lane(NamedTuple):
    """One of several runs that train side by side: its network, and what its losses take."""

    net: Net
    batch: Batch
    state: State
    t: Tensor


def _expect(method: Method, truth: bool | Tensor, otherwise: str) -> None:
    if not truth:
        raise AssertionError(f"The method {type(method).__name__}: {otherwise}.")


@contextmanager
def _running(method: Method, what: str) -> Iterator[None]:
    """Turn whatever a method raises into a sentence that says where."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        _expect(method, False, f"{what} raised {type(error).__name__} ({reason})")


def _check_options(method: Method) -> None:
    for option in options(type(method)).values():
        _expect(method, bool(option.help), f"the hyper-parameter '{option.name}' has no help text below it")


def _study(seed: int) -> TrainingData:
    """Rows around one point a class; the target's are moved."""
    y = np.arange(ROWS) % CLASSES
    noise = np.random.default_rng(seed).standard_normal((4, ROWS, WIDTH))
    x = (np.eye(CLASSES, WIDTH)[y] + 0.3 * noise + np.array([0, 0, 0.5, 0.5])[:, None, None]).astype(np.float32)
    return TrainingData(Labeled(x[0], y), Labeled(x[1], y), Unlabeled(x[2]), Unlabeled(x[3]), tuple("abc"))


def _lane(method: Method, seed: int) -> _Lane:
    """A network at the start of its second round; predictions and refresh are checked on the way."""
    feed = Feed(_study(seed), torch.device("cpu"))
    spec = NetSpec(name="mlp", head=method.head)
    parts, width = build(spec, (WIDTH,), CLASSES, seed)
    with _running(method, "parts"):
        shape = Shape(width, CLASSES, lambda: new_head(spec, width, CLASSES))
        net = Net(parts | method.parts(shape), width, split_norm=False)
    net.share_step_key()
    net.set_step_key(torch.tensor(random.key("check", seed)))
    outputs = NetworkOutputs(lambda domain: method.predict(net.eval(), domain.x), feed, "balanced")
    with torch.no_grad():
        with _running(method, "predict"):
            sound = outputs.target.shape == (ROWS, CLASSES) and outputs.target.isfinite().all()
        _expect(method, sound, "predict does not return one finite logit a row and class")
        with _running(method, "refresh"):
            first, second = method.refresh(outputs, 0), method.refresh(outputs, 1)
    state = first | second
    for name, value in state.items():
        sound = isinstance(value, Tensor) and value.isfinite().all()
        _expect(method, sound, f"the entry '{name}' of refresh is not a finite tensor")
        same = name in first and getattr(first[name], "shape", None) == value.shape
        _expect(method, same, f"the entry '{name}' of refresh changes its shape from round to round")
    rows = torch.arange(ROWS)
    return _Lane(net.train(), feed.batch(rows, rows.flip(0)), state, torch.tensor((1 + seed) / 4))


def _check_losses(method: Method, lane: _Lane) -> None:
    """Finite named scalars at any progress, and a gradient for every part."""
    idle = set(lane.net)
    named: set[str] = set()
    for number, phase in enumerate(method.phases()):
        trained = set(lane.net if phase.trains is None else phase.trains)
        strange = sorted(trained - set(lane.net))
        _expect(method, not strange, f"phase {number} trains {strange}, which the network does not have")
        for t in (0.0, 1.0, 0.5):
            with _running(method, f"losses of phase {number}"):
                losses = phase.losses(lane.net, lane.batch, lane.state, torch.tensor(t))
            _expect(method, len(losses) > 0, f"phase {number} has no loss")
            twice = sorted(named & set(losses))
            _expect(method, not twice, f"phase {number} names its loss {twice} as an earlier phase does")
            for name, value in losses.items():
                what = f"the loss '{name}' of phase {number}"
                _expect(method, isinstance(value, Tensor) and value.ndim == 0, f"{what} is not a scalar tensor")
                _expect(method, value.isfinite(), f"{what} is not finite at t = {t:g}")
                _expect(method, value.requires_grad, f"{what} has no gradient")
        named |= set(losses)
        for name, value in _values(losses, dict(lane.net.named_parameters())).items():
            _expect(method, value.isfinite().all(), f"{name} of phase {number} is not finite")
            idle -= {part for part in trained if name.startswith(f"∂{part}.") and value.any()}
    _expect(method, not idle, f"no phase has a gradient for {sorted(idle)}")


def _values(losses: Losses, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Losses by name, and as ∂name the gradient of their sum, which over lanes is each lane's own."""
    grads = torch.autograd.grad(torch.stack([*losses.values()]).sum(), [*params.values()], materialize_grads=True)
    return losses | {f"∂{name.removeprefix('net.')}": g for name, g in zip(params, grads, strict=True)}


def _check_lanes(method: Method, lanes: list[_Lane]) -> None:
    """Lanes at once, their float hyper-parameters tensors, equal each by itself in values and gradients."""
    modules = [Call(lane.net) for lane in lanes]
    batches = Batch(*(torch.stack(entry) for entry in zip(*(lane.batch for lane in lanes), strict=True)))
    states = {name: torch.stack([lane.state[name] for lane in lanes]) for name in lanes[0].state}
    hyper = {name: torch.tensor([float(getattr(method, name))] * len(lanes)) for name in float_options(method)}
    for number, phase in enumerate(method.phases()):

        def one(params: Losses, buffers: Losses, hyper: Losses, *rest: object, number: int = number) -> Losses:
            own = dataclasses.replace(method, **hyper).phases()[number]
            losses: Losses = functional_call(modules[0], (params, buffers), (own.losses, *rest))
            return losses

        params, buffers = stack_module_state(modules)  # copies: batch statistics of the networks stay as they are
        with _running(method, f"losses of phase {number} under torch.func.vmap, with floats as tensors,"):
            together = vmap(one)(params, buffers, hyper, batches, states, torch.stack([lane.t for lane in lanes]))
        stacked = _values(together, params)
        for i, lane in enumerate(lanes):
            for name, value in _values(phase.losses(*lane), dict(lane.net.named_parameters())).items():
                close = (stacked[name][i] - value).norm() <= 1e-5 + 1e-3 * value.norm()
                _expect(method, close, f"{name} of phase {number} is another under torch.func.vmap than alone")


def _check_repeats(method: Method) -> None:
    training_data, cpu = _study(0), torch.device("cpu")
    plan = (Stage(method, rounds=2, round_steps=2, optim=Optim()),)
    net = NetSpec(name="mlp", head=method.head)
    run = Run(
        "check", "natural", 0, training_data.origin, net, plan, 8, "balanced", "natural", "float32", seed=0, threads=1
    )
    with _running(method, "training for four steps"):
        *_, first = fit(run, training_data, cpu)
        *_, again = fit(run, training_data, cpu)  # torch's own chance has moved on: whoever uses it is found out
    same = first.losses == again.losses and all(torch.equal(w, again.weights()[n]) for n, w in first.weights().items())
    _expect(method, same, "the same seed does not give the same numbers; take chance from askew.core.random")
