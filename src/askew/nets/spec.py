"""Which network a run trains: its description, and its name as users write it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from askew.core.errors import UserError
from askew.core.options import Between, checked
from askew.nets.embedding import Embedding

ON_BACKBONE = (
    "mlp",
    "bottleneck",
    "bare",
    "centred",
    "shifted",
    "mlp-centred",
    "bottleneck-centred",
)
"""Layers that can follow a backbone."""
LAYERS = ("digits-28", "digits-32", "mini", *ON_BACKBONE)
"""askew's own layers, each of which is a network by itself."""
WITHOUT_WEIGHTS = ("bare", "centred", "shifted")
"""Those that leave everything to be learned to the head."""


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """Which network a run trains: a backbone, layers, or layers on a backbone, and a head."""

    layers: str = ""
    """digits-28, digits-32, mini, mlp, bottleneck, bare or centred; empty: the backbone alone."""
    embedding: Embedding | None = None
    """The backbone below the layers, and how it sees images."""
    head: Literal["linear", "cosine"] = "linear"
    """A linear layer, or cosine similarity to one prototype per class."""
    temperature: Annotated[float, Between(1e-3, 10)] = 0.05
    """T of the cosine head: logits are f·w / (T‖f‖)."""
    norm: Literal["joint", "split", "kept"] = "joint"
    """Batch statistics over source and target together, of each domain by itself, or frozen as the
    pre-trained backbone has them."""
    last_dropout: bool = True
    """Whether features that end in a dropout keep it: digits-28 does, as its authors' has it."""

    @property
    def name(self) -> str:
        """The name as users write it, and as `parse_network` reads it: `resnet50+mlp`."""
        below = "" if self.embedding is None else self.embedding.backbone
        return "+".join(part for part in (below, self.layers) if part)

    @property
    def on_backbone(self) -> bool:
        """Whether layers follow a backbone."""
        return self.embedding is not None and bool(self.layers)

    @property
    def crop(self) -> int:
        """Side of the square that the network sees of larger images; 0: the whole image."""
        return 0 if self.embedding is None else self.embedding.crop

    @property
    def weights(self) -> str:
        """Starting weights of the backbone."""
        return "none" if self.embedding is None else self.embedding.weights

    def without_weights(self) -> NetworkSpec:
        """Return the same network with random starting weights."""
        below = self.embedding and self.embedding.without_weights()
        return dataclasses.replace(self, embedding=below)

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values."""
        below = None if self.embedding is None else self.embedding.describe()
        return dataclasses.asdict(self) | {"embedding": below}


def parse_network(
    name: str, *, weights: str = "none", weights_hash: str = "", crop: int = 224, **settings: Any
) -> NetworkSpec:
    """Read a network's name as users write it; `NetworkSpec.name` prints it.

    Args:
        name: layers (`mlp`), a backbone (`resnet50`, `timm:NAME`), or both (`resnet50+mlp`).
        weights, weights_hash, crop: those of the backbone.
        settings: other fields of `NetworkSpec`.

    >>> parse_network("resnet50+mlp", head="cosine").embedding.backbone
    'resnet50'
    """
    if name in LAYERS:
        if weights != "none":
            raise UserError(
                f"The network {name} has no starting weights to load.", "leave -t weights out."
            )
        return NetworkSpec(layers=name, **settings)
    below, plus, layers = name.partition("+")
    if plus and (not below or layers not in ON_BACKBONE):
        raise unknown_layers(name)
    embedding = Embedding(backbone=below, weights=weights, weights_hash=weights_hash, crop=crop)
    return NetworkSpec(layers=layers, embedding=embedding, **settings)


def unknown_layers(name: str) -> UserError:
    """Tell that no such layers can follow a backbone."""
    last = f"{', '.join(ON_BACKBONE[:-1])} or {ON_BACKBONE[-1]}"
    return UserError(f"There is no network '{name[:99]}'.", f"after a +: {last}.")


def read_network(values: dict[str, Any]) -> NetworkSpec:
    """Read what `NetworkSpec.describe` wrote, without starting weights; UserError if it is none."""
    given = dict(values)
    below = given.pop("embedding", None)
    if below is not None:
        plain = {k: v for k, v in dict(below).items() if not k.startswith("weights")}
        below = Embedding(**checked(Embedding, plain, "the embedding"))
    return NetworkSpec(**checked(NetworkSpec, given, "the network"), embedding=below)


def file_hash(path: Path) -> str:
    """What a weights file adds to a run's identity; read once, however many runs start from it."""
    state = path.stat()
    return _hash(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _hash(path: Path, size: int, written: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
