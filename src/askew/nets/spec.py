"""Which network a run trains."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from askew.core.options import Between


@dataclass(frozen=True, kw_only=True)
class NetSpec:
    """Which network a run trains."""

    name: str
    """digits-28, digits-32, mini, mlp, bottleneck, bare, centred, a torchvision model, timm:NAME,
    or layers on such a one: resnet50+mlp."""
    head: Literal["linear", "cosine"] = "linear"
    """A linear layer, or cosine similarity to one prototype per class."""
    temperature: Annotated[float, Between(1e-3, 10)] = 0.05
    """T of the cosine head: logits are f·w / (T‖f‖)."""
    weights: str = "none"
    """Starting weights: none, hub (downloaded by torchvision or timm), or a .safetensors or .pth
    file."""
    weights_hash: str = ""
    """Of the weights file, so that a run's identity does not hang on a path."""
    norm: Literal["joint", "split", "kept"] = "joint"
    """Batch statistics over source and target together, or each domain by itself; or, of a
    pre-trained network, those that it came with."""
    last_dropout: bool = True
    """Whether features that end in a dropout keep it: digits-28 does, as its authors' has it."""
    crop: Annotated[int, Between(0)] = 224
    """Side of the square that torchvision's and timm's networks see of larger images: at random and
    flipped in training, else the centre; 0: the whole image."""


def file_hash(path: Path) -> str:
    """What a weights file adds to a run's identity; read once, however many runs start from it."""
    state = path.stat()
    return _hash(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _hash(path: Path, size: int, written: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
