"""Random numbers as hashes of (seed, stream, position): equal on every device and after a
resume."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

GOLDEN = -0x61C8864680B583EB  # 0x9E3779B97F4A7C15 as a signed 64-bit number
M1 = -0x40A7B892E31B1A47  # 0xBF58476D1CE4E5B9 as a signed 64-bit number (splitmix64's constants)
M2 = -0x6B2FB644ECCEEE15  # 0x94D049BB133111EB


def key(*parts: int | str) -> int:
    """A 63-bit number that names a stream of random numbers, such as key("source", seed)."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


stream_key = functools.cache(key)
"""The same, hashed once per name: it is asked for in every step."""


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch draw weights from this seed; its generator is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        if torch.get_default_device().type in ("cpu", "meta"):
            # torch.manual_seed also seeds all GPUs, or keeps the whole stack as a note to do so
            # later
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def hash64(stream: int, position: Tensor) -> Tensor:
    """Hash int64 positions to int64 values, uniform over all 64 bits (splitmix64's finaliser)."""
    z = (position + 1) * GOLDEN + stream  # integer arithmetic wraps, on CPU and CUDA alike
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * M1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * M2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def shuffled(stream: int, n: int, start: int, count: int, device: torch.device) -> Tensor:
    """Elements start … start+count−1 of an endless stream whose successive blocks of n are
    permutations of 0 … n−1."""
    first, last = start // n, (start + count - 1) // n
    position = torch.arange(first * n, (last + 1) * n, device=device).view(-1, n)
    order = hash64(stream, position).argsort(dim=1, stable=True)
    return order.flatten()[start - first * n :][:count]


def keep_mask(base: Tensor, step_key: Tensor, p: float) -> Tensor:
    """Which elements a dropout of rate p keeps, from hashed positions and a hashed step.

    A short hash is enough here, since both inputs are already hashes; it runs in every step.
    """
    z = (base ^ step_key) * M1
    z = (z ^ (z >> 32)) * M2
    return z >= int(p * 2**64) - 2**63


def bits(key: Tensor, stream: str, *shape: int) -> Tensor:
    """64 hashed bits per element, a function of the key and the stream's name: (…,) → (…, *shape)
    int64.

    `key` is a hash already, such as a step's; each of its elements gets numbers of its own.
    """
    positions = torch.arange(math.prod(shape), device=key.device).view(shape)
    base = hash64(stream_key(stream), positions)
    return hash64(0, base ^ key.view(*key.shape, *[1] * len(shape)))


def uniform(key: Tensor, stream: str, *shape: int) -> Tensor:
    """Numbers from [0, 1), equal in eager execution, a graph, a lane and after a resume. (…,) → (…,
    *shape)"""
    return ((bits(key, stream, *shape) >> 40) & 0xFFFFFF).float() * 2**-24


def normal(key: Tensor, stream: str, *shape: int) -> Tensor:
    """Standard normal numbers, by Box and Muller's transform. (…,) → (…, *shape)"""
    both = bits(key, stream, *shape)
    radius = (((both >> 40) & 0xFFFFFF) + 1).float() * 2**-24  # (0, 1]: the logarithm stays finite
    angle = ((both >> 16) & 0xFFFFFF).float() * (2 * math.pi * 2**-24)
    return (-2 * radius.log()).sqrt() * angle.cos()


DRAWS = {"bits": bits, "uniform": uniform, "normal": normal}
"""What can be drawn for the elements of a key."""
