"""Which form of a convolution with own weights in every lane is fastest: forward and backward, in
µs per lane.

    python benchmarks/speed/lane_conv.py [--lanes 8,32,64] [--images 64] [--device auto] [--tf32]
    [--try-all] python benchmarks/speed/lane_conv.py --bf16 --lanes 64,16,5

The forms are those of askew.nets.vmap.forms: all lanes as the groups of one convolution, one
convolution after another, patches times weights as a batched product, and (on a GPU) a Triton
kernel. cuDNN multiplies in TF32 by default, products only with --tf32; --try-all lets cuDNN try its
kernels.

With --bf16, a second line has the same forms with activations, weights and gradients in bfloat16
(products in TF32 in the first), and "one by one, NHWC", where activations lie channels last in
memory before and after. An outcome that is more than 2 % of its length off the float32 one is
marked "wrong".
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from timing import seconds
from torch import Tensor

from askew.core.device import pick_device
from askew.nets.triton.trust import TOLERATED
from askew.nets.vmap.forms import by_products, grouped, one_by_one

LAYERS = {  # channels in and out, side, padding
    "digits-28 conv 1": (1, 32, 28, 0),
    "digits-28 conv 2": (32, 48, 12, 0),
    "digits-32 conv 1": (3, 64, 32, 2),
    "digits-32 conv 2": (64, 64, 16, 2),
    "digits-32 conv 3": (64, 128, 8, 2),
}
KERNEL = 5

Form = Callable[..., Tensor]
"""(lanes, cin, n, h, w), (lanes, cout, cin, 5, 5), (lanes, cout), padding → (lanes, cout, n, h',
w')"""


def channels_last(x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
    """A convolution a lane, of activations that lie in memory as (lanes, n, h, w, c)."""
    images = x.permute(0, 2, 1, 3, 4)  # (lanes, n, cin, h, w)
    lanes = [F.conv2d(*lane, padding=padding) for lane in zip(images, weight, bias, strict=True)]
    return torch.stack([lane.permute(0, 2, 3, 1) for lane in lanes]).permute(0, 4, 1, 2, 3)


def all_forms(device: torch.device, bf16: bool) -> dict[str, Form]:
    forms: dict[str, Form] = {"groups": grouped, "one by one": one_by_one, "product": by_products}
    if device.type == "cuda":
        from askew.nets.triton import kernels

        forms["Triton"] = lambda x, weight, bias, padding: kernels.Conv.apply(
            x, weight, padding, x.dtype
        ).to(x.dtype)
    return forms | ({"one by one, NHWC": channels_last} if bf16 else {})


def timed(
    form: Form, inputs: list[Tensor], padding: int, repeats: int, device: torch.device
) -> float:
    """Median ms of forward and backward; on a GPU as a CUDA graph, as it runs in training."""
    wanted = [value for value in inputs if value.requires_grad]
    layout = torch.preserve_format if form is channels_last else torch.contiguous_format
    g = torch.ones_like(
        form(*inputs, padding), memory_format=layout
    )  # as the norm's backward lays it out

    def work() -> None:
        torch.autograd.grad(form(*inputs, padding), wanted, g)

    go: Callable[[], Any] = work
    if device.type == "cuda":
        torch.cuda.synchronize()
        with torch.cuda.stream(
            torch.cuda.Stream()
        ):  # warm-up away from the stream that is captured
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        go = graph.replay
    go()
    return 1000 * statistics.median(seconds(go, device) for _ in range(repeats))


def cell(
    name: str, form: Form, exact: list[Tensor], padding: int, dtype: torch.dtype, repeats: int
) -> str:
    """The time of a form, and whether it is right."""
    inputs = [value.detach().to(dtype).requires_grad_(value.requires_grad) for value in exact]
    if form is channels_last:
        x = inputs[0].detach().permute(0, 2, 3, 4, 1).contiguous().permute(0, 4, 1, 2, 3)
        inputs[0] = x.requires_grad_(exact[0].requires_grad)
    lanes, device = len(exact[0]), exact[0].device
    try:
        with torch.no_grad():
            right: Tensor = all_forms(device, False)["one by one"](*exact, padding)
            off = float((form(*inputs, padding).float() - right).norm() / right.norm())
            del right
        took = 1000 * timed(form, inputs, padding, repeats, device) / lanes
    # a kernel that is not made for it, or no memory: the other forms count all the same
    except Exception as error:
        return (
            f"{name} failed ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:60] if str(error) else ''})"
        )
    return f"{name} {took:7.1f}" + (f" wrong ({100 * off:.0f} %)" if off > TOLERATED else "")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lanes", default="8,32,64")
    parser.add_argument("--images", type=int, default=64, help="Of both domains, in a lane.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="Also in bfloat16; implies --tf32.")
    parser.add_argument("--try-all", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32 or args.bf16
    torch.backends.cudnn.benchmark = args.try_all
    device = pick_device(args.device)
    dtypes = {"float32": torch.float32, **({"bfloat16": torch.bfloat16} if args.bf16 else {})}
    for layer, (cin, cout, side, padding) in LAYERS.items():
        for lanes in map(int, args.lanes.split(",")):
            shape = lanes, cin, args.images, side, side
            x = torch.randn(shape, device=device, requires_grad=cin > 3)  # images need no gradient
            weight = torch.randn(
                lanes, cout, cin, KERNEL, KERNEL, device=device, requires_grad=True
            )
            bias = torch.zeros(lanes, cout, device=device, requires_grad=True)
            for label, dtype in dtypes.items():
                print(f"{layer}, {lanes:3} lanes, {label:8}, µs per lane:", end="", flush=True)
                for name, form in all_forms(device, args.bf16).items():
                    told = cell(name, form, [x, weight, bias], padding, dtype, args.repeats)
                    print("   " + told, end="", flush=True)
                print(flush=True)


if __name__ == "__main__":
    main()
