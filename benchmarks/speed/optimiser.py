"""Time of an optimiser's step on a CPU: askew's, over torch's fused kernels, against torch.optim's
own, in one run.

    python benchmarks/speed/optimiser.py

docs/dependencies.md has what it printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from askew.nets.network import build
from askew.nets.spec import NetworkSpec
from askew.training.optim import Optim, Optimiser

STEPS, REPEATS = 100, 7


def ours(kind: str, params: Mapping[str, Tensor], grads: list[Tensor]) -> Callable[[], object]:
    optim = Optim(optimiser=kind)  # type: ignore[arg-type]
    optimiser = Optimiser(optim, {n: p.detach() for n, p in params.items()})
    names, t = list(params), torch.tensor(0.5)
    return lambda: optimiser.step(names, grads, t)


def theirs(kind: str, params: Mapping[str, Tensor], grads: list[Tensor]) -> Callable[[], object]:
    rates = {"features": 0.001, "head": 0.01}
    groups = [
        {"params": [p for n, p in params.items() if n.startswith(part)], "lr": torch.tensor(rate)}
        for part, rate in rates.items()
    ]
    optimiser: torch.optim.Optimizer = (
        torch.optim.SGD(groups, momentum=0.9, weight_decay=5e-4, fused=True)
        if kind == "sgd"
        else torch.optim.Adam(groups, fused=True)
    )

    def step() -> None:
        for param, grad in zip(params.values(), grads, strict=True):
            param.grad = grad
        optimiser.step()

    return step


def milliseconds(step: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return (time.perf_counter() - began) / STEPS * 1e3


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    params = dict(
        nn.ModuleDict(
            build(NetworkSpec(layers="digits-28"), (1, 28, 28), 10, 0)[0]
        ).named_parameters()
    )
    grads = [torch.randn_like(p) for p in params.values()]
    for kind in ("sgd", "adam"):
        ways = ours(kind, params, grads), theirs(kind, params, grads)
        times = [[milliseconds(way) for way in ways] for _ in range(REPEATS)]  # interleaved
        a, b = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{kind}: askew {a:.3f} ms, torch.optim {b:.3f} ms per step, {b / a:.2f} x")


if __name__ == "__main__":
    main()
