"""How far rounding alone moves a run: the same plain run from weights that differ in their last
digits.

    python benchmarks/speed/rounding.py TASK [--methods source,mcd,coal] [--steps 5,10,20] [--data
    DATA] [--device cpu]

The largest distance between two trained weight tensors, in % of how far the tensor moved in
training. Differences of a fast path (a graph, a lane, another machine) have to be compared with
this. Markdown goes to stdout.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from askew.data.task import TrainingData
from askew.runs.config import RunRequest, prepare
from askew.training.run import Run
from askew.training.trainer import fit, run_net

CHANGES = (0.0, 1e-7, 1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task")
    parser.add_argument("--methods", default="source,mcd,coal")
    parser.add_argument("--steps", default="5,10,20")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    print("| method | steps | " + " | ".join(f"change {c:g}" for c in CHANGES) + " |")
    print("|---|---|" + "---|" * len(CHANGES))
    for method in args.methods.split(","):
        for steps in map(int, args.steps.split(",")):
            training = {"round": steps, "rounds": 1, "pretrain": 0, "precision": "float32"}
            planned = prepare(
                RunRequest(task=args.task, method=method, data=args.data, training=training)
            )
            run, task = planned.run, planned.task
            begun = run_net(run, task.training_data).state_dict()
            ended = [trained(run, task.training_data, device, changed(begun, by)) for by in CHANGES]
            # the first change is none: it shows whether the device is deterministic
            reference = trained(run, task.training_data, device, begun)
            cells = [f"{100 * farthest(begun, reference, end):.1f} %" for end in ended]
            print(f"| {method} | {steps} | " + " | ".join(cells) + " |", flush=True)


def changed(weights: Mapping[str, Tensor], by: float) -> dict[str, Tensor]:
    """Every weight times one plus a random number of about `by`."""
    noise = torch.Generator().manual_seed(0)
    return {
        name: value * (1 + by * torch.randn(value.shape, generator=noise))
        if value.is_floating_point()
        else value
        for name, value in weights.items()
    }


def trained(
    run: Run, training_data: TrainingData, device: torch.device, start: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    *_, last = fit(run, training_data, device, start=dict(start), graph=False)
    return {name: value.cpu().double() for name, value in last.weights().items()}


def farthest(
    begun: Mapping[str, Tensor], one: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> float:
    """The largest relative distance, over matrices and convolution kernels: norms and biases are
    too few numbers."""
    large = [name for name, value in one.items() if value.dim() > 1]
    return max(
        float((one[n] - other[n]).norm() / (one[n] - begun[n].double()).norm()) for n in large
    )


if __name__ == "__main__":
    main()
