"""A toy task of float rows, the command line inside and outside this process, and a cache that all
tests share."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = (
    "1"  # before torch is imported: sums depend on how many threads share them
)

import numpy as np
import pytest
import typer
from hypothesis import settings

if TYPE_CHECKING:  # the process that hands out tests reads this file, too, and needs no torch
    from adaptations import Made

    from askew.data.domains import Labeled
    from askew.data.task import Task, TrainingData
    from askew.methods.base import Method
    from askew.training.run import Run

settings.register_profile(
    "askew", derandomize=True, deadline=None
)  # the same examples everywhere, at any speed
settings.load_profile("askew")

TINY = ("-t", "pretrain=6", "-t", "rounds=2", "-t", "round=4", "-t", "batch=16")
"""Options that make a run take a second."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays to the end: to look for garbage in it takes seconds, and
    finds none."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    import torch

    here = {
        "gpu": (torch.cuda.is_available(), "needs a CUDA device"),
        "real_data": (bool(os.environ.get("ASKEW_DATA")), "needs the real digits: set ASKEW_DATA"),
    }
    for item in items:
        for marker, (present, reason) in here.items():
            if marker in item.keywords and not present:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Rendered digits, drawn once for all tests and all their processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASKEW_CACHE", str(folder / "askew-cache"))
        yield folder / "askew-cache"


@pytest.fixture(scope="session", autouse=True)
def no_flushing() -> Iterator[None]:
    """Nothing that tests write has to survive a power cut; waiting for the disk would take most of
    a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def few_test_images(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run on handwritten digits is scored on 320 of 901: to predict all takes most of a short
    one."""
    from askew.data.benchmarks import load_task, mini

    if any(
        "soak" in item.keywords for item in request.session.items
    ):  # which compare with runs of other processes
        yield
        return

    def fewer(images: Labeled, seed: int) -> tuple[Labeled, Labeled]:
        adapt, test = halves(images, seed)
        kept = [
            np.flatnonzero(test.y == k)[:32] for k in range(10)
        ]  # with fewer, the unbalanced part lacks a class
        return adapt, test.take(np.sort(np.concatenate(kept)))

    halves = mini.halves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mini, "halves", fewer)
        load_task.cache_clear()
        yield
    load_task.cache_clear()


@pytest.fixture
def all_test_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All 901 again, as other processes have them: they are part of what a run's key is made of."""
    from askew.data.benchmarks import digits, load_task, mini

    monkeypatch.setattr(mini, "halves", digits.halves)
    load_task.cache_clear()
    yield
    load_task.cache_clear()


# --- the command line ---


class Answer(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


Command = Callable[..., Answer]


parsed = functools.cache(typer.main.get_command)
"""The parser of all commands, which takes a hundredth of a second to make."""


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in this process and in an empty folder: the same `main`, without importing
    torch each time."""
    from askew.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", parsed)

    def call(*args: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["askew", *map(str, args)])
        capsys.readouterr()
        code: Any = 0
        with warnings.catch_warnings():
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def command() -> str:
    """The installed `askew`."""
    path = Path(sys.executable).with_name("askew")
    if not path.exists():
        pytest.skip("askew is not installed beside this Python")
    return str(path)


@pytest.fixture
def shell(command: str, tmp_path: Path) -> Command:
    """The installed command in a process and an empty folder of its own."""

    def call(*args: object) -> Answer:
        done = subprocess.run(
            [command, *map(str, args)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


# --- a toy task ---


def rows(n: int, shift: float, seed: int) -> Labeled:
    """n rows of 8 numbers in three overlapping clouds; `shift` moves all of them."""
    from askew.data.domains import Labeled

    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    x = 1.5 * np.eye(3, 8)[y] + rng.normal(size=(n, 8)) + shift
    return Labeled(x.astype(np.float32), y.astype(np.int64))


@pytest.fixture(scope="session")
def task() -> Task:
    from askew.data.task import Task, TestLabels, TrainingData

    classes = ("a", "b", "c")
    test = rows(60, 0.5, 3)
    training_data = TrainingData(
        source=rows(120, 0, 0),
        source_val=rows(30, 0, 1),
        target=rows(90, 0.5, 2).unlabeled(),
        test_images=test.unlabeled(),
        classes=classes,
    )
    return Task("toy", training_data, TestLabels(test.y, np.arange(20), classes))


@pytest.fixture
def training_data(task: Task) -> TrainingData:
    return task.training_data


MakeRun = Callable[..., "Run"]


@pytest.fixture
def make_run(training_data: TrainingData) -> MakeRun:
    """A run on the toy task: a few steps of pre-training unless `pretrain` is 0, then the
    method."""
    from askew.methods import SourceOnly
    from askew.nets.spec import parse_network
    from askew.training.optim import Optim
    from askew.training.run import Run, Stage

    def make(
        method: Method | None = None,
        *,
        rounds: int = 3,
        round_steps: int = 10,
        pretrain: int = 10,
        net: str = "mlp",
        head: str = "cosine",
        seed: int = 0,
        target_sampler: str = "natural",
        precision: str = "float32",
        **optim: Any,
    ) -> Run:
        how = Optim(**{"lr": 0.05, "features_lr": 0.05} | optim)
        plan = [
            Stage(method=method or SourceOnly(), rounds=rounds, round_steps=round_steps, optim=how)
        ]
        if pretrain:
            plan.insert(0, Stage(method=SourceOnly(), rounds=1, round_steps=pretrain, optim=how))
        return Run(
            task="toy",
            shift="natural",
            draw=0,
            origin=training_data.origin,
            net=parse_network(net, head=head),  # type: ignore[arg-type]
            plan=tuple(plan),
            batch=12,
            sampler="balanced",
            target_sampler=target_sampler,  # type: ignore[arg-type]
            precision=precision,  # type: ignore[arg-type]
            seed=seed,
            threads=1,
        )

    return make


# --- finished runs to look at ---


@pytest.fixture(scope="session")
def mini_runs(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder of real runs on the mini benchmark, tiny: source-only and COAL, two seeds, with an
    oracle's curve.

    One process trains them; each has a copy, to which it may add.
    """
    from askew.core.locks import locked

    made = cache.with_name("mini-runs")
    with locked(cache.with_name("mini-runs.lock")):
        if not made.exists():
            train_mini_runs(made.with_name("mini-runs-half")).rename(made)
    return shutil.copytree(made, tmp_path_factory.mktemp("looked-at") / "runs")


def train_mini_runs(folder: Path) -> Path:
    from askew.core.device import pick_device
    from askew.runs.config import RunRequest, prepare
    from askew.runs.execute import Execution, execute
    from askew.runs.root import open_root

    how = Execution(root=open_root(folder), device=pick_device("cpu"), curve=True)
    length = {"pretrain": 6, "rounds": 2, "round": 4, "batch": 16}
    for method in ("source", "coal"):
        for seed in (0, 1):
            planned = prepare(
                RunRequest(task="mini/syn-uci", method=method, seed=seed, training=length)
            )
            for _ in execute(planned.run, planned.task, how):
                pass
    return folder


@pytest.fixture(scope="module")
def small_maps() -> Iterator[None]:
    """Reports map 30 images of each domain, since t-SNE of all takes longer than the training."""
    from askew.adaptation import report

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "POINTS", 30)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An adaptation by all candidates to look at; more may be trained in its folder, but what is
    there stays."""
    from adaptations import domains, make, request_for

    folder = tmp_path_factory.mktemp("adapted")
    return make(request_for(*domains(folder)), folder / "out")
