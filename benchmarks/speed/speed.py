"""Time of a training step: plain eager PyTorch against askew plain, as a CUDA graph, and as lanes, in one run.

    python benchmarks/speed/speed.py [--data DATA] [--device auto] [--methods all] [--lanes 8,32] [--json FILE]

All variants of a row are interleaved, so that a machine that slows down slows all of them. Floors are counted from
the step's FLOPs and bytes, against the rates that this machine reaches on a large product and a large copy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from plain import PLAIN
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from askew.core.device import pick_device
from askew.methods import METHODS
from askew.runs.config import RunRequest, prepare
from askew.training.batches import Feed
from askew.training.lanes import Lanes
from askew.training.loop import Loop
from askew.training.trainer import Trainer, run_net


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def ceilings(device: torch.device) -> tuple[float, float]:
    """FLOP/s of a large float32 product and byte/s of a large copy, both as reached here."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = torch.randn(n, n, device=device), torch.randn(n, n, device=device)
    size = 2**30 if device.type == "cuda" else 2**26
    block = torch.zeros(size // 4, device=device)
    product = min(seconds(lambda: a @ b, device) for _ in range(5))
    copy = min(seconds(lambda: block.clone(), device) for _ in range(5))
    return 2 * n**3 / product, 2 * size / copy


def counted(loop: Trainer) -> tuple[float, float]:
    """FLOPs and least bytes of one step: weights and their updates, and each layer's output once written and read."""
    outputs = 0

    def note(module: nn.Module, args: object, output: object) -> None:
        nonlocal outputs
        if isinstance(output, Tensor) and not list(module.children()):
            outputs += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(note) for module in loop.net.modules()]
    with FlopCounterMode(display=False) as counter:
        loop.step()
    for hook in hooks:
        hook.remove()
    # forward reads a weight, backward reads it and writes its gradient; SGD reads three and writes two
    weights = sum(
        sum(p.numel() * p.element_size() for n, p in loop.params.items()) * 8 * phase.repeat for phase in loop.phases
    )
    return counter.get_total_flops(), weights + 4 * outputs


@dataclass(frozen=True)
class Variant:
    """One way to train: `lanes` runs at once, and the work of `--steps` steps."""

    work: Callable[[], object]
    lanes: int = 1
    drawing: float = 0.0
    """Seconds per step for drawing batches, which the trainer does thousands of steps ahead and `work` leaves out."""


def drawing(loop: Loop[Any], device: torch.device) -> float:
    return min(seconds(lambda: loop.draw(0, loop.window), device) for _ in range(3)) / loop.window


def advance(loop: Loop[Any], steps: int) -> None:
    """Take that many steps in the trainer's own chunks, from batches that are drawn already."""
    loop.clock.zero_()
    for first in range(0, steps, loop.chunk):
        loop.advance(first, min(loop.chunk, steps - first))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", default="digits/usps-mnist,digits/svhn-mnist")
    parser.add_argument("--methods", default=",".join(PLAIN), help="`all` for every method; five have a plain version.")
    parser.add_argument("--lanes", default="", help="Numbers of lanes, separated by commas.")
    parser.add_argument("--try-all", action="store_true", help="Let cuDNN try its kernels, for all variants.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="Draw the times there, as .svg or .png.")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    device = pick_device(args.device)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # for plain PyTorch too, as in askew's digits settings
    torch.backends.cudnn.benchmark = args.try_all
    limits = ceilings(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"
    print(f"{name}, torch {torch.__version__}; median of {args.repeats} x {args.steps} steps, all variants interleaved")
    print(f"ceilings: {limits[0] / 1e12:.2f} TFLOP/s (float32 product), {limits[1] / 1e9:.0f} GB/s (copy)", flush=True)
    rows = []
    for task in args.tasks.split(","):
        for method in METHODS if args.methods == "all" else args.methods.split(","):
            rows += measure(task, method, args, device, limits)
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=1))
    if args.figure:
        draw(rows, name, args.figure)


def draw(rows: list[dict[str, Any]], name: str, file: Path) -> None:
    """One panel per task, one group of bars per method, one bar per variant; the floor as a line across the group."""
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure, panels = plt.subplots(1, len(tasks), figsize=(6 * len(tasks), 4), squeeze=False, layout="constrained")
    width, bars = 0.8 / len(variants), {}
    for panel, task in zip(panels[0], tasks, strict=True):
        methods = list(dict.fromkeys(row["method"] for row in rows if row["task"] == task))
        for i, variant in enumerate(variants):
            found = {r["method"]: r["ms"] for r in rows if r["task"] == task and r["variant"] == variant}
            places = [methods.index(method) - 0.4 + (i + 0.5) * width for method in found]
            if found:
                bars[variant] = panel.bar(places, list(found.values()), width, color=f"C{i}")
        for place, method in enumerate(methods):
            floor = next(r["floor_ms"] for r in rows if r["task"] == task and r["method"] == method)
            panel.hlines(floor, place - 0.45, place + 0.45, colors="black", linestyles="dotted")
        panel.set(title=task, yscale="log", xticks=range(len(methods)), xticklabels=methods)
    panels[0][0].set_ylabel("ms per model-step (dotted: floor)")
    figure.legend(bars.values(), bars, loc="outside lower center", ncols=len(bars), frameon=False)
    figure.suptitle(name)
    figure.savefig(file)


class Bench:
    """The variants of one method on one task, each warmed up, and the GPU memory that it took."""

    def __init__(self, task: str, method: str, args: argparse.Namespace, device: torch.device) -> None:
        training = {"round": args.steps, "pretrain": 0}
        self.run, loaded = prepare(RunRequest(task, method, data=args.data, training=training))
        self.training_data = loaded.training_data
        self.feed = Feed(self.training_data, device)
        self.steps, self.device, self.cuda = args.steps, device, device.type == "cuda"
        self.variants: dict[str, Variant] = {}
        self.memory: dict[str, float] = {}
        if method in PLAIN:
            self.add("plain PyTorch", lambda: self.plain(method))
        self.add("askew", lambda: self.alone(False))
        if self.cuda:
            self.add("askew, graph", lambda: self.alone(True))
        for count in [int(n) for n in args.lanes.split(",") if n]:
            self.add(f"askew, {count} lanes", lambda count=count: self.lanes(count))

    def add(self, label: str, make: Callable[[], Variant]) -> None:
        before = torch.cuda.memory_allocated() if self.cuda else 0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        variant = make()
        variant.work()  # warm-up, and the graph's capture
        synchronize(self.device)
        self.memory[label] = (torch.cuda.max_memory_allocated() - before) / 2**20 if self.cuda else 0.0
        self.variants[label] = variant

    def plain(self, method: str) -> Variant:
        shape = tuple(self.training_data.source.x.shape[1:])
        by_hand = PLAIN[method](self.run.net, shape, self.feed, self.run.batch)
        return Variant(lambda: [by_hand.step() for _ in range(self.steps)])

    def trainer(self, graph: bool) -> Trainer:
        net = run_net(self.run, self.training_data).to(self.device)
        net.share_step_key()
        trainer = Trainer(self.run, len(self.run.plan) - 1, self.feed, net, graph)
        trainer.refresh(0)
        return trainer

    def alone(self, graph: bool) -> Variant:
        trainer = self.trainer(graph)
        return Variant(lambda: advance(trainer, self.steps), 1, drawing(trainer, self.device))

    def lanes(self, count: int) -> Variant:
        runs = [dataclasses.replace(self.run, seed=seed) for seed in range(count)]
        nets = [run_net(run, self.training_data) for run in runs]
        together = Lanes(runs, [self.feed] * count, nets, self.cuda)
        together.refresh(0)
        return Variant(lambda: advance(together, self.steps), count, drawing(together, self.device))

    def times(self, repeats: int) -> dict[str, list[float]]:
        """Milliseconds per model-step of every variant, all variants in turn."""
        found: dict[str, list[float]] = {label: [] for label in self.variants}
        for _ in range(repeats):
            for label, variant in self.variants.items():
                step = seconds(variant.work, self.device) / self.steps + variant.drawing
                found[label].append(1000 * step / variant.lanes)
        return found

    def floor(self, flops: float, bandwidth: float) -> float:
        """The least milliseconds that this machine could take for one step."""
        trainer = self.trainer(False)
        trainer.draw(0, 1)
        work_flops, work_bytes = counted(trainer)
        return 1000 * max(work_flops / flops, work_bytes / bandwidth)


def measure(
    task: str, method: str, args: argparse.Namespace, device: torch.device, limits: tuple[float, float]
) -> list[dict[str, Any]]:
    """All variants of one method on one task."""
    bench = Bench(task, method, args, device)
    times = {label: statistics.median(values) for label, values in bench.times(args.repeats).items()}
    floor = bench.floor(*limits)
    base = times.get("plain PyTorch", times["askew"])
    rows = []
    for label, ms in times.items():
        rate, memory = 2 * bench.run.batch * 1000 / ms, bench.memory[label]
        rows.append(
            {
                "task": task, "method": method, "variant": label, "ms": ms, "ratio": base / ms, "floor_ms": floor,
                "images_per_s": rate, "memory_mib": memory,
            }
        )  # fmt: skip
        print(
            f"{task:20} {method:7} {label:18} batch {bench.run.batch:3}  {ms:8.3f} ms per step  {base / ms:6.2f} x  "
            f"{rate:9.0f} images/s  floor {floor:.3f} ms ({100 * floor / ms:4.1f} %)  {memory:7.0f} MiB",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
