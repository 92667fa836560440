"""Lanes' Triton kernels on a processor, by Triton's interpreter: prints how far each is from
torch's own layer.

A program, since Triton asks once, when it is imported, whether to interpret.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.runtime.interpreter as interpreter

from askew.nets.triton import conv_kernels, deep_kernels, kept_norm_kernel, planes, trust

SINGLE, HALF = torch.float32, torch.float16
LAYERS = [  # channels in and out, kernel, images, side, padding, pool, what is kept: few pixels, since each takes long
    (1, 20, 5, 2, 8, 0, (2, 2, 0), HALF),
    (3, 20, 3, 1, 5, 1, (3, 2, 1), SINGLE),
    (16, 48, 3, 1, 5, 0, (2, 2, 0), HALF),
    (16, 16, 3, 2, 5, 1, (3, 2, 1), SINGLE),
]
LANES = 2


def loop_bounds_from_numpy() -> None:
    """A number that a kernel is given is an array of one element, which numpy 2.4 no longer takes
    for a number."""
    patch = interpreter._LangPatchScope.set_attr

    def set_attr(self: object, owner: object, name: str, value: object) -> None:
        patch(
            self,
            owner,
            name,
            (lambda tensor: int(tensor.handle.data.item())) if name == "__index__" else value,
        )

    interpreter._LangPatchScope.set_attr = set_attr


def main() -> None:  # noqa: C901
    loop_bounds_from_numpy()
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    for module in (conv_kernels, deep_kernels, planes):
        module.SPLITS = 16  # sums in few parts, but in more than one
    planes.ELEMENTS = 256
    kept_norm_kernel.PROGRAMS = 4
    for tiles in deep_kernels.TILES.values():
        tiles[SINGLE] = tiles[SINGLE]._replace(pixels=32)  # fewer than a layer has
    distance = trust.distance

    def printed(*args: object, **options: object) -> float:
        found = distance(*args, **options)
        print(found)
        return found

    trust.distance, trust._with_pool = printed, lambda x, weight, pool: True
    for i, (cin, cout, k, n, side, padding, pool, kept) in enumerate(LAYERS):
        x, kernel = torch.zeros(LANES, cin, n, side, side), torch.zeros(LANES, cout, cin, k, k)
        for training in (True, False) if i == 0 else (True,):
            trust.trusted_block(x, kernel, padding, 0.1, 1e-5, pool, training, kept)
    trust.trusted_norm(
        torch.zeros(LANES, 20, 6, 1, 1), torch.zeros(LANES, 20), 0.1, 1e-5, (1, 1, 0), True
    )
    for kept in (SINGLE, HALF):
        trust.tried(
            "norm by kept statistics",
            ((3, 70, 5, 6), (70,), (70,)),
            (1e-5, kept),
            torch.device("cpu"),
        )
    for first in (False, True):
        trust.tried("dropout", ((2, 5, 300),), (0.3, first), torch.device("cpu"))
    for slots in (1, 2):  # SGD and Adam; more weights than a program's, and no multiple of them
        shapes = (2, 70, 130), (2, 70, 40), (2, 40, 130)
        trust.tried("step along a product", shapes, (slots, slots == 2), torch.device("cpu"))
    for shape in ((6,), (3, 20, 20)):  # less than a program's numbers, and more
        for kind in ("bits", "uniform", "normal"):
            trust.tried("random draw", ((2,),), (kind, shape), torch.device("cpu"))


if __name__ == "__main__":
    main()
