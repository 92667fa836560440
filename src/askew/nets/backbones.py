"""Networks of torchvision and timm without their classifier."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from askew.core.errors import UserError, unknown
from askew.nets.layers import Crop, Dropout, NormKeeper, Pixels
from askew.nets.modules import OWN_PREFIX, own_backbone
from askew.nets.small import OWN
from askew.nets.spec import NetSpec

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Backbone(NormKeeper):
    """A torchvision or timm model without its classifier, with the normalisation it was trained with."""

    def __init__(
        self, body: nn.Module, mean: tuple[float, ...], std: tuple[float, ...], crop: int, keeps_norm: bool
    ) -> None:
        super().__init__(keeps_norm)
        self.crop = Crop(crop) if crop else nn.Identity()
        self.pixels = Pixels(mean, std, channels=3)
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.body(self.pixels(self.crop(x)))
        return f.flatten(1)


def backbone(spec: NetSpec, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    """Any torchvision model by name (`resnet50`), or timm's by `timm:NAME`; layers of ours may follow: `resnet50+mlp`.

    `resnet50.v1` is the original ResNet: stride 2 on the first 1x1 convolution of a stage, not on the 3x3.
    """
    below, plus, above = spec.name.partition("+")
    if plus:
        if above not in ("mlp", "bottleneck", "bare"):
            raise UserError(f"There is no network '{spec.name}'.", "what follows a + is mlp, bottleneck or bare.")
        body, width = backbone(dataclasses.replace(spec, name=below), shape)
        top, width = OWN[above]((width,))
        return nn.Sequential(body, top), width
    if spec.name.startswith(OWN_PREFIX):
        body, width = own_backbone(spec, shape)
        _own_chance(body)
        return body, width
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
