"""How a pre-trained backbone turns an image into a vector."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from askew.core.options import Between

OWN_PREFIX = "own:"
"""Before the name of a network of the user's own, `own:NAME@HASH` (`askew.nets.modules`)."""


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """How a pre-trained backbone turns an image into a vector.

    >>> Embedding(backbone="resnet50", corners=True, statistics="both").views
    4
    """

    backbone: str
    """A torchvision model (resnet50, resnet50.v1), timm:NAME, or a file.py:function of your own."""
    weights: str = "none"
    """Starting weights: none, hub (downloaded by torchvision or timm), or a .safetensors or .pth
    file."""
    weights_hash: str = ""
    """Hash of the weights file, so that a run's identity does not hang on a path."""
    crop: Annotated[int, Between(0)] = 224
    """Side of the square that the backbone sees of larger images: at random and flipped in
    training, else the centre; 0: the whole image."""
    pooling: Literal["average", "gem"] = "average"
    """Pooling of a ResNet's last feature map: average, or generalised mean (gem). Other
    architectures keep their own."""
    corners: bool = False
    """Whether the vector is the mean over the image and two opposite corners."""
    statistics: Literal["original", "domain", "both"] = "original"
    """Batch statistics: original (of the pre-training), domain (estimated on the domain, AdaBN), or
    both (the mean of the two vectors)."""

    @property
    def own(self) -> bool:
        """Whether the backbone is a network of the user's own, which brings its weights."""
        return self.backbone.startswith(OWN_PREFIX)

    @property
    def uses_domain(self) -> bool:
        """Whether the vector depends on the image's domain."""
        return self.statistics != "original"

    @property
    def views(self) -> int:
        """Forward passes per image."""
        return (3 if self.corners else 1) + (self.statistics == "both")

    @property
    def label(self) -> str:
        """A few words for progress bars and summaries."""
        return f"{self.backbone}, {self.views} views" if self.views > 1 else self.backbone

    def without_weights(self) -> Embedding:
        """Return the same embedding with random starting weights."""
        return dataclasses.replace(self, weights="none", weights_hash="")

    def describe(self) -> dict[str, Any]:
        """Return plain JSON values; a weights file is named by its hash, not by its path."""
        return dataclasses.asdict(self) | ({"weights": "file"} if self.weights_hash else {})
