"""The contract that every method keeps, as scikit-learn's `check_estimator` checks that of
estimators."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils._pytree import tree_map

from askew.core import random
from askew.core.options import options
from askew.core.plugins import load_function
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData
from askew.methods.base import Batch, ClosedForm, Losses, Method, State, new_net
from askew.nets.augment import Views
from askew.nets.network import Net
from askew.nets.spec import NetworkSpec
from askew.training.batches import Feed, with_views
from askew.training.lane_groups import Call, float_options
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import NetworkOutputs
from askew.training.trainer import fit

ROWS, WIDTH, CLASSES = 24, 6, 3


def check_method(method: Method, *, strict: bool = True) -> None:
    """Check a method against the contract on a tiny task; AssertionError tells in one sentence what
    is wrong.

    Losses are finite named scalars that depend on their arguments alone, several runs under
    `torch.func.vmap` equal each run by itself, the same seed gives the same weights, and float
    hyper-parameters may be tensors. If `strict`, every part of the network gets a gradient, and
    each hyper-parameter has a help text.

    >>> askew.methods.check_method(COAL(alpha=0.3))
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a method may warn, rightly, that this network has learnt nothing
        torch.manual_seed(0)
        if strict:
            _check_help_texts(method)
        if method.runner:  # only its runner knows what it trains
            _check_runner(method)
            return
        if isinstance(method, ClosedForm):  # it has no losses
            _check_training(method)
            return
        lanes = [_lane(method, seed) for seed in (0, 1)]
        idle = _check_losses(method, lanes[0])
        _expect(method, not (idle and strict), f"no phase has a gradient for {sorted(idle)}")
        _check_determinism(method, lanes[0])
        _check_lanes(method, lanes)
        _check_training(method)


class _Lane(NamedTuple):
    """One of several runs that are trained in one step: its network, and the arguments of its
    losses."""

    net: Net
    batch: Batch
    state: State
    t: Tensor


def _expect(method: Method, condition: bool | Tensor, otherwise: str) -> None:
    if not condition:
        raise AssertionError(f"The method {type(method).__name__}: {otherwise}.")


@contextmanager
def _calling(method: Method, what: str) -> Iterator[None]:
    """Turn whatever a method raises into a sentence that tells where."""
    try:
        yield
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        _expect(method, False, f"{what} raised {type(error).__name__} ({reason})")


def _check_help_texts(method: Method) -> None:
    try:
        inspect.getsource(type(method))
    except (
        OSError,
        TypeError,
    ):  # defined in `python -` or in a notebook, where help texts cannot be read
        return
    for option in options(type(method)).values():
        _expect(
            method,
            bool(option.help),
            f"the hyper-parameter '{option.name}' has no help text below it",
        )


def _check_runner(method: Method) -> None:
    with _calling(method, f"loading its runner {method.runner}"):
        run = load_function(method.runner)
    takes = len(inspect.signature(run).parameters)
    _expect(method, takes == 3, f"its runner {method.runner} does not take (run, task, how)")


def _training_data(seed: int) -> TrainingData:
    """Rows around one point per class; those of the target are shifted."""
    y = np.arange(ROWS) % CLASSES
    noise = np.random.default_rng(seed).standard_normal((4, ROWS, WIDTH))
    x = (
        np.eye(CLASSES, WIDTH)[y] + 0.3 * noise + np.array([0, 0, 0.5, 0.5])[:, None, None]
    ).astype(np.float32)
    return TrainingData(
        source=Labeled(x[0], y),
        source_val=Labeled(x[1], y),
        target=Unlabeled(x[2]),
        test_images=Unlabeled(x[3]),
        classes=tuple("abc"),
    )


def _lane(method: Method, seed: int) -> _Lane:
    """A network at the start of its second round; `parts`, `predict` and `refresh` are checked on
    the way."""
    feed = Feed(_training_data(seed), torch.device("cpu"))
    spec = NetworkSpec(layers="mlp", head=method.head)
    with _calling(method, "parts"):
        net = new_net(spec, method, (WIDTH,), CLASSES, seed)
    net.share_step_key()
    key = torch.tensor(random.key("check", seed))
    net.set_step_key(key)
    state = _refreshed(
        method,
        NetworkOutputs(lambda domain: method.predict(net.eval(), domain.x), feed, "balanced"),
    )
    rows = torch.arange(ROWS)
    batch = with_views(feed.batch(rows, rows.flip(0)), method, key, Views(views="rows"), 0)
    return _Lane(net.train(), batch, state, torch.tensor((1 + seed) / 4))


@torch.no_grad()
def _refreshed(method: Method, outputs: NetworkOutputs) -> State:
    """The state after two refreshes: finite tensors whose shapes stay as they are."""
    with _calling(method, "predict"):
        valid = outputs.target.shape == (ROWS, CLASSES) and outputs.target.isfinite().all()
    _expect(method, valid, "predict does not return one finite logit per row and class")
    with _calling(method, "refresh"):
        first, second = method.refresh(outputs, 0), method.refresh(outputs, 1)
    state = first | second
    for name, value in state.items():
        valid = isinstance(value, Tensor) and value.isfinite().all()
        _expect(method, valid, f"the entry '{name}' of refresh is not a finite tensor")
        same = name in first and getattr(first[name], "shape", None) == value.shape
        _expect(
            method, same, f"the entry '{name}' of refresh changes its shape from round to round"
        )
    return state


def _check_losses(method: Method, lane: _Lane) -> set[str]:
    """Finite named scalars with finite gradients at any progress; returns the parts without a
    gradient."""
    idle = {name for name, part in lane.net.items() if any(True for _ in part.parameters())}
    named: set[str] = set()
    for number, phase in enumerate(method.phases()):
        trained = set(lane.net if phase.trains is None else phase.trains)
        unknown = sorted(trained - set(lane.net))
        _expect(
            method, not unknown, f"phase {number} trains {unknown}, which the network does not have"
        )
        for t in (0.0, 1.0, 0.5):
            with _calling(method, f"losses of phase {number}"):
                losses = phase.losses(lane.net, lane.batch, lane.state, torch.tensor(t))
            _check_scalars(method, losses, number, t)
        twice = sorted(named & set(losses))
        _expect(
            method, not twice, f"phase {number} names its loss {twice} as an earlier phase does"
        )
        named |= set(losses)
        for name, value in _values(losses, dict(lane.net.named_parameters())).items():
            _expect(method, value.isfinite().all(), f"{name} of phase {number} is not finite")
            idle -= {part for part in trained if name.startswith(f"∂{part}.") and value.any()}
    return idle


def _check_scalars(method: Method, losses: Losses, number: int, t: float) -> None:
    _expect(method, len(losses) > 0, f"phase {number} has no loss")
    for name, value in losses.items():
        what = f"the loss '{name}' of phase {number}"
        _expect(
            method, isinstance(value, Tensor) and value.ndim == 0, f"{what} is not a scalar tensor"
        )
        _expect(method, value.isfinite(), f"{what} is not finite at t = {t:g}")
        _expect(method, value.requires_grad, f"{what} has no gradient")


def _check_determinism(method: Method, lane: _Lane) -> None:
    """Losses depend on their arguments alone (the network's buffers are some): not on a global
    random generator."""
    for number, phase in enumerate(method.phases()):
        calls = []
        before = {name: value.clone() for name, value in lane.net.named_buffers()}
        for seed in (1, 2):
            torch.manual_seed(seed)
            for (
                name,
                value,
            ) in lane.net.named_buffers():  # moving statistics, say, are part of the arguments
                value.copy_(before[name])
            with _calling(method, f"losses of phase {number}"):
                calls.append(phase.losses(*lane))
        for name, value in calls[0].items():
            _expect(
                method,
                name in calls[1] and torch.equal(value, calls[1][name]),
                f"the loss '{name}' of phase {number} differs between two calls with the same "
                "arguments, as with "
                "torch.randn, so that a run would not repeat bit for bit; draw random numbers "
                "with askew.core.random",
            )


def _values(losses: Losses, params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Losses by name, and as ∂name the gradient of their sum; of stacked lanes, each lane's own."""
    grads = torch.autograd.grad(
        torch.stack([*losses.values()]).sum(), [*params.values()], materialize_grads=True
    )
    return losses | {
        f"∂{name.removeprefix('net.')}": g for name, g in zip(params, grads, strict=True)
    }


def _check_lanes(method: Method, lanes: list[_Lane]) -> None:
    """Stacked lanes, their float hyper-parameters tensors, equal each lane by itself in values and
    gradients."""
    modules = [Call(lane.net) for lane in lanes]
    batches = tree_map(lambda *entries: torch.stack(entries), *(lane.batch for lane in lanes))
    states = {name: torch.stack([lane.state[name] for lane in lanes]) for name in lanes[0].state}
    hyper = {
        name: torch.tensor([float(getattr(method, name))] * len(lanes))
        for name in float_options(method)
    }
    for number, phase in enumerate(method.phases()):

        def one(
            params: Losses, buffers: Losses, hyper: Losses, *rest: object, number: int = number
        ) -> Losses:
            own = dataclasses.replace(method, **hyper).phases()[number]
            losses: Losses = functional_call(modules[0], (params, buffers), (own.losses, *rest))
            return losses

        params, buffers = stack_module_state(
            modules
        )  # copies: batch statistics of the networks stay as they are
        with _calling(
            method, f"losses of phase {number} under torch.func.vmap, with floats as tensors,"
        ):
            together = vmap(one)(
                params, buffers, hyper, batches, states, torch.stack([lane.t for lane in lanes])
            )
        stacked = _values(together, params)
        for i, lane in enumerate(lanes):
            for name, value in _values(
                phase.losses(*lane), dict(lane.net.named_parameters())
            ).items():
                close = (stacked[name][i] - value).norm() <= 1e-5 + 1e-3 * value.norm()
                _expect(
                    method,
                    close,
                    f"{name} of phase {number} differs under torch.func.vmap from a run by itself",
                )


def _check_training(method: Method) -> None:
    """Four steps, twice: the same seed gives the same losses and weights."""
    training_data, cpu = _training_data(0), torch.device("cpu")
    plan = (Stage(method=method, rounds=2, round_steps=2, optim=Optim()),)
    net = NetworkSpec(layers="mlp", head=method.head)
    run = Run(
        task="check",
        shift="natural",
        draw=0,
        origin=training_data.origin,
        net=net,
        plan=plan,
        batch=8,
        sampler="balanced",
        target_sampler="natural",
        precision="float32",
        seed=0,
        threads=1,
    )
    with _calling(method, "training for four steps"):
        *_, first = fit(run, training_data, cpu)
        *_, second = fit(
            run, training_data, cpu
        )  # torch's global generator has moved on: a draw from it shows
    weights = second.weights()
    same = first.losses == second.losses and all(
        torch.equal(w, weights[n]) for n, w in first.weights().items()
    )
    _expect(
        method,
        same,
        "the same seed does not give the same weights; draw random numbers with askew.core.random",
    )
