"""Time of one COAL step, ours against the same step in plain PyTorch, as a ratio in one run.

    python benchmarks/step_time.py [--data DATA] [--device auto]

Plain PyTorch: torch.optim.SGD, nn.Dropout, batches gathered from data that already lies on the device.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.data.feed import Feed
from askew.engine import Trainer
from askew.execute import pick_device
from askew.layers import Dropout
from askew.nets import Net, build
from askew.recipe import Wish, prepare


class PlainCoal:
    """COAL's step B as one would write it by hand, on the same network."""

    def __init__(self, features: nn.Module, head: nn.Module, feed: Feed, temperature: float) -> None:
        for module in features:  # type: ignore[attr-defined]
            if isinstance(module, Dropout):
                module.__class__ = nn.Dropout  # torch's own
                module.inplace = False
        self.features, self.head, self.feed, self.temperature = features, head, feed, temperature
        groups = [{"params": head.parameters(), "lr": 0.01}, {"params": features.parameters(), "lr": 0.001}]
        self.optimiser = torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4)
        n = len(feed.target)
        self.pseudo = torch.randint(0, 10, (n,), device=feed.device)
        self.mask = (torch.rand(n, device=feed.device) < 0.2).float()

    def logits(self, f: Tensor) -> Tensor:
        return self.head(F.normalize(f)) / self.temperature  # type: ignore[no-any-return]

    def step(self) -> None:
        feed, b = self.feed, 32
        rows = torch.randint(0, len(feed.source), (b,), device=feed.device)
        it = torch.randint(0, len(feed.target), (b,), device=feed.device)
        x = torch.cat([feed.source.x[rows], feed.target.x[it]])
        f = self.features(x)
        fs, ft = f[:b], f[b:]
        supervised = F.cross_entropy(self.logits(fs), feed.ys[rows])
        self_training = (F.cross_entropy(self.logits(ft), self.pseudo[it], reduction="none") * self.mask[it]).mean()
        reversed_ft = ft.detach() * 2 - ft  # forward x, backward −1
        log_p = self.logits(reversed_ft).log_softmax(1)
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        loss = supervised + self_training - 0.1 * entropy
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def advance(trainer: Trainer, steps: int) -> None:
    """Take that many steps in the engine's own chunks."""
    trainer.clock.zero_()
    for first in range(0, steps, trainer.chunk):
        trainer.advance(first, min(trainer.chunk, steps - first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tasks", default="digits/usps-mnist,digits/svhn-mnist")
    args = parser.parse_args()
    device = pick_device(args.device)
    torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread"
    print(f"{name}, torch {torch.__version__}; ms a step, median of {args.repeats} x {args.steps} steps, interleaved")
    for task in args.tasks.split(","):
        run, loaded = prepare(Wish(task, "coal", data=args.data, training={"round": args.steps}))
        feed = Feed(loaded.study, device)
        shape = tuple(loaded.study.source.x.shape[1:])
        steps = {}

        def fresh(run=run, shape=shape) -> tuple[dict[str, nn.Module], int]:  # type: ignore[no-untyped-def]
            return build(run.net, shape, 10, 0)

        parts, _ = fresh()
        plain = PlainCoal(
            parts["features"].to(device).train(), parts["head"].prototypes.to(device), feed, run.net.temperature
        )  # type: ignore[union-attr, arg-type]
        steps["plain PyTorch"] = lambda plain=plain: [plain.step() for _ in range(args.steps)]
        for label, graph in (("askew", False), *((("askew, graph", True),) if device.type == "cuda" else ())):
            parts, width = fresh()
            net = Net(parts, width, split_norm=False).to(device)
            net.share_moment()
            trainer = Trainer(run, len(run.plan) - 1, feed, net.train(), graph)
            trainer.refresh(0)
            steps[label] = lambda trainer=trainer: advance(trainer, args.steps)
        times: dict[str, list[float]] = {label: [] for label in steps}
        for repeat in range(args.repeats + 1):
            for label, work in steps.items():
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter()
                work()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                if repeat:  # the first is a warm-up
                    times[label].append(1000 * (time.perf_counter() - began) / args.steps)
        base = statistics.median(times["plain PyTorch"])
        for label, values in times.items():
            ms = statistics.median(values)
            print(f"{task:20} {label:14} {ms:8.3f} ms   {base / ms:5.2f} x plain")


if __name__ == "__main__":
    main()
