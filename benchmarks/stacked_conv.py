"""How a convolution with weights of its own in every lane is best computed: forward and backward, ms a lane.

    python benchmarks/stacked_conv.py [--lanes 8,32,64] [--device auto] [--tf32] [--try-all]

Forms: `grouped` is what torch.func.vmap makes of F.conv2d; `grouped, last` the same on channels-last memory; `unfold`
gathers patches with F.unfold and multiplies lane by lane in one batched product; `strided` gathers them through a view
of channels-last memory; `rows` gathers only horizontally and adds up one product a row of the kernel, with its gradient
written out; `askew` is what lanes do (askew.nets.lane_layers); `compiled` is `strided` through torch.compile.
cuDNN multiplies
in TF32 by default, products only with --tf32; --try-all lets cuDNN try its kernels.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from askew.core.device import pick_device
from askew.nets.lane_layers import conv2d

LAYERS = {  # images, channels in and out, side, padding
    "digits-28 conv 1": (64, 1, 32, 28, 0),
    "digits-28 conv 2": (64, 32, 48, 12, 0),
    "digits-32 conv 1": (64, 3, 64, 32, 2),
    "digits-32 conv 2": (64, 64, 64, 16, 2),
    "digits-32 conv 3": (64, 64, 128, 8, 2),
}
KERNEL = 5

Form = Callable[[Tensor, Tensor, int], Tensor]
"""(lanes, n, cin, h, w), (lanes, cout, cin, 5, 5), padding → (lanes, n, cout, h', w')"""


def grouped(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    return vmap(lambda a, w: F.conv2d(a, w, padding=padding))(x, weight)


def grouped_last(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    lanes, n, cin, h, w = x.shape
    flat = x.permute(1, 0, 2, 3, 4).reshape(n, lanes * cin, h, w).contiguous(memory_format=torch.channels_last)
    stacked = weight.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    out = F.conv2d(flat, stacked, padding=padding, groups=lanes)
    return out.unflatten(1, (lanes, -1)).transpose(0, 1)


def unfold(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    lanes, n, _, h, _ = x.shape
    side = h + 2 * padding - KERNEL + 1
    columns = F.unfold(x.flatten(0, 1), KERNEL, padding=padding)  # (lanes·n, K, P)
    columns = columns.unflatten(0, (lanes, n)).permute(0, 2, 1, 3).flatten(2)  # (lanes, K, n·P)
    out = weight.flatten(2) @ columns  # (lanes, cout, n·P)
    return out.unflatten(2, (n, side, side)).transpose(1, 2)


def strided(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    x = F.pad(x, (padding,) * 4).permute(0, 1, 3, 4, 2)  # channels last
    patches = x.unfold(2, KERNEL, 1).unfold(3, KERNEL, 1)  # (lanes, n, h', w', cin, 5, 5)
    side = patches.shape[2]
    columns = patches.reshape(len(x), -1, weight[0, 0].numel())  # (lanes, n·h'·w', K)
    out = columns @ weight.flatten(2).transpose(1, 2)
    return out.unflatten(1, (-1, side, side)).permute(0, 1, 4, 2, 3)


class Rows(torch.autograd.Function):
    """(lanes, n, H, W, cin), already padded, and the weights → (lanes, n, H − 4, W − 4, cout)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        lanes, n, h, w, cin = x.shape
        side = w - KERNEL + 1
        columns = x.unfold(3, KERNEL, 1).reshape(lanes, n * h * side, cin * KERNEL)
        out = x.new_empty(lanes, n * h * side, weight.shape[1])
        whole = n * h * side - (KERNEL - 1) * side  # the last rows of the last image have no full patch below them
        for i in range(KERNEL):
            part = columns[:, i * side : i * side + whole]
            torch.baddbmm(out[:, :whole], part, _row(weight, i), beta=float(i > 0), out=out[:, :whole])
        return out.view(lanes, n, h, side, -1)[:, :, : h - KERNEL + 1], columns

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        x, weight = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])
        ctx.shape, ctx.wants_x = x.shape, x.requires_grad

    @staticmethod
    def backward(ctx, g, _):  # type: ignore[no-untyped-def]
        weight, columns = ctx.saved_tensors
        lanes, n, h, w, cin = ctx.shape
        side = w - KERNEL + 1
        g = F.pad(g, (0, 0, 0, 0, 0, KERNEL - 1)).reshape(lanes, n * h * side, -1)
        whole = g.shape[1] - (KERNEL - 1) * side
        g = g[:, :whole]
        parts = [columns[:, i * side : i * side + whole] for i in range(KERNEL)]
        dw = torch.stack([g.transpose(1, 2) @ part for part in parts], dim=2)
        dw = dw.view(lanes, -1, KERNEL, cin, KERNEL).transpose(2, 3)
        if not ctx.wants_x:
            return None, dw
        dcolumns = torch.zeros_like(columns)
        for i in range(KERNEL):
            dcolumns[:, i * side : i * side + whole].baddbmm_(g, _row(weight, i).transpose(1, 2))
        dcolumns = dcolumns.view(lanes, n, h, side, cin, KERNEL)
        dx = g.new_zeros(ctx.shape)
        for j in range(KERNEL):
            dx[:, :, :, j : j + side] += dcolumns[..., j]
        return dx, dw


def _row(weight: Tensor, i: int) -> Tensor:
    return weight[:, :, :, i].flatten(2).transpose(1, 2)


def rows(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    out, _ = Rows.apply(F.pad(x, (padding,) * 4).permute(0, 1, 3, 4, 2), weight)
    return out.permute(0, 1, 4, 2, 3)


def askew(x: Tensor, weight: Tensor, padding: int) -> Tensor:
    return vmap(lambda a, w, b: conv2d(a, w, b, padding))(x, weight, weight.new_zeros(weight.shape[:2]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", default="8,32,64")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--try-all", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = args.tf32
    torch.backends.cudnn.benchmark = args.try_all
    device = pick_device(args.device)
    forms: dict[str, Form] = {
        "grouped": grouped,
        "grouped, last": grouped_last,
        "unfold": unfold,
        "strided": strided,
        "rows": rows,
        "askew": askew,
    }
    if not args.no_compile:
        forms["compiled"] = torch.compile(strided)
    for layer, (n, cin, cout, side, padding) in LAYERS.items():
        for lanes in map(int, args.lanes.split(",")):
            x = torch.randn(lanes, n, cin, side, side, device=device, requires_grad=cin > 3)  # images need no gradient
            weight = torch.randn(lanes, cout, cin, KERNEL, KERNEL, device=device, requires_grad=True)
            with torch.no_grad():
                want = grouped(x, weight, padding)
            cells = []
            for name, form in forms.items():
                try:
                    with torch.no_grad():
                        apart = (form(x, weight, padding) - want).norm() / want.norm()
                    assert apart < 1e-2, f"{name} is {apart:.2g} off"  # TF32 may be on in one and not in the other
                    cells.append(f"{name} {timed(form, x, weight, padding, args.repeats, device) / lanes:7.4f}")
                except (RuntimeError, AssertionError) as error:
                    cells.append(f"{name} failed: {str(error).splitlines()[0][:60]}")
            print(f"{layer}, {lanes:3} lanes, ms a lane:  " + "   ".join(cells), flush=True)


def timed(form: Form, x: Tensor, weight: Tensor, padding: int, repeats: int, device: torch.device) -> float:
    """Median ms of forward and backward, as a CUDA graph on a GPU, as it runs in training."""
    inputs = [weight, *([x] if x.requires_grad else [])]

    def work() -> None:
        torch.autograd.grad(form(x, weight, padding).sum(), inputs)

    if device.type == "cuda":  # warm-up away from the stream that is captured
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
    else:
        work()
    go: Callable[[], object] = work
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        go = graph.replay
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        go()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


if __name__ == "__main__":
    main()
