"""Time of a training step: plain eager PyTorch against askew plain, as a CUDA graph, and as lanes,
in one run.

    python benchmarks/speed/speed.py --random --lanes 64,16 --steps 40 --repeats 3 [--json FILE]
    # a few minutes python benchmarks/speed/speed.py [--data DATA] [--device auto] [--methods all]
    # [--lanes 8,32]

All variants of a row are interleaved, so that a machine that slows down slows all of them. Floors
are counted from the step's FLOPs and bytes, against the rates that this machine reaches on a large
product and a large copy. Methods train as in their recipe: the teacher under today's, others under
the paper's. A Markdown table comes at the end.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain import PLAIN
from timing import advance, ceilings, counted, seconds, synchronize

from askew.core.device import pick_device
from askew.data.benchmarks import task_infos
from askew.data.domains import Labeled
from askew.data.task import Task, TrainingData
from askew.methods import METHODS
from askew.runs.config import RunRequest, plan_run, prepare
from askew.training.batches import Feed
from askew.training.lane_groups import lanes_that_pay
from askew.training.lanes import Lanes
from askew.training.loop import Loop
from askew.training.run import Run
from askew.training.trainer import Trainer, run_net


@dataclass(frozen=True)
class Variant:
    """One way to train: `lanes` runs at once, and the work of `--steps` steps."""

    work: Callable[[], object]
    lanes: int = 1
    drawing: float = 0.0
    """Seconds per step for drawing batches, which the trainer does thousands of steps ahead and
    `work` leaves out."""


def drawing(loop: Loop[Any], device: torch.device) -> float:
    steps = min(loop.window, loop.stage.round_steps) if loop.draws_by_round else loop.window
    return min(seconds(lambda: loop.draw(0, steps), device) for _ in range(3)) / steps


ROUND = 250
"""Steps of a round, as in today's recipe, or `--steps` if they are more."""


def planned(task: str, method: str, args: argparse.Namespace) -> tuple[Run, TrainingData]:
    """A run of one stage, with the task's images or random ones."""
    training: dict[str, Any] = {"round": max(args.steps, ROUND), "pretrain": 0}
    if args.precision:
        training["precision"] = args.precision
    request = RunRequest(task=task, method=method, data=args.data, training=training)
    if not args.random:
        planned = prepare(request)
        run, loaded = planned.run, planned.task
        return run, loaded.training_data
    network = task_infos()[task].network
    shape = (1, 28, 28) if network == "digits-28" else (3, 32, 32)
    rng = np.random.default_rng(0)
    images = [
        Labeled(rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % 10)
        for n in (10_000, 10, 10_000, 10)
    ]
    source, held_out, target, test = images
    names = tuple(map(str, range(10)))
    data = TrainingData(
        source=source,
        source_val=held_out,
        target=target.unlabeled(),
        test_images=test.unlabeled(),
        classes=names,
    )
    return plan_run(request, Task(task, data, None), network), data


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--random",
        action="store_true",
        help="Random pixels instead of data: their values cost no time.",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tasks", default="digits/usps-mnist,digits/svhn-mnist")
    parser.add_argument(
        "--methods",
        default=",".join(PLAIN),
        help="`all` for every method; five have a plain version.",
    )
    parser.add_argument(
        "--lanes",
        default="",
        help="Numbers of lanes; more than a GPU is given by bench are left out.",
    )
    parser.add_argument(
        "--variants", default="plain,alone,graph,lanes", help="Which of them to measure."
    )
    parser.add_argument(
        "--try-all", action="store_true", help="Let cuDNN try its kernels, for all variants."
    )
    parser.add_argument(
        "--precision", choices=["float32", "tf32", "bf16"], help="askew's; default: its recipe's."
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="Draw the times there, as .svg or .png.")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    device = pick_device(args.device)
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(
        "high"
    )  # for plain PyTorch too, as in askew's digits settings
    torch.backends.cudnn.benchmark = args.try_all
    limits = ceilings(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"
    print(
        f"{name}, torch {torch.__version__}; median of {args.repeats} x {args.steps} steps, all "
        "variants interleaved"
    )
    print(
        f"ceilings: {limits[0] / 1e12:.2f} TFLOP/s (float32 product), {limits[1] / 1e9:.0f} GB/s "
        "(copy)",
        flush=True,
    )
    rows = []
    for task in args.tasks.split(","):
        for method in METHODS if args.methods == "all" else args.methods.split(","):
            rows += measure(task, method, args, device, limits)
            gc.collect()  # an earlier method's graphs hold memory
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print("\n" + markdown(rows), flush=True)
    if args.json:
        args.json.write_text(
            json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=1)
        )
    if args.figure:
        draw(rows, name, args.figure)


def markdown(rows: list[dict[str, Any]]) -> str:
    """ms per model-step, and in brackets the ratio to the first variant and the floor's share."""
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    lines = [
        "| network, method (batch) | " + " | ".join(variants) + " | floor |",
        "|---" * (len(variants) + 2) + "|",
    ]
    for key in dict.fromkeys((row["network"], row["method"], row["batch"]) for row in rows):
        found = {r["variant"]: r for r in rows if (r["network"], r["method"], r["batch"]) == key}
        cells = [
            f"{r['ms']:.3f} ({r['ratio']:.1f} x, {100 * r['floor_ms'] / r['ms']:.1f} %)"
            if r
            else "–"
            for r in map(found.get, variants)
        ]
        floor = next(iter(found.values()))["floor_ms"]
        lines.append(
            f"| {key[0]}, {key[1]} ({key[2]} + {key[2]}) | {' | '.join(cells)} | {floor:.3f} |"
        )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], name: str, file: Path) -> None:
    """One panel per task, one group of bars per method, one bar per variant; the floor as a line
    across the group."""
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure, panels = plt.subplots(
        1, len(tasks), figsize=(6 * len(tasks), 4), squeeze=False, layout="constrained"
    )
    width, bars = 0.8 / len(variants), {}
    for panel, task in zip(panels[0], tasks, strict=True):
        methods = list(dict.fromkeys(row["method"] for row in rows if row["task"] == task))
        for i, variant in enumerate(variants):
            found = {
                r["method"]: r["ms"] for r in rows if r["task"] == task and r["variant"] == variant
            }
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

    def __init__(
        self, task: str, method: str, args: argparse.Namespace, device: torch.device
    ) -> None:
        self.run, self.training_data = planned(task, method, args)
        self.feed = Feed(self.training_data, device)
        self.steps, self.device, self.cuda = args.steps, device, device.type == "cuda"
        self.variants: dict[str, Variant] = {}
        self.memory: dict[str, float] = {}
        wanted = args.variants.split(",")
        if method in PLAIN and "plain" in wanted:
            self.add("plain PyTorch", lambda: self.plain(method))
        if "alone" in wanted:
            self.add("askew, no graph", lambda: self.alone(False))
        if self.cuda and "graph" in wanted:
            self.add("askew, graph", lambda: self.alone(True))
        for count in [int(n) for n in args.lanes.split(",") if n and "lanes" in wanted]:
            if not self.cuda or count <= lanes_that_pay(self.run, device):
                self.add(f"askew, {count} lanes", lambda count=count: self.lanes(count))

    def add(self, label: str, make: Callable[[], Variant]) -> None:
        before = torch.cuda.memory_allocated() if self.cuda else 0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        variant = make()
        variant.work()  # warm-up, and the graph's capture
        synchronize(self.device)
        self.memory[label] = (
            (torch.cuda.max_memory_allocated() - before) / 2**20 if self.cuda else 0.0
        )
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
        nets = [
            run_net(self.run, self.training_data)
        ] * count  # equal weights take as long as others, and less to make
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
    task: str,
    method: str,
    args: argparse.Namespace,
    device: torch.device,
    limits: tuple[float, float],
) -> list[dict[str, Any]]:
    """All variants of one method on one task."""
    bench = Bench(task, method, args, device)
    times = {
        label: statistics.median(values) for label, values in bench.times(args.repeats).items()
    }
    floor = bench.floor(*limits)
    base = next(iter(times.values()))
    rows = []
    for label, ms in times.items():
        rate, memory = 2 * bench.run.batch * 1000 / ms, bench.memory[label]
        rows.append(
            {
                "task": task,
                "network": bench.run.net.name,
                "method": method,
                "batch": bench.run.batch,
                "variant": label,
                "ms": ms,
                "ratio": base / ms,
                "floor_ms": floor,
                "share_of_floor": floor / ms,
                "images_per_s": rate,
                "memory_mib": memory,
            }
        )
        print(
            f"{task:20} {method:7} {label:18} batch {bench.run.batch:3}  {ms:8.3f} ms per step  "
            f"{base / ms:6.2f} x  "
            f"{rate:9.0f} images/s  floor {floor:.3f} ms ({100 * floor / ms:4.1f} %)  "
            f"{memory:7.0f} MiB",
            flush=True,
        )
    return rows


if __name__ == "__main__":
    main()
