"""What only a GPU can show: captured steps and lanes compute what plain steps compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from parity import UNDECIDED, assert_same_steps
from torch import Tensor
from toy_data import training_data_of
from trained import TRAINED

from askew.core import random
from askew.data.domains import Labeled
from askew.data.task import TrainingData
from askew.methods import SourceOnly, make_method
from askew.methods.base import Batch, Losses, State
from askew.nets.augment import Views, make_view
from askew.nets.network import Net
from askew.nets.spec import parse_network
from askew.nets.triton import trust
from askew.nets.vmap import forms as lane_forms
from askew.runs.config import RunRequest, prepare
from askew.training.batches import Feed
from askew.training.lanes import fit_lanes
from askew.training.loop import NoGraphWarning
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint, Snapshot
from askew.training.trainer import fit, run_net

kernels = pytest.importorskip(
    "askew.nets.triton.kernels", reason="Triton is missing", exc_type=ImportError
)
pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
PUBLISHED = [method for method in TRAINED if method != "teacher"]
"""Those that SGD trains; the teacher has tests of its own below, since Adam makes steps of
rounding."""


@pytest.mark.real_data
@pytest.mark.parametrize("method", PUBLISHED)
@pytest.mark.filterwarnings(
    "ignore::askew.evaluation.priors.UnsurePriorWarning"
)  # from an untrained network no class prior can be estimated
def test_a_captured_graph_trains_to_the_same_weights_as_plain_steps(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = prepare(
        RunRequest(
            task="digits/usps-uci",
            method=method,
            training={"round": 10, "rounds": 2, "pretrain": 0},
        )
    )
    run, task = planned.run, planned.task
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    last = {}
    for graph in (False, True):
        *_, last[graph] = fit(run, task.training_data, torch.device("cuda"), graph=graph)
        assert (last[graph]._trained.captured is not None) == graph
    plain, captured = last[False].weights(), last[True].weights()
    for name, value in plain.items():
        torch.testing.assert_close(captured[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert last[True].losses == pytest.approx(last[False].losses, rel=1e-3, abs=1e-5)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("task", "method", "steps"),
    [
        *(("usps-uci", method, 20) for method in PUBLISHED),
        *(("svhn-mnist", method, 4) for method in ("source", "mcd", "coal")),
    ],
)
@pytest.mark.filterwarnings("ignore::askew.evaluation.priors.UnsurePriorWarning")
def test_a_lane_trains_to_the_same_weights_as_a_run_by_itself(
    task: str, method: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a twentieth of the way that a tensor went: sums are taken in another order, and a ReLU or
    a pool that is undecided takes rounding for an answer, which later steps build on. The larger
    network builds on it so fast (`benchmarks/speed/rounding.py`) that after 20 steps nothing could
    be told; hence its few."""
    training = {"round": steps // 2, "rounds": 2, "pretrain": 0, "precision": "float32"}
    prepared = [
        prepare(RunRequest(task=f"digits/{task}", method=method, seed=seed, training=training))
        for seed in (0, 1)
    ]
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    device = torch.device("cuda")
    runs, training_data = [one.run for one in prepared], prepared[0].task.training_data
    *_, together = fit_lanes(runs, [training_data, training_data], device, starts=[None, None])
    for run, lane in zip(runs, together, strict=True):
        *_, alone = fit(run, training_data, device)
        assert isinstance(lane, Snapshot)
        begun = run_net(run, training_data).state_dict()
        for name, value in alone.weights().items():
            moved = (value.cpu().double() - begun[name].double()).norm()
            apart = (lane.weights()[name].double() - value.double()).norm()
            assert apart < 0.05 * moved + 1e-4 * value.double().norm() + 1e-3, (
                f"{name} is {apart:.2g} apart"
            )
        assert lane.losses == pytest.approx(alone.losses, rel=1e-2, abs=1e-4)


@pytest.mark.real_data
@pytest.mark.parametrize("task", ["usps-uci", "svhn-mnist"])
def test_lanes_in_bfloat16_learn_what_a_run_by_itself_learns(task: str) -> None:
    """Rounded differently from the first step on, so losses are compared, after 200 steps."""
    training = {"round": 100, "rounds": 2, "pretrain": 0, "precision": "bf16"}
    prepared = [
        prepare(RunRequest(task=f"digits/{task}", method="coal", seed=seed, training=training))
        for seed in (0, 1)
    ]
    device = torch.device("cuda")
    data = prepared[0].task.training_data
    *_, together = fit_lanes(
        [one.run for one in prepared], [data, data], device, starts=[None, None]
    )
    for one, lane in zip(prepared, together, strict=True):
        *_, alone = fit(one.run, data, device)
        assert isinstance(lane, Snapshot)
        assert lane.losses["label"] == pytest.approx(alone.losses["label"], rel=0.2, abs=0.02)


@dataclass(frozen=True, kw_only=True)
class Waits(SourceOnly):
    """A method that looks at the device in every step."""

    id = "waits"

    def losses(self, net: Net, batch: Batch, state: State, t: Tensor) -> Losses:
        losses = super().losses(net, batch, state, t)
        return losses | {"seen": 0 * losses["label"] * float(losses["label"].item())}


@pytest.mark.real_data
def test_a_step_that_cannot_be_captured_is_taken_plainly_and_says_why() -> None:
    planned = prepare(
        RunRequest(
            task="digits/usps-uci",
            method="source",
            training={"round": 5, "rounds": 1, "pretrain": 0},
        )
    )
    run, task = planned.run, planned.task
    waits = replace(run, plan=(replace(run.plan[-1], method=Waits()),))
    here = torch.cuda.current_stream()
    with pytest.warns(NoGraphWarning, match="cannot be captured"):
        *_, slow = fit(waits, task.training_data, torch.device("cuda"))
    assert torch.cuda.current_stream() == here
    torch.rand(
        1, device="cuda"
    )  # torch's own generator must not wait for the end of a capture that failed
    *_, plain = fit(run, task.training_data, torch.device("cuda"), graph=False)
    assert slow.losses["label"] == pytest.approx(plain.losses["label"], rel=1e-3)


@pytest.mark.real_data
def test_batches_and_dropout_are_the_same_on_the_gpu_and_on_the_cpu() -> None:
    task = prepare(RunRequest(task="digits/usps-uci", method="coal")).task
    tables = {}
    for name in ("cpu", "cuda"):
        feed = Feed(task.training_data, torch.device(name))
        tables[name] = [
            feed.source_rows("balanced", 0, 7, 50, 32).cpu(),
            feed.source_rows("natural", 0, 7, 50, 32).cpu(),
            feed.target_rows(None, 0, 7, 50, 32).cpu(),
        ]
    for cpu, cuda in zip(tables["cpu"], tables["cuda"], strict=True):
        assert torch.equal(cpu, cuda)


# --- the teacher: views, an average, statistics of each domain, an even target, Adam ---


def patterns(n: int, side: int, channels: int, seed: int) -> Labeled:
    """A bright stripe in a place for each of ten classes, in noise."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 10
    x = rng.integers(0, 156, (n, channels, side, side))
    for k in range(10):
        x[y == k, :, 2 * k + 2 : 2 * k + 5] += 99
    return Labeled(x.astype(np.uint8), y.astype(np.int64))


def data_for(net: str) -> TrainingData:
    side, channels = (28, 1) if net == "digits-28" else (32, 3)
    parts = (patterns(n, side, channels, n) for n in (600, 100, 501, 102))
    return training_data_of(*parts, classes=tuple("0123456789"))


def taught(net: str, data: TrainingData, seed: int, rounds: int = 2, round_steps: int = 1) -> Run:
    """After a little pre-training, steps with a refresh before each; sure of what it says, so that
    all counts."""
    optim = Optim(optimiser="adam", lr=0.001, features_lr=0.001, weight_decay=0.0)
    stages = (
        Stage(method=SourceOnly(), rounds=1, round_steps=20, optim=optim),
        Stage(
            method=make_method("teacher", {"threshold": 0.5}),
            rounds=rounds,
            round_steps=round_steps,
            optim=optim,
        ),
    )
    return Run(
        task="patterns",
        shift="natural",
        draw=0,
        origin=data.origin,
        net=parse_network(net, norm="split", last_dropout=False),
        plan=stages,
        batch=64,
        sampler="balanced",
        target_sampler="even",
        precision="float32",
        seed=seed,
        threads=1,
        views=Views(views="affine" if net == "digits-28" else "affine+intensity"),
    )


def started(run: Run, data: TrainingData) -> Checkpoint:
    assert run.before is not None
    *_, last = fit(run.before, data, CUDA)
    return {name: value.clone() for name, value in last.weights().items()}


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32, and the same kernels whenever the same is asked."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("net", ["digits-28", "digits-32"])
@pytest.mark.usefixtures("exact")
def test_the_captured_step_of_a_teacher_is_its_plain_step(net: str) -> None:
    data = data_for(net)
    run = taught(net, data, 0, round_steps=3)
    start = started(run, data)
    last = {}
    for graph in (False, True):
        *_, last[graph] = fit(run, data, CUDA, start=start, graph=graph)
        assert (last[graph]._trained.captured is not None) == graph
    plain, captured = last[False], last[True]
    assert_same_steps(start, plain.checkpoint(), captured.checkpoint(), 0.01, adam=True)
    assert captured.losses == pytest.approx(plain.losses, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("lanes", [2, 8])
@pytest.mark.parametrize("net", ["digits-28", "digits-32"])
@pytest.mark.usefixtures("exact")
def test_a_lane_of_teachers_takes_the_steps_of_the_run_by_itself(net: str, lanes: int) -> None:
    data = data_for(net)
    runs = [taught(net, data, seed) for seed in range(lanes)]
    starts = [started(run, data) for run in runs]
    *_, together = fit_lanes(runs, [data] * lanes, CUDA, starts=starts)
    for run, start, lane in list(zip(runs, starts, together, strict=True))[:2]:
        *_, alone = fit(run, data, CUDA, start=start)
        assert isinstance(lane, Snapshot)
        assert_same_steps(
            start, alone.checkpoint(), lane.checkpoint(), 0.05, adam=True, undecided=UNDECIDED
        )
        assert lane.losses == pytest.approx(alone.losses, rel=1e-2, abs=1e-4)
        for name in ("target", "source_val"):
            agree = getattr(lane.outputs, name).argmax(dim=1) == getattr(
                alone.outputs, name
            ).argmax(dim=1)
            assert agree.float().mean() > 0.98


@pytest.mark.parametrize("views", ["affine", "affine+intensity", "picture"])
def test_a_view_is_the_same_on_the_gpu_and_on_the_cpu(views: str) -> None:
    x = torch.from_numpy(patterns(16, 32, 3, 0).x)
    keys = random.hash64(random.key("views"), torch.arange(16))
    how = Views(views=views)  # type: ignore[arg-type]
    here, there = (make_view(x.to(device), keys.to(device), how).cpu() for device in ("cpu", CUDA))
    assert (here - there).norm() < 1e-4 * here.norm()


# --- kernels ---

LANES = 3
Form = Callable[..., Tensor]


def close(found: Sequence[Tensor], wanted: Sequence[Tensor], apart: float = 2e-5) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).norm() < apart * b.norm()


@pytest.mark.parametrize(
    ("cin", "cout", "side", "padding", "n"),
    [
        (1, 32, 28, 0, 64),
        (32, 48, 12, 0, 64),  # digits-28
        (3, 64, 32, 2, 64),
        (64, 64, 16, 2, 64),
        (64, 128, 8, 2, 64),  # digits-32
        (3, 20, 12, 2, 6),
        (20, 7, 9, 2, 6),
    ],
)
def test_every_form_of_a_stacked_convolution_is_the_convolution_on_a_gpu_too(
    cin: int, cout: int, side: int, padding: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    x = torch.randn(LANES, n, cin, side, side, device="cuda").transpose(1, 2).requires_grad_()
    weight = torch.randn(LANES, cout, cin, 5, 5, device="cuda", requires_grad=True)
    bias = torch.randn(LANES, cout, device="cuda", requires_grad=True)
    weigh = torch.randn(LANES, cout, n, *[side + 2 * padding - 4] * 2, device="cuda")
    forms: dict[str, Form] = {
        "products": lane_forms.by_products,
        "one by one": lane_forms.one_by_one,
        "groups": lane_forms.grouped,
    }
    for kept in (torch.float32, torch.float16, torch.bfloat16):
        forms[str(kept)] = lambda x, kernel, bias, padding, kept=kept: (
            kernels.Conv.apply(x, kernel, padding, kept) + bias[:, :, None, None, None]
        )
    results = {}
    for name, form in forms.items():
        out = form(x, weight, bias, padding)
        results[name] = [out, *torch.autograd.grad((out * weigh).sum(), [x, weight, bias])]
    # cuDNN is free to take Winograd's way, which rounds more; the images' gradient of few channels
    # is its own too
    allowed = {"one by one": 2e-3, "groups": 2e-3, "torch.float16": 2e-3, "torch.bfloat16": 1e-2}
    if cin % 16 or cout % 16:
        allowed["torch.float32"] = 2e-3
    for name, found in results.items():
        close(found, results["products"], allowed.get(name, 2e-5))


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("side", "pool"),
    [
        (24, (2, 2, 0)),
        (8, (2, 2, 0)),
        (1, (1, 1, 0)),
        (32, (3, 2, 1)),
        (16, (3, 2, 1)),
        (8, (1, 1, 0)),
        (7, (3, 2, 1)),
    ],
)
def test_the_kernels_of_norm_relu_and_pool_are_torchs(
    side: int, pool: lane_forms.Pool, training: bool, last: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(LANES, 48, 64, side, side, device="cuda")
    if last:
        x = x.permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)
    x.requires_grad_()
    weight, bias = (torch.randn(LANES, 48, device="cuda", requires_grad=True) for _ in range(2))
    results = []
    for form in (kernels.NormReluPool.apply, lane_forms.normed):
        mean, var = (
            torch.full((LANES, 48), 0.3, device="cuda"),
            torch.full((LANES, 48), 2.0, device="cuda"),
        )
        out = form(x, weight, bias, mean, var, 0.1, 1e-5, pool, training)
        weigh = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)
        grads = torch.autograd.grad((out * weigh).sum(), [x, weight, bias]) if training else ()
        results.append([out, mean, var, *grads])
    close(*results)


@pytest.mark.parametrize("kept", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("cin", "cout", "side", "padding", "pool"),
    [
        (1, 32, 28, 0, (2, 2, 0)),
        (32, 48, 12, 0, (2, 2, 0)),  # digits-28
        (3, 64, 32, 2, (3, 2, 1)),
        (64, 64, 16, 2, (3, 2, 1)),
        (64, 128, 8, 2, (1, 1, 0)),  # digits-32
    ],
)
def test_a_convolution_with_its_norm_is_torchs_by_kernels_too(
    cin: int,
    cout: int,
    side: int,
    padding: int,
    pool: lane_forms.Pool,
    kept: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients are a millionth of the usual, as at the end of training. A pool that is undecided
    takes rounding for an answer, so that gradients of what is kept in fewer digits are farther
    apart than the digits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    x = torch.randn(LANES, cin, 64, side, side, device="cuda", requires_grad=True)
    kernel = (torch.randn(LANES, cout, cin, 5, 5, device="cuda") / (5 * cin**0.5)).requires_grad_()
    shift, weight, bias = (
        torch.randn(LANES, cout, device="cuda", requires_grad=True) for _ in range(3)
    )
    results = []
    for form in (kernels.ConvNormReluPool.apply, trust._block):
        mean, var = (
            torch.full((LANES, cout), 0.3, device="cuda"),
            torch.full((LANES, cout), 2.0, device="cuda"),
        )
        out = form(
            x, kernel, shift, weight, bias, mean, var, padding, 0.1, 1e-5, pool, True, kept
        ).float()
        weigh = 1e-6 * torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape)
        grads = torch.autograd.grad((out * weigh).sum(), [x, kernel, weight, bias])
        results.append([[out, mean, var], list(grads)])
    value, gradient = {
        torch.float32: (2e-5, 2e-2),
        torch.float16: (1e-3, 1e-1),
        torch.bfloat16: (1e-2, 3e-1),
    }[kept]
    close(results[0][0], results[1][0], value)
    close(results[0][1], results[1][1], gradient)
