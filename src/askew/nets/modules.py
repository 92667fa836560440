"""Networks of the user's own as backbones: any module that maps a batch to features.

A module gets float32 images (n, k, h, w) from 0 to 1, or rows (n, d), and returns (n, …), which is
flattened. It has a name with a hash of its code, attributes and weights, `own:Name@hash`; a model
that holds one asks for it when it is loaded.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path

import torch
from torch import Tensor, nn

from askew.core.errors import UserError
from askew.core.plugins import content_hash, load_file
from askew.nets.embedding import OWN_PREFIX, Embedding
from askew.nets.layers import Crop, NormKeeper, Pixels
from askew.nets.module_identity import earlier_identity, identity, same_outputs

_EXAMPLE = (
    "a backbone of your own is `file.py:function`, a function without arguments that returns "
    "an nn.Module."
)
_KNOWN: dict[str, nn.Module] = {}


class OwnBackbone(NormKeeper):
    """A module of the user's with what comes before it: the centre or a random square of an image,
    from 0 to 1."""

    def __init__(
        self, body: nn.Module, shape: tuple[int, ...], crop: int, keeps_norm: bool = False
    ) -> None:
        super().__init__(keeps_norm)
        self.crop = Crop(crop) if len(shape) == 3 and 0 < crop < min(shape[1:]) else nn.Identity()
        self.pixels = Pixels((0.0,), (1.0,)) if len(shape) == 3 else nn.Identity()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.body(self.pixels(self.crop(x)).contiguous())
        return f.flatten(1)


def backbone_name(backbone: str | nn.Module) -> str:
    """The name of a network: that of a module or of `file.py:function` says what it is made of;
    others stay."""
    if isinstance(backbone, nn.Module):
        return _register(backbone)
    if ".py:" not in backbone:
        return backbone
    file, _, name = backbone.rpartition(":")
    source = Path(file).read_bytes() if Path(file).is_file() else b""
    function = getattr(load_file(file, "backbone", _EXAMPLE), name, None)
    if not callable(function):
        raise UserError(f"{file} defines no function '{name}'.", _EXAMPLE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same each time, and so is the hash
        module = function()
    if not isinstance(module, nn.Module):
        raise UserError(
            f"{name} of {file} returns a {type(module).__name__}, not an nn.Module.", _EXAMPLE
        )
    return _register(module, source)


def own_backbone(
    embedding: Embedding, shape: tuple[int, ...], keeps_norm: bool = False
) -> tuple[nn.Module, int]:
    """A copy of a registered module, and the width of its features."""
    known = embedding.backbone
    if known not in _KNOWN:
        name = known.removeprefix(OWN_PREFIX)
        raise UserError(
            f"The backbone {name} is a network of somebody's own, whose code is needed "
            "(backbone=…, --backbone …).",
            _EXAMPLE,
        )
    width = _width(known, shape, embedding.crop)
    return _ready(copy.deepcopy(_KNOWN[known]), shape, embedding.crop, keeps_norm), width


def _register(module: nn.Module, more: bytes = b"") -> str:
    """Keep a copy of a module, and give its name; modules of one name give the same outputs."""
    kind = f"{OWN_PREFIX}{type(module).__name__}"
    name = f"{kind}@{content_hash([*identity(module), more])}"
    known = _KNOWN.get(name)
    if known is None:
        # as it is now: whoever owns it may go on training it
        _KNOWN[name] = copy.deepcopy(module).cpu()
    elif not same_outputs(module, known):
        return _register(module, more + b"+")  # something that no attribute shows tells them apart
    _KNOWN[f"{kind}@{content_hash(earlier_identity(module))}"] = _KNOWN[name]
    return name


def _ready(
    body: nn.Module, shape: tuple[int, ...], crop: int, keeps_norm: bool = False
) -> OwnBackbone:
    for parameter in body.parameters():
        parameter.requires_grad_(
            parameter.is_floating_point()
        )  # whether it is trained is decided elsewhere
    return OwnBackbone(body, shape, crop, keeps_norm)


@functools.cache
def _width(name: str, shape: tuple[int, ...], crop: int) -> int:
    """How many features it returns, by a dry pass; UserError if it takes no such input."""
    dtype = torch.uint8 if len(shape) == 3 else torch.float32
    with torch.device("cpu"), torch.no_grad():
        network = _ready(copy.deepcopy(_KNOWN[name]), shape, crop).eval()
        try:
            features = network(torch.zeros((2, *shape), dtype=dtype))
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            what = f"{' x '.join(map(str, shape))}{f', cropped to {crop}' if crop else ''}"
            raise UserError(
                f"The backbone {name} fails on a batch of {what}: {reason}.",
                "it gets float32 (n, channels, height, width) from 0 to 1, or rows (n, d); -t "
                "crop=… sets the size.",
            ) from error
    if not isinstance(features, Tensor) or features.shape[0] != 2:
        raise UserError(
            f"The backbone {name} does not return one vector per image.", "(n, …) in, (n, d) out."
        )
    return int(features.shape[1])
