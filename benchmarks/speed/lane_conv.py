"""Which form of a convolution with own weights in every lane is fastest: forward and backward, in ms per lane.

    python benchmarks/speed/lane_conv.py [--lanes 8,32,64] [--device auto] [--tf32] [--try-all]

The forms are those that askew.nets.lane_layers chooses from: all lanes as the groups of one convolution, one
convolution after another, patches times weights as a batched product, and (on a GPU) a Triton kernel. cuDNN multiplies
in TF32 by default, products only with --tf32; --try-all lets cuDNN try its kernels.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from speed import seconds
from torch import Tensor

from askew.core.device import pick_device
from askew.nets.lane_layers import by_products, grouped, one_by_one

LAYERS = {  # images, channels in and out, side, padding
    "digits-28 conv 1": (64, 1, 32, 28, 0),
    "digits-28 conv 2": (64, 32, 48, 12, 0),
    "digits-32 conv 1": (64, 3, 64, 32, 2),
    "digits-32 conv 2": (64, 64, 64, 16, 2),
    "digits-32 conv 3": (64, 64, 128, 8, 2),
}
KERNEL = 5

Form = Callable[..., Tensor]
"""(lanes, cin, n, h, w), (lanes, cout, cin, 5, 5), (lanes, cout), padding → (lanes, cout, n, h', w')"""


def all_forms(device: torch.device) -> dict[str, Form]:
    forms: dict[str, Form] = {"groups": grouped, "one by one": one_by_one, "product": by_products}
    if device.type == "cuda":
        from askew.nets import lane_kernels

        forms["Triton"] = lane_kernels.Conv.apply
    return forms


def timed(form: Form, inputs: list[Tensor], padding: int, repeats: int, device: torch.device) -> float:
    """Median ms of forward and backward; on a GPU as a CUDA graph, as it runs in training."""
    wanted = [value for value in inputs if value.requires_grad]

    def work() -> None:
        torch.autograd.grad(form(*inputs, padding).sum(), wanted)

    go: Callable[[], Any] = work
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):  # warm-up away from the stream that is captured
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        go = graph.replay
    go()
    return 1000 * statistics.median(seconds(go, device) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", default="8,32,64")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--try-all", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.backends.cudnn.benchmark = args.try_all
    device = pick_device(args.device)
    for layer, (n, cin, cout, side, padding) in LAYERS.items():
        for lanes in map(int, args.lanes.split(",")):
            x = torch.randn(lanes, cin, n, side, side, device=device, requires_grad=cin > 3)  # images need no gradient
            weight = torch.randn(lanes, cout, cin, KERNEL, KERNEL, device=device, requires_grad=True)
            bias = torch.zeros(lanes, cout, device=device, requires_grad=True)
            cells = [
                f"{name} {timed(form, [x, weight, bias], padding, args.repeats, device) / lanes:7.4f}"
                for name, form in all_forms(device).items()
            ]
            print(f"{layer}, {lanes:3} lanes, ms per lane:  " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
