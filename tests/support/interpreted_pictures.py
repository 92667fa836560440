"""Picture views by their Triton kernels on a processor, by Triton's interpreter: prints how far
each is from torch's.

A program, since Triton asks once, when it is imported, whether to interpret.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch

from askew.core import random
from askew.nets import augment
from askew.nets.augment import Views, make_view
from askew.nets.triton import picture_kernel, trust

IMAGES = 16
"""Flipped, grey, sharper and inverted ones among them."""
CASES = [  # channels, height and width, side of the view, kind of pixels, style, strength: few pixels: each takes long
    (3, (13, 17), 11, torch.uint8, 1.0, 1.0),
    (3, (13, 17), 11, torch.uint8, 0.0, 1.0),
    (3, (9, 9), 0, torch.float32, 1.0, 0.4),
    (1, (8, 6), 16, torch.uint8, 0.5, 1.0),
    (1, (8, 6), 7, torch.float64, 0.0, 0.7),
    (3, (5, 4), 1, torch.float32, 1.0, 1.0),
    (3, (1, 1), 3, torch.uint8, 1.0, 1.0),
]


def main() -> None:
    torch.set_num_threads(1)
    picture_kernel.BLOCK = 128  # fewer than a view has, and no divisor of theirs
    rng, keys = (
        torch.Generator().manual_seed(0),
        random.hash64(random.key("pictures"), torch.arange(IMAGES)),
    )
    for channels, sides, side, kind, style, strength in CASES:
        x = torch.randint(0, 256, (IMAGES, channels, *sides), generator=rng, dtype=torch.uint8).to(
            kind
        )
        views = []
        for by_kernels in (False, True):
            augment._by_kernels = lambda *_, by=by_kernels: by
            views.append(make_view(x, keys, Views(views="picture", style=style), strength, side))
        wanted, found = views
        assert found.shape == wanted.shape
        assert found.is_contiguous(memory_format=torch.channels_last)
        print(float((found - wanted).abs().max() / wanted.abs().max()))
    distance = trust.distance
    trust.distance = lambda *args, **options: print(distance(*args, **options)) or 0.0
    for style in (0.0, 1.0):
        shapes = (8, 3, 9, 9), (8, 5), (8, 12)
        trust.tried("picture view", shapes, (torch.uint8, style, 8), torch.device("cpu"))


if __name__ == "__main__":
    main()
