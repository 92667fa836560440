"""Networks of torchvision and timm without their classifier."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from askew.core.errors import UserError, unknown
from askew.nets.adabn import NORMS, TwoNorms, batch_norms
from askew.nets.layers import Crop, Dropout, NormKeeper, Pixels
from askew.nets.modules import OWN_PREFIX, own_backbone
from askew.nets.small import OWN, WHOLE, own_features, side_by_side
from askew.nets.spec import NetSpec
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

CORNERS, CROPS = "corners:", "crops:"
"""Before a network's name: it looks at an image and at two of its corners, or at all four."""
GEM = "gem:"
"""Before a network's name, after CORNERS and NORMS: it pools by a generalised mean."""

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
        self.fast: Callable[[Tensor], Tensor] | None = None
        """What computes in place of the body for the time being (`fast_backbones`)."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.pixels(self.crop(x))
        if tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bilinear", antialias=True)
        f: Tensor = self.body(x) if self.fast is None else self.fast(x)
        return f.flatten(1)


def corners(x: Tensor, side: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four corners of images, ¾ of a side each and two of them mirrored, enlarged. (n, k, h, w)
    → (n, k, *side)"""
    high, wide = (3 * n // 4 for n in x.shape[-2:])
    top, bottom = x[..., :high, :].float(), x[..., -high:, :].float()
    found = (
        top[..., :wide],
        top[..., -wide:].flip(-1),
        bottom[..., :wide].flip(-1),
        bottom[..., -wide:],
    )
    return tuple(F.interpolate(corner, side, mode="bilinear") for corner in found)


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


class Crops(nn.Module):
    """The mean of a network's features over images and their corners, at the size it sees. (n, k,
    h, w) → (n, d)

    Where it has two sets of batch statistics, an image is seen by both, but a corner by one: with
    two corners, opposite ones and both mirrored, four looks and not six; with all four, which are
    no better (results/own-data), six.
    """

    def __init__(self, body: nn.Module, side: tuple[int, int], four: bool = True) -> None:
        super().__init__()
        self.body, self.side, self.four = body, side, four

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, last = corners(x, self.side)
        if not isinstance(self.body, TwoNorms):
            views = (x, first, second, third, last) if self.four else (x, second, third)
            return torch.stack([self.body(view) for view in views]).mean(dim=0)
        by_domain, by_own = (
            ((x, second, third), (x, first, last)) if self.four else ((x, second), (x, third))
        )
        looks = [self.body.body(view) for view in by_domain]
        with self.body.kept():
            looks += [self.body.body(view) for view in by_own]
        return torch.stack(looks).mean(dim=0)


def plain_name(name: str) -> str:
    """A network's name without what says how it looks at images."""
    return name.removeprefix(CORNERS).removeprefix(CROPS).removeprefix(NORMS).removeprefix(GEM)


def backbone(spec: NetSpec, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Any torchvision model by name (`resnet50`), or timm's by `timm:NAME`; layers of ours may
    follow: `resnet50+mlp`.

    `resnet50.v1` is the original ResNet: stride 2 on the first 1x1 convolution of a stage, not on
    the 3x3. `corners:resnet50` is the mean over an image and two of its corners, `crops:resnet50`
    over all four, `norms:resnet50` that over two sets of batch statistics, if it has any, and
    `gem:resnet50` pools by a generalised mean, if it is a ResNet.
    """
    if WHOLE in spec.name:
        return side_by_side(
            spec.name.split(WHOLE),
            lambda name: backbone(dataclasses.replace(spec, name=name), shape),
        )
    below, plus, above = spec.name.partition("+")
    if plus:
        if "|" not in above and above not in ("mlp", "bottleneck", "bare", "centred"):
            raise UserError(
                f"There is no network '{spec.name}'.",
                "after a +: mlp, bottleneck, bare or centred.",
            )
        body, width = backbone(dataclasses.replace(spec, name=below), shape)
        top, width = own_features(above, (width,))
        return nn.Sequential(body, top), width
    crop = spec.crop if len(shape) == 3 and 0 < spec.crop < min(shape[1:]) else 0
    if spec.name.startswith((CORNERS, CROPS, NORMS, GEM)) and len(shape) == 3:
        how, _, name = spec.name.partition(":")
        body, width = backbone(dataclasses.replace(spec, name=name), shape)
        if f"{how}:" in (CORNERS, CROPS):
            return Crops(
                body, (crop, crop) if crop else (shape[1], shape[2]), four=f"{how}:" == CROPS
            ), width
        if f"{how}:" == NORMS:
            return TwoNorms(body) if isinstance(body, Backbone) and batch_norms(
                body
            ) else body, width
        if isinstance(body, Backbone):
            _pool_by_gem(body.body)
        return body, width
    if spec.name.startswith(OWN_PREFIX):
        body, width = own_backbone(spec, shape)
        _own_dropouts(body)
        return body, width
    if len(shape) != 3:
        raise UserError(
            f"The network {spec.name} takes images, found rows of {shape[0]} numbers.",
            "use mlp or bare.",
        )
    return _published(spec, crop, (crop, crop) if crop else (shape[1], shape[2]))


def _published(spec: NetSpec, crop: int, size: tuple[int, int]) -> tuple[Backbone, int]:
    """A model of one of the libraries, for images of a size."""
    library, _, model = spec.name.rpartition(":")
    form = _timm_form(model, size) if library == "timm" else None
    body = _torchvision(model, spec) if form is None else _timm(model, spec, form)
    if form is None:
        own = getattr(body, "image_size", 0)  # which torchvision's transformers insist on
        size = (own, own) if own else size
        form = _Form({}, size, _drop_classifier(body, spec.name), IMAGENET_MEAN, IMAGENET_STD)
    if spec.weights not in ("none", "hub"):
        load_weights(body, Path(spec.weights), spec.name)
    _own_dropouts(body)
    return Backbone(
        body, Pixels(form.mean, form.std, channels=3), crop, form.size, spec.norm == "kept"
    ), form.width


def seen_side(spec: NetSpec) -> int:
    """Side of the square that the network sees of a large picture: the crop, or its own size if it
    takes no other."""
    library, _, model = plain_name(spec.name).rpartition(":")
    return (
        max(_timm_form(model, (spec.crop, spec.crop)).size)
        if library == "timm" and spec.crop
        else spec.crop
    )


def _torchvision(model: str, spec: NetSpec) -> nn.Module:
    from torchvision import models

    name, _, variant = model.partition(".")
    known = models.list_models(module=models)
    bottleneck = name in ("resnet50", "resnet101", "resnet152")
    if name not in known or variant not in (("", "v1") if bottleneck else ("",)):
        raise unknown("network", spec.name, [*OWN, *known])
    weights = first_weights(name) if spec.weights == "hub" else None
    with published(spec.name):
        if weights is not None:
            check_published(
                Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
            )
        body: nn.Module = models.get_model(name, weights=weights)
    if variant:
        move_strides(body)
    return body


def which_weights(name: str) -> str:
    """What tells a network's published weights apart from others that its library has, or will
    have."""
    if plain_name(name).startswith(OWN_PREFIX):
        return ""  # it brings them, and its file is part of its name
    library, _, model = plain_name(name).rpartition(":")
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


def _timm(model: str, spec: NetSpec, form: _Form) -> nn.Module:
    import timm

    with published(spec.name):
        for file in cached_by_timm(model) if spec.weights == "hub" else ():
            check_published(file)
        body: nn.Module = timm.create_model(
            model, pretrained=spec.weights == "hub", num_classes=0, **form.options
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
