"""The layers that networks and methods are built of."""

from __future__ import annotations

from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew.core import random
from askew.nets.vmap import layers as lane_layers


class NormKeeper(nn.Module):
    """A network whose batch norms may go by the statistics that it came with, in training too."""

    def __init__(self, keeps_norm: bool) -> None:
        super().__init__()
        self.keeps_norm = keeps_norm

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.keeps_norm:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


class Pixels(nn.Module):
    """uint8 (or 0 … 255) images to floats: (x/255 − mean)/std."""

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], channels: int | None = None
    ) -> None:
        super().__init__()
        self.channels = channels
        # on the CPU even where a network is only sketched: torch's meta device takes seconds to
        # import its arithmetic
        at, by = (torch.tensor(numbers, device="cpu").view(-1, 1, 1) for numbers in (mean, std))
        self.register_buffer("scale", 1 / (255 * by), persistent=False)
        self.register_buffer("shift", -(at / by), persistent=False)

    scale: Tensor
    shift: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.channels == 3 and x.shape[-3] == 1:
            x = x.expand(*x.shape[:-3], 3, *x.shape[-2:])
        return torch.addcmul(self.shift, x.float(), self.scale)


def plus_minus_one() -> Pixels:
    return Pixels((0.5,), (0.5,))


class Dropout(nn.Module):
    """Dropout whose mask is a hash of (step, layer, position): the same in a lane, a graph, and
    after a resume.

    With `rows`, whole rows are dropped: stochastic depth.
    """

    step_key: Tensor
    share = (0, 1)
    """Of a batch that processes share: how many of its rows come before those here, and how many
    are."""
    in_lanes = False

    def __init__(self, p: float, layer: int, rows: bool = False) -> None:
        super().__init__()
        self.p, self.layer, self.rows = p, layer, rows
        self.register_buffer("step_key", torch.zeros((), dtype=torch.int64), persistent=False)
        self._base: dict[tuple[torch.Size, tuple[int, int], torch.device], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.in_lanes and x.dim() == 2:
            return lane_layers.dropped(
                x, self.step_key, random.stream_key("dropout", self.layer), self.p
            )
        shape = torch.Size([len(x), *[1] * (x.dim() - 1)]) if self.rows else x.shape
        place = (shape, self.share, x.device)
        if place not in self._base:
            before, here = self.share
            position = (
                torch.arange(shape.numel(), device=x.device).view(shape)
                + shape.numel() // here * before
            )
            self._base[place] = random.hash64(random.key("dropout", self.layer), position)
        keep = random.keep_mask(self._base[place], self.step_key, self.p)
        return torch.where(keep, x, 0) / (1 - self.p)


class Crop(nn.Module):
    """A square of `size` pixels: at random, and flipped half the time, in training; the centre
    otherwise.

    Place and flip are a hash of (step, row), as in `Dropout`. What comes out lies in memory
    channels last, the order that convolutions of large networks like best. A view of that size,
    which has floats for pixels and is flipped already, is left as it is. (n, k, h, w) → (n, k,
    size, size)
    """

    step_key: Tensor
    share = (0, 1)

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("step_key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, _, height, width = x.shape
        spare_y, spare_x = height - self.size, width - self.size
        if spare_y == spare_x == 0 and x.is_floating_point():
            return x
        if not self.training:
            y, x0 = spare_y // 2, spare_x // 2
            return x[:, :, y : y + self.size, x0 : x0 + self.size]
        row = torch.arange(n, device=x.device)
        chance_of = random.hash64(random.key("crop"), row + self.share[0]) ^ self.step_key
        bits = random.hash64(
            0, chance_of
        )  # mixed once more: neighbouring steps must not give neighbouring places
        top, left = (bits & 0xFFFF) % (spare_y + 1), ((bits >> 16) & 0xFFFF) % (spare_x + 1)
        flip = ((bits >> 32) & 1).bool()
        place = torch.arange(self.size, device=x.device)
        ys = top[:, None] + place
        xs = left[:, None] + torch.where(flip[:, None], self.size - 1 - place, place)
        return x[row[:, None, None], :, ys[:, :, None], xs[:, None, :]].permute(0, 3, 1, 2)


class Contrast(nn.Module):
    """How far each pixel is from the colour of the picture's ground, to unit variance: blind to
    tint and polarity.

    The ground is the mean of the top and the bottom row, where strokes are rare:
    c = mean over channels of |x − ground|, then (c − mean)/std over the picture. (n, k, h, w) → (n,
    1, h, w)
    """

    def forward(self, x: Tensor) -> Tensor:
        ground = (x[..., :1, :] + x[..., -1:, :]).mean(dim=-1, keepdim=True) / 2
        c = (x - ground).abs().mean(dim=-3, keepdim=True)
        std, mean = torch.std_mean(c, dim=(-2, -1), keepdim=True)
        return (c - mean) / (std + 1e-3)


# --- layers that lanes compute their own way (askew.nets.vmap.layers), once told that they are in
# lanes ---


class Conv(nn.Conv2d):
    """A convolution of stride one with square kernels, before a norm."""

    in_lanes = False

    def forward(self, x: Tensor) -> Tensor | lane_layers.Pending:  # type: ignore[override]
        if not self.in_lanes:
            return super().forward(x)
        assert self.bias is not None
        return lane_layers.Pending(x, self.weight, self.bias, int(self.padding[0]))


class Linear(nn.Linear):
    in_lanes = False

    def forward(self, x: Tensor) -> Tensor:
        return lane_layers.dense(x, self.weight, self.bias) if self.in_lanes else super().forward(x)


class NormRelu1d(nn.BatchNorm1d):
    """Batch norm, then ReLU."""

    in_lanes = False

    def forward(self, x: Tensor) -> Tensor:
        return lane_layers.norm_relu_pool(self, x) if self.in_lanes else F.relu(super().forward(x))


class NormReluPool2d(nn.BatchNorm2d):
    """Batch norm, ReLU, then a max pool (size, stride, padding)."""

    in_lanes = False

    def __init__(self, channels: int, pool: lane_layers.Pool = lane_layers.NO_POOL) -> None:
        super().__init__(channels)
        self.pool = pool

    def forward(self, x: Tensor | lane_layers.Pending) -> Tensor:
        if self.in_lanes or isinstance(x, lane_layers.Pending):
            return lane_layers.norm_relu_pool(self, x, self.pool)
        x = F.relu(super().forward(x))
        return x if self.pool == lane_layers.NO_POOL else F.max_pool2d(x, *self.pool)


class UnitLength(nn.Module):
    """f/‖f‖"""

    def forward(self, f: Tensor) -> Tensor:
        return F.normalize(f, dim=-1)


class Centre(nn.BatchNorm1d):
    """f less the mean of its domain: a batch norm of means alone, with the same statistics under
    the same names."""

    def __init__(self, width: int) -> None:
        super().__init__(width, affine=False)

    def forward(self, f: Tensor) -> Tensor:
        if self.training and self.running_mean is not None and self.momentum is not None:
            self.running_mean.lerp_(f.detach().mean(dim=0), self.momentum)
            return f - f.mean(dim=0)
        return f if self.running_mean is None else f - self.running_mean

    def move(self, source: Tensor, target: Tensor) -> None:
        """Take more from the features of each domain than is taken now from the target's. (d,),
        (d,)"""
        now = self.get_buffer("running_mean").clone()
        for name, centre in (("running_mean", target), ("source_running_mean", source)):
            if name in self._buffers:  # the source's only where statistics are kept apart
                self.get_buffer(name).copy_(now + centre.to(now))


def conv(
    cin: int, cout: int, padding: int = 0, pool: lane_layers.Pool = lane_layers.NO_POOL
) -> list[nn.Module]:
    return [Conv(cin, cout, 5, padding=padding), NormReluPool2d(cout, pool)]


def dense(win: int, wout: int, *, layer: int | None = None) -> list[nn.Module]:
    dropout = [] if layer is None else [Dropout(0.5, layer)]
    return [Linear(win, wout), NormRelu1d(wout), *dropout]


def dense_stack(width: int, depth: int) -> nn.Sequential:
    """`depth` layers that keep the width: linear, batch norm, ReLU."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in dense(width, width)))
