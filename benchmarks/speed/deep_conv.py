"""Block sizes of the convolutions of many channels in lanes: µs per lane of each, right ones only.

    python benchmarks/speed/deep_conv.py [--compile 8] [--json FILE]

--compile N compiles all of them in N processes and ends: Triton's cache hands them to the next
call.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.errors import TritonError

from askew.nets.triton import deep_kernels
from askew.nets.triton.deep_kernels import Tile
from askew.nets.triton.trust import TOLERATED

LAYERS = {  # channels in and out, side, padding, lanes of a full step, lanes of the paper's grid
    "digits-28 conv 2": (32, 48, 12, 0, 64, 10),
    "digits-32 conv 2": (64, 64, 16, 2, 16, 5),
    "digits-32 conv 3": (64, 128, 8, 2, 16, 5),
}
IMAGES, K = 64, 5
OPS = "forward", "images", "weights"
DTYPES = {"tf32": torch.float32, "half": torch.float16}


def tiles(op: str, cin: int, cout: int, dtype: torch.dtype) -> Iterator[Tile]:
    """Block sizes worth a try."""
    half = dtype == torch.float16
    yield deep_kernels.tile(
        op, *((cin, cout) if op == "forward" else (cout, cin)), dtype
    )  # the one in use
    if op == "weights":
        deep = 64 if cout <= 64 else 128
        for pixels in (32, 64, 128) if half else (32, 64):
            for wide in (64, 128, 256) if half else (64, 128):
                for stages in (2, 3):
                    yield Tile(pixels, wide, deep, 8 if wide * deep > 8192 else 4, stages)
        if not half:
            yield Tile(32, 64, 32, 2, 3)
            yield Tile(32, 64, 64, 2, 3)
        return
    c, co = (cin, cout) if op == "forward" else (cout, cin)
    wide = 64 if co == 48 else co
    depths = (16, 64) if c == 48 else (32,) if c == 32 else (32, 64)
    for pixels, warps, stages in (
        (64, 4, 3),
        (64, 4, 4),
        (128, 4, 3),
        (128, 4, 4),
        (128, 8, 3),
        (256, 8, 3),
    ):
        for deep in depths:
            yield Tile(pixels, wide, deep, warps, stages)


class Problem:
    """A layer's tensors, and what torch makes of them."""

    def __init__(self, layer: str, lanes: int, dtype: torch.dtype, device: torch.device) -> None:
        cin, cout, side, self.padding, *_ = LAYERS[layer]
        chance = torch.Generator(device).manual_seed(0)
        self.out = side + 2 * self.padding - K + 1
        self.lanes, self.unit = lanes, torch.ones(lanes, device=device)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=chance, device=device).to(dtype)

        self.x, self.g = (
            normal(lanes, IMAGES, side, side, cin),
            normal(lanes, IMAGES, self.out, self.out, cout),
        )
        self.weight = normal(lanes, cout, cin, K, K)
        self.straight = (
            self.weight.permute(0, 3, 4, 1, 2).reshape(lanes, K * K, cout, cin).contiguous()
        )
        self.turned = (
            self.weight.flip(3, 4)
            .permute(0, 3, 4, 2, 1)
            .reshape(lanes, K * K, cin, cout)
            .contiguous()
        )

    def work(self, op: str, tile: Tile) -> Callable[[], Any]:
        if op == "forward":
            return lambda: deep_kernels.convolved(
                self.x, self.straight, self.padding, tile, self.x.dtype
            )[0]
        if op == "images":
            room = K - 1 - self.padding
            return lambda: deep_kernels.convolved(
                self.g, self.turned, room, tile, torch.float32, self.unit
            )[0]
        return lambda: deep_kernels.weighed(self.x, self.g, self.unit, K, self.padding, tile)

    def right(self) -> dict[str, Tensor]:
        """Of the first lane, in float32."""
        x = self.x[0].float().permute(0, 3, 1, 2).requires_grad_()
        weight = self.weight[0].float().requires_grad_()
        out = F.conv2d(x, weight, padding=self.padding)
        dx, dweight = torch.autograd.grad(out, [x, weight], self.g[0].float().permute(0, 3, 1, 2))
        return {
            "forward": out.detach().permute(0, 2, 3, 1),
            "images": dx.permute(0, 2, 3, 1),
            "weights": dweight,
        }

    def first_lane(self, op: str, found: Any) -> Tensor:
        if op != "weights":
            return found[0].float()
        dweight = found.sum(dim=0)[0]
        return dweight.view(dweight.shape[0], K, K, -1).permute(0, 3, 1, 2)


def microseconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Median of repeats of three calls each."""
    work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(3):
            work()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / 3)
    return statistics.median(times)


def cases() -> list[tuple[str, str, int]]:
    return [
        (layer, kind, lanes)
        for layer, row in LAYERS.items()
        for kind in DTYPES
        for lanes in row[4:]
    ]


def compile_some(first: int, every: int) -> None:
    device, turn = torch.device("cuda"), 0
    for layer, kind, lanes in cases():
        problem = Problem(layer, lanes, DTYPES[kind], device)
        for op in OPS:
            for tile in tiles(op, *LAYERS[layer][:2], DTYPES[kind]):
                turn += 1
                if turn % every == first:
                    with contextlib.suppress(TritonError):  # reported when it is timed
                        problem.work(op, tile)()


def compile_all(processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_some, args=(i, processes)) for i in range(processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def timed(problem: Problem, op: str, tile: Tile, wanted: Tensor) -> dict[str, Any]:
    """µs per lane, and how far from what is right; or why there are none."""
    work = problem.work(op, tile)
    try:
        off = float((problem.first_lane(op, work()) - wanted).norm() / wanted.norm())
        return {"tile": tile, "us": microseconds(work) / problem.lanes, "off": off}
    except TritonError as error:  # no room in shared memory, perhaps
        return {"tile": tile, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.compile:
        compile_all(args.compile)
        return
    rows = []
    for layer, kind, lanes in cases():
        problem = Problem(layer, lanes, DTYPES[kind], torch.device("cuda"))
        torch.backends.cudnn.allow_tf32 = False
        right = problem.right()
        torch.backends.cudnn.allow_tf32 = True
        for op in OPS:
            found = [
                timed(problem, op, tile, right[op])
                for tile in tiles(op, *LAYERS[layer][:2], DTYPES[kind])
            ]
            rows += [
                {"layer": layer, "kind": kind, "lanes": lanes, "op": op, **row} for row in found
            ]
            good = sorted(
                (row for row in found if row.get("off", 1) < TOLERATED), key=lambda row: row["us"]
            )
            told = (
                ", ".join(f"{row['us']:.1f} {tuple(row['tile'])}" for row in good[:3])
                or "none is right"
            )
            print(f"{layer}, {lanes:2} lanes, {kind}, {op:8}: {told}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
