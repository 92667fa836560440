"""ResNet-50 from uint8 images: askew's whole step against the bare one, in images per second (source and target).

    python benchmarks/speed/images.py [--net resnet50] [--batches 16,64] [--method coal] [--device auto]

The bare step takes one ready float batch on the device through forward, backward and torch's fused SGD, channels last,
in the same precision: nothing is gathered, cropped or normalised. Pictures are random, 256 pixels, on the device.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from speed import advance, seconds

from askew.core.device import pick_device
from askew.data.domains import Labeled, Unlabeled
from askew.data.task import TrainingData
from askew.methods import METHODS
from askew.nets.network import build
from askew.nets.spec import NetSpec
from askew.training.batches import Feed
from askew.training.optim import Optim
from askew.training.run import Run, Stage
from askew.training.trainer import Trainer, run_net

CLASSES = 7


def training_data(images: int) -> TrainingData:
    rng = np.random.default_rng(0)
    x = [rng.integers(0, 256, (n, 3, 256, 256), dtype=np.uint8) for n in (images, 8, images, 8)]
    y = (np.arange(images) % CLASSES).astype(np.int64)
    return TrainingData(Labeled(x[0], y), Labeled(x[1], y[:8]), Unlabeled(x[2]), Unlabeled(x[3]), tuple("abcdefg"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="resnet50")
    parser.add_argument("--method", default="coal")
    parser.add_argument("--batches", default="16,64")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=["float32", "bf16"])
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = pick_device(args.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}, {args.net}, {args.method}, {args.precision}", flush=True)
    data = training_data(args.images)
    feed = Feed(data, device)
    for batch in map(int, args.batches.split(",")):
        rates = measure(batch, args, feed, data, device)
        for label, rate in rates.items():
            share = 100 * rate / rates["bare step"]
            print(f"{batch:3} + {batch:3}  {label:14} {rate:8.0f} images/s  {share:5.1f} % of the bare step")


def measure(
    batch: int, args: argparse.Namespace, feed: Feed, data: TrainingData, device: torch.device
) -> dict[str, float]:
    """Median images per second of the bare step, of askew's, and (on a GPU) of askew's as a CUDA graph."""
    method = METHODS[args.method]()
    stage = Stage(method, 1, args.steps, Optim(lr=0.001, features_lr=0.0001))
    spec = NetSpec(name=args.net, head=method.head)
    run = Run("images", "natural", 0, data.origin, spec, (stage,), batch, "balanced", "natural", args.precision, 0, 1)
    works: dict[str, Callable[[], object]] = {"bare step": bare(spec, batch, args, device)}
    for graph in (False, True) if device.type == "cuda" else (False,):
        net = run_net(run, data).to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        net.share_step_key()
        trainer = Trainer(run, 0, feed, net, graph)
        trainer.refresh(0)
        works["askew, graph" if graph else "askew"] = lambda trainer=trainer: advance(trainer, args.steps)
    for work in works.values():
        work()
    rates: dict[str, list[float]] = {label: [] for label in works}
    for _ in range(args.repeats):
        for label, work in works.items():
            rates[label].append(2 * batch * args.steps / seconds(work, device))
    return {label: statistics.median(values) for label, values in rates.items()}


def bare(spec: NetSpec, batch: int, args: argparse.Namespace, device: torch.device) -> Callable[[], object]:
    parts, _ = build(spec, (3, 224, 224), CLASSES, 0)
    net = torch.nn.Sequential(parts["features"].body, torch.nn.Flatten(), parts["head"]).to(device).train()  # type: ignore[arg-type]
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True)
    x = torch.randn(2 * batch, 3, 224, 224, device=device).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, CLASSES, (2 * batch,), device=device)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = F.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return lambda: [step() for _ in range(args.steps)]


if __name__ == "__main__":
    main()
