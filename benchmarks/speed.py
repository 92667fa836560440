"""Time of a training step: plain eager PyTorch against askew plain, as a CUDA graph, and as lanes, in one run.

    python benchmarks/speed.py [--data DATA] [--device auto] [--methods all] [--lanes 8,32] [--json FILE]

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
from askew.training.trainer import Trainer, new_net


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
    """One way to train: so many runs at once, and the work of `--steps` steps."""

    work: Callable[[], object]
    lanes: int = 1
    drawing: float = 0.0
    """Seconds a step for drawing batches, which the engine does some thousand steps ahead and `work` leaves out."""


def drawing(loop: Loop[Any], device: torch.device) -> float:
    return min(seconds(lambda: loop.draw(0, loop.window), device) for _ in range(3)) / loop.window


def advance(loop: Loop[Any], steps: int) -> None:
    """Take that many steps in the engine's own chunks, from batches that are drawn already."""
    loop.clock.zero_()
    for first in range(0, steps, loop.chunk):
        loop.advance(first, min(loop.chunk, steps - first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", default="digits/usps-mnist,digits/svhn-mnist")
    parser.add_argument("--methods", default=",".join(PLAIN), help="`all` for the twelve; four have a plain version.")
    parser.add_argument("--lanes", default="", help="Numbers of lanes, separated by commas.")
    parser.add_argument("--try-all", action="store_true", help="Let cuDNN try its kernels, for all variants.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="Draw the times there, as .svg or .png.")
    args = parser.parse_args()
    device = pick_device(args.device)
    cuda = device.type == "cuda"
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")  # for plain PyTorch too, as the settings say for askew
    torch.backends.cudnn.benchmark = args.try_all
    flops, bandwidth = ceilings(device)
    name = torch.cuda.get_device_name(device) if cuda else "CPU, one thread"
    print(
        f"{name}, torch {torch.__version__}; median of {args.repeats} x {args.steps} steps, batch 32 + 32, interleaved"
    )
    print(f"ceilings: {flops / 1e12:.2f} TFLOP/s (float32 product), {bandwidth / 1e9:.0f} GB/s (copy)", flush=True)
    rows = []
    for task in args.tasks.split(","):
        for method in METHODS if args.methods == "all" else args.methods.split(","):
            rows += measure(task, method, args, device, flops, bandwidth)
    if args.json:
        args.json.write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=1))
    if args.figure:
        draw(rows, name, args.figure)


def draw(rows: list[dict[str, Any]], name: str, file: Path) -> None:
    """A bar a variant, in a group a method, in a panel a task; the floor as a line across the group."""
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
    panels[0][0].set_ylabel("ms a model-step (dotted: floor)")
    figure.legend(bars.values(), bars, loc="outside lower center", ncols=len(bars), frameon=False)
    figure.suptitle(name)
    figure.savefig(file)


def measure(
    task: str, method: str, args: argparse.Namespace, device: torch.device, flops: float, bandwidth: float
) -> list[dict[str, Any]]:
    """All variants of one method on one task."""
    cuda = device.type == "cuda"
    run, loaded = prepare(RunRequest(task, method, data=args.data, training={"round": args.steps, "pretrain": 0}))
    training_data = loaded.training_data
    feed = Feed(training_data, device)
    number = len(run.plan) - 1
    variants: dict[str, Variant] = {}
    memory: dict[str, float] = {}

    def add(label: str, make: Callable[[], Variant]) -> None:
        before = torch.cuda.memory_allocated() if cuda else 0
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        variant = make()
        variant.work()  # warm-up, and the graph's capture
        synchronize(device)
        memory[label] = (torch.cuda.max_memory_allocated() - before) / 2**20 if cuda else 0.0
        variants[label] = variant

    def plain() -> Variant:
        hand = PLAIN[method](run.net, tuple(training_data.source.x.shape[1:]), feed, run.batch)
        return Variant(lambda: [hand.step() for _ in range(args.steps)])

    def askew(graph: bool) -> Variant:
        net = new_net(run, training_data).to(device)
        net.share_step_key()
        trainer = Trainer(run, number, feed, net, graph)
        trainer.refresh(0)
        return Variant(lambda: advance(trainer, args.steps), 1, drawing(trainer, device))

    def lanes(count: int) -> Variant:
        runs = [dataclasses.replace(run, seed=seed) for seed in range(count)]
        together = Lanes(runs, [feed] * count, [new_net(r, training_data) for r in runs], cuda)
        together.refresh(0)
        return Variant(lambda: advance(together, args.steps), count, drawing(together, device))

    if method in PLAIN:
        add("plain PyTorch", plain)
    add("askew", lambda: askew(False))
    if cuda:
        add("askew, graph", lambda: askew(True))
    for count in [int(n) for n in args.lanes.split(",") if n]:
        add(f"askew, {count} lanes", lambda count=count: lanes(count))
    times: dict[str, list[float]] = {label: [] for label in variants}
    for _ in range(args.repeats):
        for label, variant in variants.items():
            step = seconds(variant.work, device) / args.steps + variant.drawing
            times[label].append(1000 * step / variant.lanes)

    net = new_net(run, training_data).to(device)
    net.share_step_key()
    trainer = Trainer(run, number, feed, net, False)
    trainer.refresh(0)
    trainer.draw(0, 1)
    work_flops, work_bytes = counted(trainer)
    floor = 1000 * max(work_flops / flops, work_bytes / bandwidth)
    base = statistics.median(times.get("plain PyTorch", times["askew"]))
    rows = []
    for label, values in times.items():
        ms = statistics.median(values)
        rows.append(
            {
                "task": task, "method": method, "variant": label, "ms": ms, "ratio": base / ms, "floor_ms": floor,
                "images_per_s": 2 * run.batch * 1000 / ms, "memory_mib": memory[label],
            }
        )  # fmt: skip
        print(
            f"{task:20} {method:7} {label:18} {ms:8.3f} ms a model-step  {base / ms:6.2f} x  "
            f"{64_000 / ms:9.0f} images/s  floor {floor:.3f} ms ({100 * floor / ms:4.1f} %)  {memory[label]:7.0f} MiB",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
