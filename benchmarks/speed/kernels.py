"""Where a step's time goes: the kernels of one step, as the profiler sees them.

python benchmarks/speed/kernels.py digits/svhn-mnist [--method coal] [--lanes 8] [--data DATA |
--random] [--top 25]
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from speed import planned
from timing import advance, seconds

from askew.training.batches import Feed
from askew.training.lanes import Lanes
from askew.training.loop import Loop
from askew.training.trainer import Trainer, run_net

SHORT = 5
"""Microseconds below which a kernel's launch counts more than its work."""


def training_loop(args: argparse.Namespace, device: torch.device) -> Loop[Any]:
    run, data = planned(args.task, args.method, args)
    feed = Feed(data, device)
    if args.lanes > 1:
        runs = [dataclasses.replace(run, seed=seed) for seed in range(args.lanes)]
        nets = [
            run_net(run, data)
        ] * args.lanes  # equal weights take as long as others, and less to make
        return Lanes(runs, [feed] * args.lanes, nets, True)
    net = run_net(run, data).to(device)
    net.share_step_key()
    return Trainer(run, len(run.plan) - 1, feed, net, True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("--method", default="coal")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--random", action="store_true", help="Random pixels instead of data.")
    parser.add_argument(
        "--precision", choices=["float32", "tf32", "bf16"], help="Default: the recipe's."
    )
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda")
    loop = training_loop(args, device)
    loop.refresh(0)
    advance(loop, args.steps)  # warm-up and capture
    took = (
        1000
        * min(seconds(lambda: advance(loop, args.steps), device) for _ in range(3))
        / args.steps
    )
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        advance(loop, args.steps)
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    busy = sum(e.self_device_time_total for e in found) / 1000 / args.steps
    per = f"{args.lanes} lanes" if args.lanes > 1 else "one run"
    launches = sum(e.count for e in found) / args.steps
    short = [e for e in found if e.self_device_time_total < SHORT * e.count]
    small = sum(e.self_device_time_total for e in short) / 1000 / args.steps
    print(
        f"{args.task} {args.method}, {per}: {took:.3f} ms per step, {busy:.3f} ms of it in "
        f"{launches:.0f} kernels"
    )
    print(
        f"{small:8.4f} ms in the {sum(e.count for e in short) / args.steps:.0f} of less than "
        f"{SHORT} µs each"
    )
    for event in found[: args.top]:
        ms = event.self_device_time_total / 1000 / args.steps
        calls = event.count / args.steps
        print(f"{ms:8.4f} ms {100 * ms / busy:5.1f} % {calls:6.1f} x  {event.key[:110]}")


if __name__ == "__main__":
    main()
