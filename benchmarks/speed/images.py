"""ResNet-50 from uint8 pictures: askew's whole step against the bare one, in images per second
(source and target).

    python benchmarks/speed/images.py [--net resnet50] [--batches 32,64] [--method teacher]
    [--device auto] python benchmarks/speed/images.py --streamed [--pictures 20000] [--folder
    FOLDER] [--cold] python benchmarks/speed/images.py --reading

The run is that of fine-tuning on one's own pictures (src/askew/runs/settings/images.toml); for the
teacher: two views of each picture, style, kept batch statistics. The bare step takes ready float
batches on the device through the same passes, channels last, in the same precision: the student's
over both domains, the teacher's over the target without gradients, backward, torch's fused SGD, the
teacher's average. Nothing is gathered, viewed or normalised. Its batch norms are torch's, or, in a
third variant, those of askew (src/askew/nets/triton/kept_norm.py).

Pictures are random, 256 pixels. They lie on the device; with --streamed in a file that is mapped
into memory, as askew's cache of decoded pictures is, and they stay there as if they did not fit the
device. The system then has the file in its memory; --cold drops it from there before each time is
taken, and every variant reads other pictures.

--reading takes no steps: it only brings their batches to the device, from a cold disk, and needs no
GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from timing import seconds
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew.core.device import pick_device
from askew.data.domains import Labeled, Rows, RowSubset
from askew.data.task import Task, TrainingData
from askew.methods.base import Method
from askew.nets.network import build
from askew.nets.triton.kept_norm import KeptNorm2d
from askew.runs.config import RunRequest, plan_run
from askew.training import batches
from askew.training.batches import DomainTensor, Feed
from askew.training.prefetch import Ahead
from askew.training.run import Run
from askew.training.trainer import Trainer, run_net

CLASSES = tuple("abcdefg")
SHAPE = (3, 256, 256)
BLOCK = 256
"""Pictures that differ; files repeat them."""


def some_pictures() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (BLOCK, *SHAPE), dtype=np.uint8)


def write_pictures(file: Path, pictures: int) -> None:
    """The file of a picture cache, on the disk when this returns."""
    block = some_pictures()
    with file.open("wb") as out:
        head = {"descr": "|u1", "fortran_order": False, "shape": (pictures, *SHAPE)}
        np.lib.format.write_array_header_1_0(out, head)
        for start in range(0, pictures, BLOCK):
            block[: pictures - start].tofile(out)
        out.flush()
        os.fsync(out.fileno())


def forget(file: Path) -> None:
    """Drop a file's content from the system's memory, but for what a process has mapped and
    read."""
    with file.open("rb") as content:
        os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold_rate(work: Callable[[], object], file: Path, pictures: int, device: torch.device) -> float:
    """Pictures per second that work reads from a file which is not in memory."""
    forget(file)
    return pictures / seconds(work, device)


def read_alone(file: Path, rows: NDArray[np.int64], threads: int) -> None:
    """The disk by itself: pictures here and there, each into memory of its own."""
    size = int(np.prod(SHAPE))
    with file.open("rb") as content, ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(
                lambda i: len(os.pread(content.fileno(), size, size * i)), rows.ravel().tolist()
            )
        )


def read_batches(file: Path, rows: NDArray[np.int64], device: torch.device, expected: bool) -> None:
    """What a trainer reads in steps of half source, half target; the system is told what comes
    next, or is not."""
    x = np.load(
        file, mmap_mode="c"
    )  # mapped anew each time: the system forgets no page that is mapped
    domain = DomainTensor(RowSubset(x, np.arange(len(x))), device, resident=False)
    if not expected:
        domain.file = None
    batch = rows.shape[1] // 2
    ahead = Ahead([domain, domain], batch, device)
    ahead.begin(torch.from_numpy(rows).split(batch, dim=1))
    for step in range(len(rows)):
        ahead.put(step)


def measure_reading(
    batch: int, args: argparse.Namespace, file: Path, device: torch.device
) -> dict[str, float]:
    """Median pictures per second from a cold disk."""
    works: dict[str, Callable[[NDArray[np.int64]], None]] = {
        "the disk by itself, 1 thread": partial(read_alone, file, threads=1),
        "the disk by itself, 8 threads": partial(read_alone, file, threads=8),
        "batches, not expected": partial(read_batches, file, device=device, expected=False),
        "batches": partial(read_batches, file, device=device, expected=True),
    }
    rates: dict[str, list[float]] = {label: [] for label in works}
    chance = np.random.default_rng(1)
    for _ in range(args.repeats):
        for label, work in works.items():
            rows = chance.choice(args.pictures, (args.steps, 2 * batch), replace=False)
            rates[label].append(cold_rate(partial(work, rows), file, rows.size, device))
    return {label: statistics.median(values) for label, values in rates.items()}


def training_data(x: Rows) -> TrainingData:
    """Half of the pictures as the source, the others as the target."""
    n = len(x) // 2
    labels = np.arange(n) % len(CLASSES)
    halves = [Labeled(part, labels) for part in (_rows(x, 0, n), _rows(x, n, 2 * n))]
    few = np.arange(8)
    target = halves[1].unlabeled()
    return TrainingData(
        source=halves[0],
        source_val=halves[0].take(few),
        target=target,
        test_images=halves[1].take(few).unlabeled(),
        classes=CLASSES,
    )


def _rows(x: Rows, start: int, stop: int) -> Rows:
    return x.pick(np.arange(start, stop)) if isinstance(x, RowSubset) else x[start:stop]


@contextlib.contextmanager
def picture_file(args: argparse.Namespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="askew-", dir=args.folder) as scratch:
        file = Path(scratch) / "pictures.npy"
        took = seconds(lambda: write_pictures(file, args.pictures), torch.device("cpu"))
        print(
            f"{args.pictures} pictures, {file.stat().st_size / 1e9:.1f} GB, written in "
            f"{took:.1f} s",
            flush=True,
        )
        yield file


@contextlib.contextmanager
def opened(args: argparse.Namespace) -> Iterator[tuple[TrainingData, Callable[[], None]]]:
    """The data, and what to do before a time is taken."""
    if not args.streamed:
        block = some_pictures()
        yield (
            training_data(np.concatenate([block] * -(-args.pictures // BLOCK))[: args.pictures]),
            lambda: None,
        )
        return
    with picture_file(args) as file:
        if args.cold:
            some = np.random.default_rng(1).permutation(args.pictures)[:1000]
            rate = cold_rate(
                lambda: read_alone(file, some, 1), file, len(some), torch.device("cpu")
            )
            print(f"the disk by itself: {rate:.0f} pictures/s, one at a time", flush=True)
        x = np.load(file, mmap_mode="c")
        batches.RESIDENT_SHARE = 0.0  # nothing fits the device
        rows = RowSubset(x, np.arange(len(x)), np.arange(len(x), dtype="<u8"))
        yield training_data(rows), (lambda: forget(file)) if args.cold else (lambda: None)


def planned(args: argparse.Namespace, batch: int, data: TrainingData) -> Run:
    """One stage of a run whose rounds are as long as a time that is taken."""
    settings = {"batch": batch, "precision": args.precision, "pretrain": 0, "norm": "joint"}
    length = {"rounds": args.repeats + 1, "round": args.steps}
    request = RunRequest(task="own/images", method=args.method, training=settings | length)
    run = plan_run(request, Task(request.task, data, None), args.net)
    if not run.method.teacher:
        return run
    net = dataclasses.replace(
        run.net, norm="kept"
    )  # random weights have statistics too, whatever they are worth
    return dataclasses.replace(run, net=net)


class Steps:
    """A trainer's steps, one round after another, each with the draw of its batches."""

    def __init__(self, run: Run, data: TrainingData, feed: Feed, graph: bool) -> None:
        net = run_net(run, data).to(feed.device)
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net.share_step_key()
        self.trainer = Trainer(run, 0, feed, net, graph)
        self.round = self.trainer.stage.round_steps
        self.done = 0
        if type(run.method).refresh is Method.refresh:  # any pseudo-labels will do for batches
            self.trainer.pseudo = torch.arange(len(feed.target), device=feed.device) % feed.classes
        else:
            self.trainer.refresh(0)

    def __call__(self) -> None:
        self.trainer.advance(self.done, self.round)
        self.done += self.round


class Bare:
    """Ready batches through the passes of a step; as a CUDA graph if asked for."""

    def __init__(
        self, run: Run, steps: int, device: torch.device, graph: bool, own_norms: bool = False
    ) -> None:
        parts, _ = build(run.net, SHAPE, len(CLASSES), 0)
        features: Any = parts["features"]
        layers: list[Any] = list(features) if isinstance(features, nn.Sequential) else [features]
        net: Any = (
            nn.Sequential(layers[0].body, nn.Flatten(), *layers[1:], parts["head"])
            .to(device)
            .train()
        )
        for module in net.modules() if run.net.norm == "kept" else ():
            if isinstance(module, _BatchNorm):
                module.eval()
            if isinstance(module, KeptNorm2d) and not own_norms:
                module.__class__ = nn.BatchNorm2d  # type: ignore[assignment]
        self.net = net.to(memory_format=torch.channels_last)
        self.teacher = copy.deepcopy(self.net).requires_grad_(False) if run.method.teacher else None
        self.optimiser = torch.optim.SGD(
            self.net.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True
        )
        self.steps, self.batch, self.device, self.bf16 = (
            steps,
            run.batch,
            device,
            run.precision == "bf16",
        )
        side = min(run.net.crop or SHAPE[1], SHAPE[1])
        x = torch.randn(3 * run.batch, *SHAPE[:1], side, side, device=device)
        self.x = x.contiguous(memory_format=torch.channels_last)
        self.y = torch.arange(2 * run.batch, device=device) % len(CLASSES)
        self.graph = self.captured() if graph else None

    def step(self) -> None:
        b = self.batch
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            z = self.net(self.x[: 2 * b])
            loss = (
                F.cross_entropy(z, self.y)
                if self.teacher is None
                else F.cross_entropy(z[:b], self.y[:b])
            )
            if self.teacher is not None:
                with torch.no_grad():
                    q = self.teacher(self.x[2 * b :]).softmax(dim=1)
                loss = loss + (z[b:].softmax(dim=1) - q).square().sum(dim=1).mean()
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        if self.teacher is not None:
            averaged: list[Tensor] = list(self.teacher.parameters())
            torch._foreach_lerp_(averaged, [p.detach() for p in self.net.parameters()], 0.01)

    def captured(self) -> torch.cuda.CUDAGraph:
        here, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(here)
        with torch.cuda.stream(stream):  # warm-up away from the stream that is captured
            for _ in range(3):
                self.step()
        here.wait_stream(stream)
        self.optimiser.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph

    def __call__(self) -> None:
        for _ in range(self.steps):
            self.step() if self.graph is None else self.graph.replay()


def measure(
    batch: int, args: argparse.Namespace, feed: Feed, data: TrainingData, before: Callable[[], None]
) -> dict[str, float]:
    """Median images per second of the bare step and of askew's, each launched by Python and as a
    CUDA graph."""
    run, device = planned(args, batch, data), feed.device
    works: dict[str, Callable[[], None]] = {}
    for number, graph in enumerate((False, True) if device.type == "cuda" else (False,)):
        how = "graph" if graph else "no graph"
        works[f"bare step, {how}"] = Bare(run, args.steps, device, graph)
        if graph and run.net.norm == "kept":
            works["bare step, graph, askew's norms"] = Bare(
                run, args.steps, device, graph, own_norms=True
            )
        works[f"askew, {how}"] = Steps(dataclasses.replace(run, seed=number), data, feed, graph)
    for work in works.values():
        work()
    rates: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(args.repeats):
        for label, work in works.items():
            before()
            rates[label].append(2 * batch * args.steps / seconds(work, device))
    return {label: statistics.median(values) for label, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--net", default="resnet50")
    parser.add_argument("--method", default="teacher")
    parser.add_argument("--batches", default="32,64")
    parser.add_argument(
        "--pictures", type=int, default=0, help="Of both domains; 2,048, or 20,000 in a file."
    )
    parser.add_argument("--streamed", action="store_true", help="Leave the pictures on the disk.")
    parser.add_argument(
        "--folder", type=Path, help="Where their file is to be; a picture takes 192 KiB."
    )
    parser.add_argument(
        "--cold", action="store_true", help="Drop the file from memory before a time is taken."
    )
    parser.add_argument(
        "--reading", action="store_true", help="Only read batches, from a cold disk."
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=["float32", "bf16"])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    args.pictures = args.pictures or (20_000 if args.streamed or args.reading else 2048)
    device = pick_device(args.device)
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    if args.reading:
        print(f"{name}, torch {torch.__version__}", flush=True)
        with picture_file(args) as file:
            for batch in map(int, args.batches.split(",")):
                for label, rate in measure_reading(batch, args, file, device).items():
                    print(f"{batch:3} + {batch:3}  {label:31} {rate:8.0f} pictures/s", flush=True)
        return
    print(
        f"{name}, torch {torch.__version__}, {args.net}, {args.method}, {args.precision}",
        flush=True,
    )
    with opened(args) as (data, before):
        feed = Feed(data, device)
        where = (
            "on the device"
            if feed.resident
            else f"streamed from {'disk' if args.cold else 'memory'}"
        )
        for batch in map(int, args.batches.split(",")):
            rates = measure(batch, args, feed, data, before)
            bare = [rate for label, rate in rates.items() if label.startswith("bare")]
            for label, rate in rates.items():
                shares = " and ".join(f"{100 * rate / other:.1f}" for other in bare)
                print(
                    f"{where}, {batch:3} + {batch:3}  {label:31} {rate:8.0f} images/s  {shares} "
                    "% of the bare step",
                    flush=True,
                )


if __name__ == "__main__":
    main()
