"""Where a step's time goes: the kernels of one step, as the profiler sees them.

python benchmarks/speed/kernels.py digits/svhn-mnist [--method coal] [--lanes 8] [--data DATA] [--top 25]
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import torch
from timing import advance, seconds

from askew.runs.config import RunRequest, prepare
from askew.training.batches import Feed
from askew.training.lanes import Lanes
from askew.training.loop import Loop
from askew.training.trainer import Trainer, run_net


def training_loop(args: argparse.Namespace, device: torch.device) -> Loop[Any]:
    training = {"round": args.steps, "pretrain": 0}
    run, task = prepare(RunRequest(args.task, args.method, data=args.data, training=training))
    feed = Feed(task.training_data, device)
    if args.lanes > 1:
        runs = [dataclasses.replace(run, seed=seed) for seed in range(args.lanes)]
        return Lanes(runs, [feed] * args.lanes, [run_net(r, task.training_data) for r in runs], True)
    net = run_net(run, task.training_data).to(device)
    net.share_step_key()
    return Trainer(run, len(run.plan) - 1, feed, net, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("--method", default="coal")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda")
    loop = training_loop(args, device)
    loop.refresh(0)
    advance(loop, args.steps)  # warm-up and capture
    took = 1000 * min(seconds(lambda: advance(loop, args.steps), device) for _ in range(3)) / args.steps
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        advance(loop, args.steps)
        torch.cuda.synchronize()
    found = sorted(profile.key_averages(), key=lambda e: -e.self_device_time_total)
    busy = sum(e.self_device_time_total for e in found) / 1000 / args.steps
    per = f"{args.lanes} lanes" if args.lanes > 1 else "one run"
    print(f"{args.task} {args.method}, {per}: {took:.3f} ms per step, {busy:.3f} ms of it in kernels")
    for event in found[: args.top]:
        ms = event.self_device_time_total / 1000 / args.steps
        calls = event.count / args.steps
        print(f"{ms:8.4f} ms {100 * ms / busy:5.1f} % {calls:6.1f} x  {event.key[:110]}")


if __name__ == "__main__":
    main()
