"""Networks of torchvision and timm without their classifier."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.errors import UserError, unknown
from askew.nets.adabn import ORIGINAL, DomainNorms, batch_norms, with_statistics
from askew.nets.embedding import Embedding
from askew.nets.layers import Crop, Dropout, NormKeeper, Pixels
from askew.nets.modules import own_backbone
from askew.nets.spec import LAYERS
from askew.nets.starting_weights import (
    cached_by_timm,
    check_published,
    load_weights,
    move_strides,
    published,
)
from askew.nets.triton.kept_norm import quicken_norms

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# pixels; a smaller image is enlarged to a model's own size, not cut into a handful of patches
_ENLARGED_BELOW = 224


class Backbone(NormKeeper):
    """A torchvision or timm model without its classifier, with the normalisation it was trained
    with."""

    def __init__(
        self, body: nn.Module, pixels: Pixels, crop: int, size: tuple[int, int], keeps_norm: bool
    ) -> None:
        super().__init__(keeps_norm)
        self.crop = Crop(crop) if crop else nn.Identity()
        self.pixels = pixels
        self.body = body
        if keeps_norm:
            quicken_norms(body)
        self.size = size
        """Height and width that the model takes; images of another size are resized."""

    def forward(self, x: Tensor, original: bool = False) -> Tensor:
        """Features of images; `original` takes the statistics of the pre-training, where there are
        others too (`DomainNorms`)."""
        x = self.pixels(self.crop(x))
        if tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        fast = FAST.get().get((self, original))
        f: Tensor = self.by_statistics(original)(x) if fast is None else fast(x)
        return f.flatten(1)

    def by_statistics(self, original: bool) -> nn.Module:
        """Return the body, or a view of it with the statistics of the pre-training."""
        return with_statistics(self.body, ORIGINAL) if original else self.body


Fast = Mapping[tuple[Backbone, bool], Callable[[Tensor], Tensor]]
FAST: ContextVar[Fast] = ContextVar("FAST", default=MappingProxyType({}))
"""What computes in place of backbones' bodies for the time being, by whether the statistics are the
original ones (`askew.nets.forward.fast_backbones`). Each thread has its own."""


def corners(x: Tensor, side: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The top right and the bottom left corner of images, ¾ of a side each, mirrored and enlarged.
    (n, k, h, w) → (n, k, *side)"""
    high, wide = (3 * n // 4 for n in x.shape[-2:])
    top = x[..., :high, :].float()[..., -wide:].flip(-1)
    bottom = x[..., -high:, :].float()[..., :wide].flip(-1)
    return F.interpolate(top, side, mode="bilinear"), F.interpolate(bottom, side, mode="bilinear")


class GeneralisedMean(nn.Module):
    """(Σ x³/n)^⅓ over the pixels of each channel, 0 for what is negative (GeM: F. Radenović, G.
    Tolias, O. Chum, Fine-tuning CNN image retrieval with no human annotation, TPAMI 2019). (n, k,
    h, w) → (n, k, 1, 1)

    A plain mean is as much about how large an object is, and what is around it, as about what it
    is.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.float().clamp(min=1e-6).pow(3).mean(dim=(2, 3), keepdim=True).pow(1 / 3)


def _pool_by_gem(body: nn.Module) -> None:
    """Of ResNets alone, torchvision's and timm's: what others pool can be negative, or is
    normalised afterwards."""
    if type(body).__name__ == "ResNet":
        setattr(body, "avgpool" if hasattr(body, "avgpool") else "global_pool", GeneralisedMean())


class Corners(nn.Module):
    """The mean of a network's features over images and two of their corners. (n, k, h, w) → (n, d)

    Under two sets of batch statistics an image is seen by both, and each corner by one: four
    forward passes and not six.
    """

    def __init__(self, body: nn.Module, side: tuple[int, int]) -> None:
        super().__init__()
        self.body, self.side = body, side

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = corners(x, self.side)
        body = self.body
        if isinstance(body, DomainNorms) and body.both:
            features = [body.by_domain(x), body.by_domain(top)]
            features += [body.by_original(x), body.by_original(bottom)]
        else:
            features = [body(view) for view in (x, top, bottom)]
        return torch.stack(features).mean(dim=0)


def build_backbone(
    embedding: Embedding, shape: tuple[int, ...], keeps_norm: bool = False
) -> tuple[nn.Module, int]:
    """Build a backbone as an embedding describes it, and tell the width of its vectors.

    Pooling, corners and batch statistics concern images; statistics of a domain concern networks
    that have batch norms, and pooling concerns ResNets. `resnet50.v1` is the original ResNet:
    stride 2 on the first 1x1 convolution of a stage, not on the 3x3.
    """
    if embedding.own:
        body, width = own_backbone(embedding, shape, keeps_norm)
        _own_dropouts(body)
    elif len(shape) == 3:
        body, width = _published(
            embedding, _crop(embedding, shape), _side(embedding, shape), keeps_norm
        )
    else:
        raise UserError(
            f"The network {embedding.backbone} takes images, found rows of {shape[0]} numbers.",
            "use mlp or bare.",
        )
    if len(shape) != 3:
        return body, width
    if isinstance(body, Backbone):
        if embedding.pooling == "gem":
            _pool_by_gem(body.body)
        if embedding.uses_domain and batch_norms(body):
            body = DomainNorms(body, both=embedding.statistics == "both")
    return Corners(body, _side(embedding, shape)) if embedding.corners else body, width


def _crop(embedding: Embedding, shape: tuple[int, ...]) -> int:
    """Side of the crop of images of a shape; 0 where they are not cropped."""
    return embedding.crop if 0 < embedding.crop < min(shape[1:]) else 0


def _side(embedding: Embedding, shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width that are left of images of a shape."""
    crop = _crop(embedding, shape)
    return (crop, crop) if crop else (shape[1], shape[2])


def _published(
    embedding: Embedding, crop: int, size: tuple[int, int], keeps_norm: bool
) -> tuple[Backbone, int]:
    """A model of one of the libraries, for images of a size."""
    library, _, model = embedding.backbone.rpartition(":")
    if library not in ("", "timm"):
        raise UserError(
            f"There is no network '{embedding.backbone[:99]}'.",
            "a torchvision model, or timm:NAME.",
        )
    form = _timm_form(model, size) if library == "timm" else None
    body = _torchvision(model, embedding) if form is None else _timm(model, embedding, form)
    if form is None:
        own = getattr(body, "image_size", 0)  # which torchvision's transformers insist on
        size = (own, own) if own else size
        form = _Form(
            {}, size, _drop_classifier(body, embedding.backbone), IMAGENET_MEAN, IMAGENET_STD
        )
    if embedding.weights not in ("none", "hub"):
        load_weights(body, Path(embedding.weights), embedding.backbone)
    _own_dropouts(body)
    pixels = Pixels(form.mean, form.std, channels=3)
    return Backbone(body, pixels, crop, form.size, keeps_norm), form.width


def seen_side(embedding: Embedding) -> int:
    """Side of the square that the network sees of a large picture: the crop, or its own size if it
    takes no other."""
    library, _, model = embedding.backbone.rpartition(":")
    crop = embedding.crop
    return max(_timm_form(model, (crop, crop)).size) if library == "timm" and crop else crop


def _torchvision(model: str, embedding: Embedding) -> nn.Module:
    from torchvision import models

    name, _, variant = model.partition(".")
    known = models.list_models(module=models)
    bottleneck = name in ("resnet50", "resnet101", "resnet152")
    if name not in known or variant not in (("", "v1") if bottleneck else ("",)):
        raise unknown("network", embedding.backbone, [*LAYERS, *known])
    weights = first_weights(name) if embedding.weights == "hub" else None
    with published(embedding.backbone):
        if weights is not None:
            check_published(
                Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
            )
        body: nn.Module = models.get_model(name, weights=weights)
    if variant:
        move_strides(body)
    return body


def which_weights(embedding: Embedding) -> str:
    """What tells a network's published weights apart from others that its library has, or will
    have."""
    if embedding.own:
        return ""  # it brings them, and its file is part of its name
    library, _, model = embedding.backbone.rpartition(":")
    return (
        f"timm {version('timm')}"
        if library == "timm"
        else str(first_weights(model.partition(".")[0]))
    )


def first_weights(name: str) -> Any:
    """Of a torchvision network's weights those that were published first, not the default.

    They are what the paper and all of the field started from. Of many networks the default is now
    of a later recipe, with soft and mixed labels, which is better on ImageNet; features that were
    regularised in such ways are much worse for other tasks (S. Kornblith, J. Shlens, Q. Le, Do
    better ImageNet models transfer better?, CVPR 2019).

    >>> str(first_weights("resnet50"))
    'ResNet50_Weights.IMAGENET1K_V1'
    """
    from torchvision import models

    return next(iter(models.get_model_weights(name)))


@dataclass(frozen=True)
class _Form:
    """How a model is made for images of some size."""

    options: Mapping[str, Any]
    size: tuple[int, int]
    """Height and width that it then takes."""
    width: int
    """Numbers that it gives for an image."""
    mean: tuple[float, ...]
    std: tuple[float, ...]


@functools.cache
def _timm_form(model: str, size: tuple[int, int]) -> _Form:
    """The first form that works: as it is, with its positions interpolated to the size, or at the
    model's own size.

    Tried by passes without weights; the few models that need numbers to get through are made once
    more, with some.
    """
    try:
        import timm
    except ImportError:
        raise UserError(
            "The network needs timm, which is not installed.", "pip install 'askew[timm]'."
        ) from None
    if not timm.is_model(model):
        raise unknown("timm model", model, timm.list_models())
    config: Any = timm.get_pretrained_cfg(model)
    _, height, width = config.input_size
    dynamic = [({"dynamic_img_size": True}, size)] if min(size) >= _ENLARGED_BELOW else []
    forms: list[tuple[dict[str, Any], tuple[int, int]]] = [
        ({}, size),
        *dynamic,
        ({}, (height, width)),
    ]
    for device in ("meta", "cpu"):
        for options, taken in forms:
            if found := _dry_width(model, options, taken, device):
                return _Form(options, taken, found, tuple(config.mean), tuple(config.std))
    raise UserError(
        f"The timm model {model} gives no vector for an image.",
        "choose another, such as timm:resnet50.",
    )


def _dry_width(model: str, options: Mapping[str, Any], size: tuple[int, int], device: str) -> int:
    """How many numbers the model gives for one image; 0 if it does not take it."""
    import timm

    with torch.random.fork_rng(devices=[]), torch.device(device), torch.no_grad():
        try:
            body = timm.create_model(model, num_classes=0, **options).eval()
            return int(body(torch.zeros(1, 3, *size)).flatten(1).shape[1])
        except Exception:  # each family of models refuses in its own way
            return 0


def _timm(model: str, embedding: Embedding, form: _Form) -> nn.Module:
    import timm

    with published(embedding.backbone):
        for file in cached_by_timm(model) if embedding.weights == "hub" else ():
            check_published(file)
        body: nn.Module = timm.create_model(
            model, pretrained=embedding.weights == "hub", num_classes=0, **form.options
        )
    return body


def _drop_classifier(body: nn.Module, model: str) -> int:
    """Replace the last linear layer by the identity and return its width (torchvision keeps it
    last)."""
    linear = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Linear)]
    if not linear or hasattr(body, "aux_logits"):
        raise UserError(
            f"The network {model} does not end in one linear layer, so its features cannot be "
            "taken.",
            "choose another, such as resnet50, vit_b_16 or convnext_tiny.",
        )
    name, last = linear[-1]
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, nn.Identity())
    return last.in_features


def _own_dropouts(body: nn.Module) -> None:
    """Replace a model's dropouts by ours, so that its runs can be resumed bit for bit."""
    from torchvision.ops import StochasticDepth

    found = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Dropout | StochasticDepth)]
    for layer, (name, module) in enumerate(found, start=1):
        parent, _, child = name.rpartition(".")
        rows = isinstance(module, StochasticDepth)
        setattr(body.get_submodule(parent), child, Dropout(float(module.p), layer, rows))
