"""Networks: features (uint8 images or float rows in, one vector out) and heads (vector in, logits out)."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew import chance
from askew.errors import UserError, unknown
from askew.layers import Contrast, CosineHead, Crop, Dropout, LinearHead, Pixels, conv, dense, plus_minus_one
from askew.options import Between

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class NetSpec:
    """Which network a run trains."""

    name: str
    """digits-28, digits-32, mini, mlp, bare, a torchvision model, timm:NAME, or layers on such a one: resnet50+mlp."""
    head: Literal["linear", "cosine"] = "linear"
    """A linear layer, or cosine similarity to one prototype a class."""
    temperature: Annotated[float, Between(1e-3, 10)] = 0.05
    """T of the cosine head: logits are f·w / (T‖f‖)."""
    weights: str = "none"
    """Starting weights: none, hub (downloaded by torchvision or timm), or a .safetensors file."""
    weights_hash: str = ""
    """Of the weights file, so that a run's identity does not hang on a path."""
    norm: Literal["joint", "split", "kept"] = "joint"
    """Batch statistics over source and target together, or each domain by itself; or, of a pre-trained network, those
    that it came with."""
    crop: Annotated[int, Between(0)] = 224
    """Side of the square that torchvision's and timm's networks see of larger images: at random and flipped in
    training, else the centre; 0: the whole image."""


def digits_28(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The USPS↔MNIST network of MCD (Saito et al. 2018): 28 x 28 grey, 768–100–100."""
    _expect(shape, "digits-28", (1, 28, 28))
    layers = [
        plus_minus_one(),
        *conv(1, 32, pool=(2, 2, 0)),
        *conv(32, 48, pool=(2, 2, 0)), nn.Flatten(),
        *dense(768, 100, layer=1),
        *dense(100, 100, layer=2),
    ]  # fmt: skip
    return nn.Sequential(*layers), 100


def digits_32(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """The SVHN→MNIST network of MCD (Saito et al. 2018): 32 x 32 RGB, 8192–3072–2048."""
    _expect(shape, "digits-32", (3, 32, 32))
    layers = [
        plus_minus_one(),
        *conv(3, 64, 2, pool=(3, 2, 1)),
        *conv(64, 64, 2, pool=(3, 2, 1)),
        *conv(64, 128, 2), nn.Flatten(),
        *dense(8192, 3072, layer=1),
        *dense(3072, 2048),
    ]  # fmt: skip
    return nn.Sequential(*layers), 2048


def mini(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """A small network for 32 x 32 RGB on a laptop: under 200,000 parameters."""
    _expect(shape, "mini", (3, 32, 32))
    layers = [
        plus_minus_one(),
        nn.AvgPool2d(2), Contrast(), nn.ZeroPad2d(-2),
        *conv(1, 32, 2, pool=(2, 2, 0)),
        *conv(32, 48, 2, pool=(2, 2, 0)), nn.Flatten(),
        *dense(432, 100, layer=1),
        *dense(100, 100),
    ]  # fmt: skip
    return nn.Sequential(*layers), 100


def mlp(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Two dense layers for arrays of features."""
    (width,) = _expect(shape, "mlp", (None,))
    return nn.Sequential(*dense(width, 512, layer=1), *dense(512, 256)), 256


def bare(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """No features at all: the head works on the rows as they are."""
    (width,) = _expect(shape, "bare", (None,))
    return nn.Identity(), width


OWN: Mapping[str, Callable[[tuple[int, ...]], tuple[nn.Module, int]]] = {
    "digits-28": digits_28,
    "digits-32": digits_32,
    "mini": mini,
    "mlp": mlp,
    "bare": bare,
}


def _expect(shape: tuple[int, ...], name: str, wanted: tuple[int | None, ...]) -> tuple[int, ...]:
    if len(shape) != len(wanted) or any(w not in (None, s) for s, w in zip(shape, wanted, strict=True)):
        found = " x ".join(map(str, shape))
        need = " x ".join("any width" if w is None else str(w) for w in wanted)
        raise UserError(f"The network {name} takes {need}, found {found}.", f"own networks: {', '.join(OWN)}.")
    return shape


class Backbone(nn.Module):
    """A torchvision or timm model without its classifier, with the normalisation it was trained with."""

    def __init__(
        self, body: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], crop: int, keeps_norm: bool
    ) -> None:
        super().__init__()
        self.crop = Crop(crop) if crop else nn.Identity()
        self.pixels = Pixels(mean, std, channels=3)
        self.body = body
        self.keeps_norm = keeps_norm
        """Whether its batch norms go by the statistics it came with, in training too."""

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.keeps_norm:
            for module in self.body.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.body(self.pixels(self.crop(x)))
        return f.flatten(1)


def backbone(spec: NetSpec, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Any torchvision model by name (`resnet50`), or timm's by `timm:NAME`; with `+mlp` or `+bare`, that follows.

    `resnet50.v1` is the original ResNet: stride 2 on the first 1x1 convolution of a stage, not on the 3x3.
    """
    below, plus, above = spec.name.partition("+")
    if plus:
        if above not in ("mlp", "bare"):
            raise UserError(f"There is no network '{spec.name}'.", "what follows a + is mlp or bare.")
        body, width = backbone(dataclasses.replace(spec, name=below), shape)
        top, width = OWN[above]((width,))
        return nn.Sequential(body, top), width
    if len(shape) != 3:
        raise UserError(f"The network {spec.name} takes images, found rows of {shape[0]} numbers.", "use mlp or bare.")
    library, _, model = spec.name.rpartition(":")
    body, mean, std = _timm(model, spec) if library == "timm" else _torchvision(model, spec)
    if spec.weights not in ("none", "hub"):
        _load_weights(body, Path(spec.weights))
    width = int(body.num_features) if library == "timm" else _drop_classifier(body, spec.name)  # type: ignore[arg-type]
    _own_chance(body)
    crop = spec.crop if 0 < spec.crop < min(shape[1:]) else 0
    return Backbone(body, mean, std, crop, spec.norm == "kept"), width


def _torchvision(model: str, spec: NetSpec) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    from torchvision import models

    name, _, variant = model.partition(".")
    known = models.list_models(module=models)
    bottleneck = name in ("resnet50", "resnet101", "resnet152")
    if name not in known or variant not in (("", "v1") if bottleneck else ("",)):
        raise unknown("network", spec.name, [*OWN, *known])
    body: nn.Module = models.get_model(name, weights="DEFAULT" if spec.weights == "hub" else None)
    if variant:
        for module in body.modules():
            if isinstance(module, models.resnet.Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, (1, 1)
    return body, IMAGENET_MEAN, IMAGENET_STD


def _timm(model: str, spec: NetSpec) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    try:
        import timm
    except ImportError:
        raise UserError("The network needs timm, which is not installed.", "pip install 'askew[timm]'.") from None
    if not timm.is_model(model):
        raise unknown("timm model", model, timm.list_models())
    body = timm.create_model(model, pretrained=spec.weights == "hub", num_classes=0)
    config: Any = body.default_cfg
    return body, tuple(config["mean"]), tuple(config["std"])


def _drop_classifier(body: nn.Module, model: str) -> int:
    """Replace the last linear layer by the identity and return its width (torchvision keeps it last)."""
    linear = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Linear)]
    if not linear or hasattr(body, "aux_logits"):
        raise UserError(
            f"The network {model} does not end in one linear layer, so its features cannot be taken.",
            "choose another, such as resnet50, vit_b_16 or convnext_tiny.",
        )
    name, last = linear[-1]
    parent, _, child = name.rpartition(".")
    setattr(body.get_submodule(parent), child, nn.Identity())
    return last.in_features


def _own_chance(body: nn.Module) -> None:
    """Replace a model's dropouts by ours, so that its runs can be resumed bit for bit."""
    from torchvision.ops import StochasticDepth

    found = [(n, m) for n, m in body.named_modules() if isinstance(m, nn.Dropout | StochasticDepth)]
    for layer, (name, module) in enumerate(found, start=1):
        parent, _, child = name.rpartition(".")
        rows = isinstance(module, StochasticDepth)
        setattr(body.get_submodule(parent), child, Dropout(float(module.p), layer, rows))


def _load_weights(body: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"The weights file {path} does not exist.", "none, hub, or a .safetensors file.")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is not a safetensors file: {error}.", "convert it with safetensors.torch.save_file."
        ) from None
    own = body.state_dict()
    missing = [k for k in own if k not in tensors and not k.endswith("num_batches_tracked")]
    wrong = [k for k in own if k in tensors and own[k].shape != tensors[k].shape]
    if missing or wrong:
        first = (missing or wrong)[0]
        raise UserError(
            f"{path} does not fit the network: {len(missing)} tensors are missing, {len(wrong)} differ in shape "
            f"(first: {first}).",
            "the file must hold the model's own state_dict names.",
        )
    body.load_state_dict({k: v.to(own[k].dtype) for k, v in tensors.items() if k in own}, strict=False)


def file_hash(path: Path) -> str:
    """What a weights file adds to a run's identity."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


class Net(nn.ModuleDict):
    """`net["features"]`, `net["head"]` and whatever parts a method adds, each by its name."""

    def __init__(self, parts: Mapping[str, nn.Module], width: int, split_norm: bool) -> None:
        super().__init__(dict(parts))
        self.width = width
        self.split_norm = split_norm
        self._moment = torch.zeros((), dtype=torch.int64)

    def share_moment(self) -> None:
        """Give all dropouts and crops one clock on the device they are on, so that setting it is one copy."""
        self._moment = torch.zeros((), dtype=torch.int64, device=next(self.parameters()).device)
        for module in self.modules():
            if isinstance(module, Dropout | Crop):
                module.moment = self._moment

    def set_moment(self, moment: Tensor) -> None:
        """Tell every dropout and crop which moment it is, without leaving the device."""
        self._moment.copy_(moment)


@functools.cache
def check(spec: NetSpec, shape: tuple[int, ...]) -> None:
    """UserError if there is no such network, or it does not take such inputs. Costs nothing: no weights are made."""
    if spec.norm == "kept" and (spec.name in OWN or spec.weights == "none"):
        raise UserError(
            f"The network {spec.name} starts from nothing, so it has no statistics to keep.",
            "-t norm=joint or split, or starting weights with -t weights=….",
        )
    with torch.device("meta"):
        build(dataclasses.replace(spec, weights="none" if spec.name not in OWN else spec.weights), shape, 2, 0)


def new_head(spec: NetSpec, width: int, classes: int) -> nn.Module:
    """A head as the spec names it, with fresh weights."""
    return CosineHead(width, classes, spec.temperature) if spec.head == "cosine" else LinearHead(width, classes)


def build(spec: NetSpec, shape: tuple[int, ...], classes: int, seed: int) -> tuple[dict[str, nn.Module], int]:
    """Features and head with weights drawn from the seed, and the width between them."""
    if spec.name in OWN and spec.weights != "none":
        raise UserError(f"The network {spec.name} has no starting weights to load.", "leave -t weights out.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chance.key("net", seed))
        features, width = OWN[spec.name](shape) if spec.name in OWN else backbone(spec, shape)
        head = new_head(spec, width, classes)
    return {"features": features, "head": head}, width
