"""One run on several processes takes the steps of one: this process leads, a second one follows."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import TINY, Command, rows
from forked import forks
from parity import assert_same_steps
from torch import Tensor
from toy_data import stripes, training_data_of
from trained import TRAINED, small

from askew.core.errors import UserError
from askew.data.task import TrainingData
from askew.evaluation.priors import UnsurePriorWarning
from askew.methods import SourceOnly
from askew.nets import forward
from askew.nets.augment import Views
from askew.nets.layers import Crop, Dropout
from askew.nets.spec import parse_network
from askew.training import distributed
from askew.training.distributed import Team, fit_together, own_device, serve
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.snapshot import Checkpoint, NotFinite, Snapshot
from askew.training.trainer import Resume, fit

CPU = torch.device("cpu")
PATIENCE = datetime.timedelta(seconds=300)
"""Before a process that waits for another in vain fails."""
PORTION = 16
"""Rows predicted at a time, so that each process has some."""
SHARE = 2e-3
"""Of a step: sums are of two halves."""
LARGER_SHARE = 2e-2
"""The same where rounding is enlarged: Adam turns weights whose gradient is hardly more, and in
eighteen layers, each normed over few small pictures, some ReLU is undecided."""


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    """From an untrained network no class prior can be estimated, which BBSE says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsurePriorWarning)
        yield


# --- what both processes know ---


def data_for(net: str) -> TrainingData:
    return training_data_of(
        *(rows(n, n / 100, n) if net == "mlp" else stripes(n, n) for n in (90, 30, 61, 32))
    )


def run_of(
    method: str,
    net: str = "mlp",
    batch: int = 7,
    *,
    rounds: int = 2,
    lr: float = 0.01,
    views: str = "none",
    target_sampler: str = "natural",
    optimiser: str = "sgd",
    params: dict[str, Any] | None = None,
    **spec: Any,
) -> Run:
    """Steps with a refresh before each."""
    chosen = small(method, **params or {})
    optim = Optim(optimiser=optimiser, lr=lr, features_lr=lr)  # type: ignore[arg-type]
    return Run(
        task="toy",
        shift="natural",
        draw=0,
        origin=net,
        net=parse_network(net, head=chosen.head, **spec),
        plan=(
            Stage(method=SourceOnly(), rounds=1, round_steps=5, optim=optim),
            Stage(
                method=chosen, rounds=rounds, round_steps=1, optim=optim, restart=chosen.restarts
            ),
        ),
        batch=batch,
        sampler="balanced",
        target_sampler=target_sampler,  # type: ignore[arg-type]
        precision="float32",
        seed=0,
        threads=1,
        views=Views(views=views),  # type: ignore[arg-type]
    )


def taught(net: str, views: str) -> Run:
    """The teacher as it is trained, and sure of what it says, so that its agreement counts."""
    how: dict[str, Any] = {
        "norm": "split",
        "target_sampler": "even",
        "optimiser": "adam",
        "lr": 0.001,
    }
    return run_of("teacher", net, 9, views=views, params={"threshold": 0.4}, **how)


PICTURES = run_of("coal", "mini", batch=9)
OTHERS = {
    "domains normed apart": run_of("dann", norm="split"),
    "a balanced target": run_of("dan", target_sampler="balanced"),
    "torchvision's network, cropped": run_of("dann", "resnet18", batch=5, rounds=1, crop=24),
    "a teacher, views of rows": taught("mlp", "rows"),
    "a teacher, views of pictures": taught("mini", "affine+intensity"),
}
BROKEN = run_of("source", lr=1e25, rounds=4)
METHOD_RUNS = {method: run_of(method) for method in TRAINED}
RUNS = {run.key: run for run in (PICTURES, BROKEN, *OTHERS.values(), *METHOD_RUNS.values())}


def find(key: str) -> tuple[Run, TrainingData]:
    return RUNS[key], data_for(RUNS[key].origin)


def join(rank: int, store: Path) -> Team:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=PATIENCE
    )
    return Team(rank, 2)


def follower(store: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UnsurePriorWarning)
    forward.PREDICT_ROWS = PORTION
    team = join(1, store)
    serve(team, find)
    team.part()


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Two processes, of which this is the first; all tests pass through the one group, one after
    another."""
    store = tmp_path_factory.mktemp("team") / "store"
    other = forks.Process(target=follower, args=(store,), daemon=True)
    other.start()
    team = join(0, store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward, "PREDICT_ROWS", PORTION)
        yield team
    team.part()
    other.join(PATIENCE.total_seconds())
    ended = other.exitcode
    other.kill()
    assert ended == 0, "the other process was not let go"


# --- equal to one process ---


def started(run: Run) -> Checkpoint:
    """The weights that its pre-training leaves, trained by this process alone."""
    assert run.before is not None
    *_, last = fit(run.before, data_for(run.origin), CPU)
    return copied(last.weights())


def copied(tensors: Checkpoint) -> Checkpoint:
    return {name: value.clone() for name, value in tensors.items()}


def assert_takes_the_steps_of_one_process(team: Team, run: Run, start: Checkpoint | None) -> None:
    training_data = data_for(run.origin)
    *_, one = fit(run, training_data, CPU, start=start)
    *_, two = fit_together(team, run, training_data, CPU, start=start)
    assert two.step == run.plan[-1].steps
    assert_same(run, {} if start is None or run.plan[-1].restart else start, one, two)


def assert_same(run: Run, begun: Checkpoint, one: Snapshot, two: Snapshot) -> None:
    """The whole checkpoint, the losses, and what the network says of domains that are predicted in
    shares."""
    adam = run.plan[-1].optim.optimiser != "sgd"
    rough = adam or run.net.name == "resnet18"
    assert_same_steps(
        begun, one.checkpoint(), two.checkpoint(), LARGER_SHARE if rough else SHARE, adam=adam
    )
    assert one.losses == pytest.approx(two.losses, rel=1e-3, abs=1e-5)
    for name in ("test", "target", "source_val"):
        ours, theirs = getattr(two.outputs, name), getattr(one.outputs, name)
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0.05 if rough else 1e-3)


def test_steps_of_coal_on_pictures_with_a_refresh_between_are_those_of_one_process(
    team: Team,
) -> None:
    assert_takes_the_steps_of_one_process(team, PICTURES, started(PICTURES))


@pytest.mark.parametrize("method", TRAINED)
def test_every_method_takes_the_steps_of_one_process_though_rows_do_not_divide(
    team: Team, method: str
) -> None:
    run = METHOD_RUNS[method]
    assert_takes_the_steps_of_one_process(team, run, started(run))


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_samplers_and_views_too(team: Team, name: str) -> None:
    run = OTHERS[name]
    assert_takes_the_steps_of_one_process(
        team, run, None if run.net.name == "resnet18" else started(run)
    )


def test_a_run_begun_by_one_process_goes_on_with_two(team: Team) -> None:
    run = METHOD_RUNS["dann"]
    training_data = data_for(run.origin)
    snapshots = fit(run, training_data, CPU)
    half = next(snapshots)
    resume = Resume(half.step, copied(half.checkpoint()), list(half.losses))
    *_, one = snapshots
    *_, two = fit_together(team, run, training_data, CPU, resume=resume)
    assert (half.step, two.step) == (1, 2)
    assert_same(run, copied(resume.tensors), one, two)


def test_numbers_that_are_not_finite_end_a_run_and_not_the_team(team: Team) -> None:
    with pytest.raises(NotFinite):
        list(fit_together(team, BROKEN, data_for("mlp"), CPU))
    *_, last = fit_together(team, METHOD_RUNS["source"], data_for("mlp"), CPU)
    assert last.step == 2


# --- a process's share ---


@pytest.mark.parametrize(("n", "size"), [(8, 2), (7, 2), (10, 4), (3, 3), (64, 5)])
def test_shares_cover_all_rows_in_order_and_differ_by_one_at_most(n: int, size: int) -> None:
    shares = [range(n)[Team(rank, size).share(n)] for rank in range(size)]
    assert [row for share in shares for row in share] == list(range(n))
    assert {len(share) for share in shares} <= {n // size, -(-n // size)}


def in_shares(layer: Dropout | Crop, x: Tensor, each: int = 1) -> Tensor:
    """What processes make of their rows of x, `each` rows of x being one of the batch."""
    n = len(x) // each
    parts = []
    for rank in range(3):
        share = Team(rank, 3).share(n)
        layer.share = (share.start, share.stop - share.start)
        parts.append(layer(x[each * share.start : each * share.stop]))
    return torch.cat(parts)


@pytest.mark.parametrize("whole_rows", [False, True])
@pytest.mark.parametrize("each", [1, 4])
def test_dropout_of_a_share_is_that_of_the_batch(whole_rows: bool, each: int) -> None:
    layer = Dropout(0.5, 1, whole_rows)
    layer.step_key.fill_(12345)
    x = torch.ones(8 * each, 3, 5)
    whole = layer(x)
    assert 0 < (whole == 0).float().mean() < 1
    assert torch.equal(in_shares(layer, x, each), whole)


def test_crops_of_a_share_are_those_of_the_batch() -> None:
    layer = Crop(6)
    layer.step_key.fill_(12345)
    x = torch.arange(8 * 3 * 9 * 9).view(8, 3, 9, 9)
    whole = layer(x)
    assert len({int(row[0, 0, 0]) % 81 for row in whole}) > 3, "places differ"
    assert torch.equal(in_shares(layer, x), whole)


# --- what a user does wrong ---


def test_a_batch_smaller_than_the_team_is_refused() -> None:
    with pytest.raises(UserError, match="8 processes cannot share batches of 7 images"):
        next(fit_together(Team(0, 8), METHOD_RUNS["coal"], data_for("mlp"), CPU))


def test_a_process_cannot_be_given_a_certain_gpu() -> None:
    with pytest.raises(UserError, match="found --device cuda:1"):
        own_device("cuda:1")


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes for 1 GPUs"):
        own_device("cuda")


def test_a_process_that_torchrun_did_not_start_is_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # some clusters set it for everybody
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with distributed.together() as team:
        assert team is None


# --- from the command line ---


def torchrun(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    launcher = Path(sys.executable).with_name("torchrun")
    command = [launcher, "--standalone", "--nproc-per-node", "2", "-m", "askew", *args]
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.fixture
def signals() -> Iterator[None]:
    """The handlers of this process, which torchrun replaces in its own."""
    kept = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in kept.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def askew(*words: str) -> None:
    """The command line, in a process that torchrun started."""
    from askew.cli import main

    sys.argv = ["askew", *words]
    with contextlib.suppress(SystemExit):  # where it fails, there is no result
        main()


@pytest.mark.usefixtures("signals", "all_test_images")
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torchrun leaves its logs open
def test_processes_started_as_by_torchrun_give_the_scores_of_one(
    tmp_path: Path, cli: Command
) -> None:
    """What `torchrun` does, but its processes fork from one that has torch already; `make soak`
    calls the command."""
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    length = ("-t", "pretrain=4", "-t", "rounds=2", "-t", "round=2", "-t", "batch=16")
    command = ("run", "mini/syn-uci", "--method", "coal", *length, "--device", "cpu", "--json")
    processes = (
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    )
    logs = (
        "--redirects",
        "1",
        "--log-dir",
        str(tmp_path / "logs"),
        "--start-method",
        forks.get_start_method(),
    )
    config, *_ = config_from_args(parse_args([*processes, *logs, "-m", "askew"]))
    elastic_launch(config, askew)(*command, "--out", str(tmp_path / "two"))
    (printed,) = filter(
        None, (file.read_text() for file in (tmp_path / "logs").rglob("stdout.log"))
    )
    assert_scores_of_one_process(
        json.loads(printed), json.loads(cli(*command, "--out", "one").out), tmp_path / "two"
    )


def assert_scores_of_one_process(two: dict[str, Any], one: dict[str, Any], out: Path) -> None:
    assert one["key"] == two["key"]
    for test, scores in one["scores"].items():
        # a picture or two on the edge between two classes may fall to the other side
        assert two["scores"][test]["overall"] == pytest.approx(scores["overall"], abs=0.5)
    record = json.loads((out / two["key"] / "run.json").read_text())
    assert record["processes"] == 2
    assert not record["graph"]


@pytest.mark.soak
@pytest.mark.usefixtures("all_test_images")
def test_torchrun_gives_the_scores_of_one_process(tmp_path: Path, cli: Command) -> None:
    command = ("run", "mini/syn-uci", "--method", "coal", *TINY, "--device", "cpu", "--json")
    done = torchrun(tmp_path, *command, "--out", "two")
    assert done.returncode == 0, done.stderr
    one = json.loads(cli(*command, "--out", "one").out)
    assert_scores_of_one_process(json.loads(done.stdout), one, tmp_path / "two")


@pytest.mark.soak
def test_under_torchrun_a_wrong_wish_is_told_once_and_leaves_nothing(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "run", "mini/syn-uci", "--method", "nonsense")
    assert done.returncode != 0
    assert done.stderr.count("There is no method 'nonsense'") == 1
    assert "hint: " in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
def test_under_torchrun_a_run_that_diverges_is_told_once(tmp_path: Path) -> None:
    done = torchrun(
        tmp_path,
        "run",
        "mini/syn-uci",
        "--method",
        "source",
        *TINY,
        "-t",
        "lr=1e30",
        "--device",
        "cpu",
    )
    assert done.returncode != 0
    assert done.stderr.count("not finite") == 1
    assert not list(tmp_path.glob("runs/*/done"))
